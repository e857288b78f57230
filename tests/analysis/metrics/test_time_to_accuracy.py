"""Time to accuracy: DAWNBench's published figures, and what logs may lack."""

from __future__ import annotations

import pytest
from tests.support.training_logs import ACCURACY, ERROR, training

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.time_to_accuracy import (
    progress_of,
    time_to_quality,
    time_to_target,
)


def test_the_first_evaluation_at_or_over_the_threshold_counts() -> None:
    log = training([(10, 0.5), (15, None), (20, 0.9), (30, 0.7), (40, 0.95)])
    assert time_to_target(log) == 20.0
    assert [time_to_quality(log, q) for q in (0.1, 0.5, 0.6, 0.91, 0.95)] == [10, 10, 20, 40, 40]


def test_of_errors_the_first_at_or_below_counts() -> None:
    log = training([(10, 0.5), (20, 0.124), (30, 0.2), (40, 0.12)], ERROR)
    assert time_to_target(log) == 20.0
    assert [time_to_quality(log, q) for q in (0.6, 0.2, 0.123)] == [10, 20, 40]


def test_a_threshold_that_was_never_reached_has_no_time() -> None:
    log = training([(10, 0.5), (20, 0.8)])
    assert progress_of(log).time_to(0.9) is None
    with pytest.raises(NotMeasuredError, match=r"0\.9 was never reached: the best is 0\.8"):
        time_to_target(log)


def test_where_time_goes_backwards_later_thresholds_have_no_time() -> None:
    log = training([(10, 0.5), (30, 0.8), (20, 0.95)])
    assert time_to_quality(log, 0.8) == 30.0
    with pytest.raises(NotMeasuredError, match="time goes backwards at evaluation 3, 10 s before"):
        time_to_target(log)
    with pytest.raises(NotMeasuredError, match="backwards at evaluation 1"):
        time_to_target(training([(-1, 0.95)]))


def test_the_error_names_what_a_log_lacks() -> None:
    for log, reason in (
        (training([(10, 0.5)], started=None), "no start"),
        (training([]), "no evaluations"),
        (training([(10, 0.5)], None), "no evaluations"),
        (training([(10, None)]), "has a quality"),
    ):
        with pytest.raises(NotMeasuredError, match=reason):
            progress_of(log)
    with pytest.raises(NotMeasuredError, match="no target"):
        time_to_target(training([(10, 0.5)], ACCURACY.model_copy(update={"target": None})))
