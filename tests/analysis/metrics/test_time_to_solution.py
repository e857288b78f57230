"""The parts of a training's time, on logs whose seconds are counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics import METRICS
from aiperf_hpc.analysis.metrics import time_to_solution as parts
from aiperf_hpc.analysis.training_log import Epoch, Evaluation, Interval, Quality, TrainingLog

LOWER = Quality(name="eval_error", higher_is_better=False, target=0.124)


def log(**other: object) -> TrainingLog:
    """A run of 600 s: 60 s of staging, 40 s of nothing, then 5 epochs of 100 s.

    The last 10 s of each epoch are its evaluation; the fifth reaches the target.
    """
    document = TrainingLog(
        source="result_1.txt",
        run=Interval(started=1000, ended=1600),
        succeeded=True,
        init=Interval(started=880, ended=1000),
        staging=(Interval(started=1000, ended=1060),),
        epochs=tuple(Epoch(1100 + 100 * n, 1200 + 100 * n, n) for n in range(5)),
        evaluations=tuple(
            Evaluation(n, 1190 + 100 * n, 1200 + 100 * n, 0.16 - 0.009 * n) for n in range(5)
        ),
        quality=LOWER,
        global_batch_size=8,
        train_samples=900,
        eval_samples=60,
        accelerators=4,
    )
    return document.model_copy(update=other)


def test_parts() -> None:
    figures = {
        "time_to_solution": 10, "scaled_time_to_solution": 15, "staging": 1, "compute": 500 / 60,
        "evaluation": 50 / 60, "extra": 40 / 60, "epochs": 5, "epoch_time": 108,
        "staging_in_epochs": 60 / 108, "train_throughput": 5 * 900 / (500 - 50) / 4,
        "eval_throughput": 5 * 60 / 50 / 4, "compute_budget": 4 * 600 / 3600, "init_time": 2,
        "staging_outside": 0.5,
    }  # fmt: skip
    own = [metric for metric in METRICS if metric.compute.__module__ == parts.__name__]
    early = (Interval(started=970, ended=1000), Interval(started=1000, ended=1060))
    whole = log(convergence_scale=1.5)
    found = {metric.name: metric(whole) for metric in own if metric is not parts.staging_outside}
    found["staging_outside"] = parts.staging_outside(log(staging=early))
    assert found == pytest.approx(figures)


def test_a_clock_that_stood_still_gives_no_ratio_of_staging() -> None:
    still = log(run=Interval(started=1000, ended=1060))
    assert parts.epoch_time(still) == 0
    with pytest.raises(NotMeasuredError, match="no time passed in its epochs"):
        parts.staging_in_epochs(still)


def test_staging_before_the_run_is_not_in_its_time() -> None:
    before = log(staging=(Interval(started=900, ended=990), Interval(started=1000, ended=1030)))
    assert (parts.staging(before), parts.staging_outside(before)) == (2, 1.5)
    assert parts.extra(before) == pytest.approx(70 / 60)  # noqa: S610 -- no Django
    assert parts.epoch_time(before) == 114


def test_an_epoch_that_the_target_cuts_short_lasts_until_the_end() -> None:
    epochs = (*log().epochs[:-1], Epoch(1500, None, 4))
    assert parts.compute(log(epochs=epochs)) == pytest.approx(500 / 60)
    assert parts.epochs_to_converge(log(epochs=epochs)) == 5


def test_evaluations_outside_of_epochs_are_compute() -> None:
    epochs = tuple(Epoch(1100 + 100 * n, 1180 + 100 * n, n) for n in range(5))
    assert parts.compute(log(epochs=epochs)) == pytest.approx((5 * 80 + 50) / 60)
    assert parts.train_throughput(log(epochs=epochs)) == pytest.approx(5 * 900 / 400 / 4)


def test_epochs_after_the_target_was_reached_do_not_count_to_converge() -> None:
    evaluations = tuple(
        Evaluation(n, 1190 + 100 * n, 1200 + 100 * n, quality)
        for n, quality in enumerate((0.2, 0.13, 0.12, 0.125, None))
    )
    assert parts.epochs_to_converge(log(evaluations=evaluations)) == 3
    assert parts.epochs_run(log(evaluations=evaluations)) == 5
    unnumbered = tuple(one._replace(epoch=None) for one in evaluations)
    assert parts.epochs_to_converge(log(evaluations=unnumbered)) == 3


def test_epochs_counted_in_samples_as_openfold_does() -> None:
    """Five evaluations, each after 360 more samples of 900, in batches of 8."""
    epochs = tuple(Epoch(1100 + 100 * n, 1200 + 100 * n, 360 * (n + 1)) for n in range(5))
    evaluations = tuple(
        one._replace(epoch=360 * (n + 1)) for n, one in enumerate(log().evaluations)
    )
    counted = log(epochs=epochs, evaluations=evaluations)
    assert parts.epochs_to_converge(counted) == pytest.approx(2.0)
    assert parts.convergence_point(counted) == 1800
    assert parts.train_throughput(counted) == pytest.approx(1800 / 450 / 4)
    assert parts.convergence_point(log()) == 5


def test_blocks_of_epochs() -> None:
    blocks = (Epoch(1100, 1400, 1, 4.0), Epoch(1400, 1600, 5, 3.0))
    last = (Evaluation(7, 1590, 1600, 0.12),)
    assert parts.epochs_to_converge(log(epochs=blocks, evaluations=last)) == 7


def test_evaluations_decide_success_if_the_log_does_not_state_it() -> None:
    assert parts.time_to_solution(log(succeeded=None)) == 10
    worse = tuple(one._replace(quality=0.2) for one in log().evaluations)
    with pytest.raises(NotMeasuredError, match="did not reach its target"):
        parts.time_to_solution(log(succeeded=None, evaluations=worse))


@pytest.mark.parametrize(
    ("metric", "other", "reason"),
    [
        (parts.time_to_solution, {"run": None}, "no start of the run"),
        (parts.time_to_solution, {"run": Interval(started=5, ended=None)}, "no end of the run"),
        (parts.time_to_solution, {"succeeded": False}, "did not reach its target"),
        (parts.time_to_solution, {"succeeded": None, "quality": None}, "does not state whether"),
        (parts.scaled_time_to_solution, {}, "no scaling.json"),
        (parts.staging, {"staging": ()}, "no staging"),
        (parts.staging, {"staging": (Interval(started=5, ended=None),)}, "staging without an end"),
        (parts.staging_outside, {}, "inside the run"),
        (parts.epochs_to_converge, {"epochs": ()}, "no epochs"),
        (parts.epochs_to_converge, {"succeeded": False}, "did not reach its target"),
        (parts.compute, {"epochs": ()}, "no epochs"),
        (parts.train_throughput, {"train_samples": None}, "how many samples an epoch has"),
        (parts.train_throughput, {"accelerators": None}, "number of accelerators"),
        (parts.train_throughput, {"epochs": (Epoch(1600, 1600, 1),)}, "no time passed"),
        (parts.eval_throughput, {"eval_samples": None}, "how many samples an evaluation has"),
        (parts.eval_throughput, {"evaluations": ()}, "when an evaluation started"),
        (parts.evaluation, {"evaluations": ()}, "when an evaluation started"),
        (parts.compute_budget, {"accelerators": None}, "number of accelerators"),
        (parts.init_time, {"init": None}, "no complete initialization"),
    ],
)
def test_the_error_states_what_is_missing(
    metric: Callable[[TrainingLog], float], other: dict[str, object], reason: str
) -> None:
    with pytest.raises(NotMeasuredError, match=reason):
        metric(log(**other))


def test_a_copy_of_a_log_is_measured_anew() -> None:
    first = log()
    assert parts.epochs_run(first) == parts.epochs_run(log()) == 5
    assert parts.epochs_run(first.model_copy(update={"epochs": first.epochs[:2]})) == 2
    assert first == log()


def test_the_length_of_a_union() -> None:
    assert parts.length([(5, 6), (0, 2), (1, 3), (1.5, 2)]) == 4
    assert parts.length([]) == 0
