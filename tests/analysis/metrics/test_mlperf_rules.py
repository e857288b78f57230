"""Which runs count: the rules of MLPerf, on numbers worked out by hand."""

from __future__ import annotations

import statistics

import pytest
from scipy.stats import trim_mean

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.mlperf_rules import (
    mean_without_extremes,
    olympic_runs,
    required_runs,
    run_count_problem,
    runs_dropped,
)


def test_the_fastest_and_the_slowest_do_not_count() -> None:
    kept = olympic_runs([5.0, 1.0, 3.0, 9.0, 4.0])
    assert (kept.indices, kept.valid, kept.problems) == ((2, 4, 0), True, ())


def test_one_failed_run_is_the_slowest() -> None:
    kept = olympic_runs([5.0, None, 3.0, 9.0, 4.0])
    assert kept.indices == (4, 0, 3)
    assert kept.valid
    assert olympic_runs([5.0, 3.0, 9.0, 4.0], lost=1).indices == (3, 0, 2)


def test_two_failed_runs_make_it_invalid() -> None:
    kept = olympic_runs([5.0, None, 3.0, None, 4.0])
    assert (kept.indices, kept.valid) == ((2, 4, 0), False)
    assert kept.problems == ("2 of 5 runs failed, and 1 may: not a valid result",)
    assert not olympic_runs([5.0, None, 3.0, 4.0], lost=1).valid


def test_four_of_unet3d_are_left_out_at_either_end() -> None:
    times: list[float | None] = [float(number) for number in range(40)]
    assert olympic_runs(times, runs_dropped("unet3d")).indices == tuple(range(4, 36))
    times[36:] = [None] * 4
    assert olympic_runs(times, runs_dropped("unet3d")).indices == tuple(range(4, 36))
    assert not olympic_runs([*times[:-1], None, None], runs_dropped("unet3d")).valid


@pytest.mark.parametrize("times", [[4.0, 5.0], [4.0], [4.0, None]])
def test_too_few_runs_all_count(times: list[float | None]) -> None:
    kept = olympic_runs(times)
    assert kept.indices == tuple(range(sum(time is not None for time in times)))
    assert "too few runs" in kept.problems[0]


def test_of_two_runs_one_may_not_fail() -> None:
    """Leaving both ends out leaves nothing, and where all count a failure does."""
    assert olympic_runs([4.0, 5.0]).valid
    assert not olympic_runs([4.0, None]).valid
    assert not olympic_runs([4.0], lost=1).valid


def test_no_run_succeeded() -> None:
    assert olympic_runs([None]).indices == ()
    assert not olympic_runs([None, None]).valid


def test_equal_times_are_told_apart_by_their_place() -> None:
    assert olympic_runs([2.0, 2.0, 2.0, 2.0]).indices == (1, 2)


def test_the_mean_is_scipys_trimmed_mean() -> None:
    values = [364.7, 317.2, 458.8, 340.4, 345.1, 420.2, 367.8, 346.2, 391.9, 385.6]
    assert mean_without_extremes(values) == pytest.approx(trim_mean(values, 0.1))
    assert mean_without_extremes(values) == pytest.approx(statistics.fmean(sorted(values)[1:-1]))
    with pytest.raises(NotMeasuredError, match="too few"):
        mean_without_extremes([1.0, 2.0])


def test_how_many_runs_the_rules_want() -> None:
    """hpc_training_rules.adoc, Benchmark results; benchmark_meta.py of mlcommons/logging."""
    hpc = {name: required_runs(name, "hpc-3.0") for name in ("cosmoflow", "deepcam", "oc20")}
    assert hpc == {"cosmoflow": 10, "deepcam": 5, "oc20": 5}
    assert required_runs("openfold", None) == 10
    assert required_runs("ncf", "training-0.5") == 100
    assert required_runs("ncf", "training-0.6") == 10
    assert required_runs("unheard", None) is None
    assert run_count_problem("deepcam", None, 5) is None
    assert run_count_problem("deepcam", None, 4) == "4 runs, and the rules want 5 of deepcam"
    assert run_count_problem("unheard", None, 4) is None
