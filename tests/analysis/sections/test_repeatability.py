"""What is said of repeated runs: of public logs, of our runs that search, and of one run alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.present import present
from tests.support.run_factory import Plan, write_run
from tests.support.training_logs import entry

from aiperf_hpc.analysis.layout import tables_as_lines
from aiperf_hpc.analysis.metric import Metric, NotMeasuredError, required
from aiperf_hpc.analysis.metrics.score import error, operations_per_second, regulated
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.run_directory import read_run
from aiperf_hpc.analysis.sections.repeatability import (
    LIMIT,
    Repeatability,
    repeatability,
    tables,
    verdict_on,
)
from aiperf_hpc.analysis.training_log import (
    Entry,
    Interval,
    Rates,
    SearchTimeline,
    StoredPredictions,
    System,
    Throughput,
    TrainingLog,
)


def _minutes(log: TrainingLog) -> float:
    return required(None if log.run is None else log.run.seconds, "no end") / 60.0


MINUTES = Metric("minutes", "time to solution", "min", "a test", _minutes)
CORI = (416.94, 346.98, 314.06, 394.23, 351.61)
"""Minutes, about those of a published entry."""


def _entry(name: str, logs: Sequence[TrainingLog], *, ours: bool = False) -> Entry:
    kind = "aiperf" if ours else "mllog"
    return entry(name, *logs, format=kind, benchmark="cosmoflow", system=System(name="machine"))


def _log(minutes: float | None, *, succeeded: bool = True) -> TrainingLog:
    run = None if minutes is None else Interval(started=0.0, ended=60.0 * minutes)
    return TrainingLog(source=f"log of {minutes}", run=run, succeeded=succeeded)


def _search(
    operations: int,
    *,
    busy: float = 80.0,
    rate: float | None = 100.0,
    seed: int = 0,
    peaks: tuple[float, ...] = (),
    seconds: float = 100.0,
    windows: Sequence[int] = (),
    preset: str = "quickstart",
) -> Entry:
    """Return a run of 100 s as it would be read."""
    trained = (Throughput(network="n", batch_size=8, samples=round(10 * (rate or 0)), seconds=10),)
    timeline = SearchTimeline(
        window_seconds=1.0, operations=tuple(windows), busy_seconds=busy, replicas=1,
        throughputs=() if rate is None else trained,
        peaks=tuple(Rates(utc=0.0, rates={"matrix": peak}) for peak in peaks),
    )  # fmt: skip
    log = TrainingLog(
        source=f"run {seed}",
        run=Interval(started=0.0, ended=seconds),
        succeeded=None,
        operations=operations,
        timeline=timeline,
        settings={
            "hours": 100.0 / 3600.0, "nodes": 1, "config": {"seed": seed, "preset": preset},
        },
    )  # fmt: skip
    return _entry(f"run-{seed}", [log], ours=True)


def _of(*entries: Entry) -> Repeatability:
    return repeatability(entries, Options(), (MINUTES,))


def test_trainings_of_a_public_entry_are_repetitions() -> None:
    logs = [*(_log(minutes) for minutes in CORI), _log(500.0, succeeded=False)]
    whole = _entry("cori", logs)
    (found,) = _of(whole).repetitions
    (minutes,) = found.variations
    known = np.array([*CORI, 500.0])
    assert minutes.variation == pytest.approx(known.std(ddof=1) / known.mean())
    assert minutes.mean == pytest.approx(known.mean())
    assert len(minutes.values) == 6
    assert minutes.too_few_runs
    interval = present(minutes.interval)
    assert interval.low < minutes.variation < present(interval.high)
    target = present(found.target)
    assert (target.reached, target.runs) == (5, 6)
    assert (found.verdicts, found.noise) == ((), None)  # A limit is for our own scores.
    # Trainings whose logs are lost did not reach the target either.
    (found,) = _of(whole.model_copy(update={"lost": 2})).repetitions
    target = present(found.target)
    assert (target.reached, target.runs) == (5, 8)


def test_a_metric_missing_in_one_training_run_is_measured_in_the_others() -> None:
    found = _of(_entry("a", [_log(1.0), _log(None), _log(2.0)]))
    (minutes,) = found.repetitions[0].variations
    assert minutes.values == (1.0, 2.0)
    assert "at least 3" in minutes.interval_unavailable_reason
    (table,) = tables(found)
    assert (table.columns[-1], table.rows[0][-1]) == ("of runs", "2 of 3")
    (table,) = tables(_of(_entry("a", [_log(1.0), _log(2.0)])))
    assert "of runs" not in table.columns
    (none,) = _of(_entry("a", [_log(None), _log(None)])).repetitions
    assert none.missing == {"minutes": "no end"}


def test_one_training_is_no_repetition() -> None:
    with pytest.raises(NotMeasuredError, match="no repetitions"):
        _of(_entry("a", [_log(1.0)]), _entry("b", []))
    found = _of(_entry("a", [_log(1.0)]), _entry("b", [_log(1.0), _log(2.0)]))
    assert found.single == ("a",)


def test_our_runs_are_repetitions_when_only_their_seeds_differ() -> None:
    runs = [_search(1000, seed=1), _search(1100, seed=2), _search(1000, seed=3, preset="imagenet")]
    assert [len(each.runs) for each in _of(*runs).repetitions] == [2, 1]


def test_a_run_that_ended_early_is_left_out() -> None:
    (found,) = _of(_search(1000), _search(900, seed=1), _search(10, seed=2, seconds=20)).repetitions
    assert found.excluded == ("run 2: it ended after 20.0 s of 1 min 40 s",)
    assert len(found.runs) == 2


def test_three_quick_starts_fail() -> None:
    (found,) = _of(*(_search(n, seed=n) for n in (4570, 4540, 5950))).repetitions
    (ops,) = found.verdicts
    assert (ops.metric, ops.verdict, ops.limit) == ("ops", "FAIL", LIMIT)
    # 8.0554 / 50.2; chi-square of 2 degrees: -2 ln 0.05 = 5.99 and -2 ln 0.95 = 0.1026.
    assert ops.variation == pytest.approx(0.16047, rel=1e-3)
    low = 0.16047 / math.sqrt(((5.9915 + 2) / 3 - 1) * 0.16047**2 + 5.9915 / 2)
    assert ops.interval.low == pytest.approx(low, rel=1e-3)


@pytest.mark.parametrize(
    ("variation", "runs", "verdict"),
    [
        # Upper limits about CoV sqrt((n - 1) / u): of 2 % and 5 runs 0.02 * 2.372 = 4.7 %.
        (0.02, 5, "PASS"),
        (0.02, 4, "too few runs"),  # 0.02 * sqrt(3 / 0.3518) = 5.8 %.
        (0.001, 2, "too few runs"),  # Two may agree by chance.
        (0.001, 3, "PASS"),
        (0.16, 2, "FAIL"),
        (0.07, 5, "too few runs"),  # Lower limit 0.07 * sqrt(4 / 9.488) = 4.5 %.
        (0.07, 20, "FAIL"),
    ],
)
def test_a_verdict_needs_confidence(variation: float, runs: int, verdict: str) -> None:
    found = verdict_on("ops", variation, runs)
    assert found.verdict == verdict
    assert (found.runs_to_decide is None) == (verdict != "too few runs")


def test_more_runs_of_the_same_variation_decide() -> None:
    enough = present(verdict_on("ops", 0.03, 3).runs_to_decide)
    assert verdict_on("ops", 0.03, enough).verdict == "PASS"
    assert verdict_on("ops", 0.03, enough - 1).verdict == "too few runs"
    assert verdict_on("ops", 0.05, 10).runs_to_decide is None  # At the limit itself: never.


def test_noise_of_the_machine_is_separate_from_that_of_the_search() -> None:
    # Only the machine differs: twice the rate at the same work, twice the operations.
    machine = _of(_search(1000, rate=100.0, seed=1), _search(2000, rate=200.0, seed=2))
    assert _shares(machine) == pytest.approx((1.0, 0.0, 0.0))
    search = _of(_search(1000, seed=1), _search(2000, seed=2))
    assert _shares(search) == pytest.approx((0.0, 1.0, 0.0))
    time = _of(_search(1000, busy=40.0, seed=1), _search(2000, busy=80.0, seed=2))
    assert _shares(time) == pytest.approx((0.0, 0.0, 1.0))


def _shares(found: Repeatability) -> tuple[float, ...]:
    noise = present(found.repetitions[0].noise)
    return tuple(factor.fraction for factor in noise.factors)


def test_measured_peaks_come_before_trainings() -> None:
    runs = (_search(1000, seed=1, peaks=(90.0, 110.0)), _search(2000, seed=2, peaks=(200.0,)))
    found = _of(*runs)
    assert _shares(found) == pytest.approx((1.0, 0.0, 0.0))
    assert any("peaks.json" in table.title for table in tables(found))


@pytest.mark.parametrize(("trained", "machine"), [("cuda:0", 1.0), ("cpu", 0.0)])
def test_only_the_peaks_of_the_device_that_trained_are_the_machines(
    trained: str, machine: float
) -> None:
    """The accelerators of the second run were twice as fast, as the run was; the CPUs alike."""
    runs = []
    for seed, peak in ((1, 100.0), (2, 200.0)):
        run = _search(1000 * seed, seed=seed)
        rates = {"torch cpu matrix product fp32": 7.0, "torch cuda:0 matrix product fp32": peak}
        (log,) = run.logs
        update = {"peaks": (Rates(utc=0.0, rates=rates),), "on_accelerators": trained != "cpu"}
        timeline = present(log.timeline).model_copy(update=update)
        log = log.model_copy(update={"timeline": timeline})
        runs.append(run.model_copy(update={"logs": (log,)}))
    assert _shares(_of(*runs))[0] == pytest.approx(machine)


def test_without_equal_work_the_machines_rate_is_unknown() -> None:
    (found,) = _of(_search(1, rate=None, seed=1), _search(2, rate=None, seed=2)).repetitions
    assert found.noise is None
    assert "the machine's rate is unknown" in found.noise_unavailable_reason


def test_the_run_length_follows_from_a_single_run() -> None:
    windows = np.random.default_rng(6).normal(1000.0, 100.0, 2000).round().astype(int).tolist()
    (found,) = _of(_search(1000, windows=[0, 0, 0, *windows])).repetitions
    length = present(found.length)
    # Independent windows of 1 s that vary by 10 %: (10 % / 1 %)² = 100 of them.
    assert length.within_seconds == pytest.approx(100.0, rel=0.15)
    assert (length.steady, length.between_seconds) == (True, None)
    assert "one run only" in found.noise_unavailable_reason


def test_the_run_length_follows_from_differences_between_runs() -> None:
    (found,) = _of(_search(1000, seed=1), _search(1100, seed=2)).repetitions
    length = present(found.length)
    # Two values a and b: deviation |a - b| / sqrt 2, over the mean 6.734 %; (6.734)² * 100 s.
    wanted = 100 * (100 / math.sqrt(2) / 1050 / 0.01) ** 2
    assert (length.within_seconds, length.between_seconds) == pytest.approx((None, wanted))
    assert "at least 8" in length.within_unavailable_reason


def _predicting(run: Entry, classes: Sequence[int]) -> Entry:
    (log,) = run.logs
    stored = np.array(classes, "<u4").tobytes()
    predicted = StoredPredictions(trial="t", samples=len(classes), sha256="", classes=stored)
    return run.model_copy(update={"logs": (log.model_copy(update={"predictions": predicted}),)})


def test_predictions_of_all_pairs_of_runs_are_compared() -> None:
    predicted = ([1, 2, 3, 4], [1, 2, 3, 5], [1, 9, 9, 9])
    runs = [_predicting(_search(1000 + n, seed=n), p) for n, p in enumerate(predicted)]
    found = present(_of(*runs, _search(1004, seed=4)).repetitions[0].similarity)
    # Equal: 3, 1 and 1 of 4; k / (8 - k).
    assert (found.pairs, len(found.runs)) == (3, 3)
    assert found.mean == pytest.approx((3 / 5 + 1 / 7 + 1 / 7) / 3)
    assert [found.min, found.max] == pytest.approx([1 / 7, 3 / 5])
    assert any("Jaccard similarity" in note for table in tables(_of(*runs)) for note in table.notes)


def test_predictions_of_one_run_or_of_other_samples_are_not_compared() -> None:
    one, other = _predicting(_search(1000), [1, 2]), _search(1100, seed=1)
    assert _of(one, other).repetitions[0].similarity is None
    (found,) = _of(one, _predicting(other, [1, 2, 3])).repetitions
    assert found.similarity is None
    assert "different numbers of samples" in found.similarity_unavailable_reason


def test_real_run_directories_are_compared(tmp_path: Path) -> None:
    entries: list[Entry] = []
    for seed in range(3):
        plan = Plan(
            replicas=1, trials=2, hpo_trials=0, failed=0, seed=seed, run_id=f"run-{seed}",
            hours=0.05,
        )  # fmt: skip
        paths = write_run(tmp_path / str(seed), plan)
        entries += read_run(paths.root).entries
    found = repeatability(entries, Options(), (operations_per_second, regulated, error))
    (runs,) = found.repetitions
    assert (runs.name, runs.benchmark) == ("run-0, run-1, run-2", "automl on digits")
    assert [each.metric for each in runs.verdicts] == ["ops", "regulated", "error"]
    assert sum(_shares(found)) == pytest.approx(1.0)
    text = list(tables_as_lines(tables(found)))
    verdicts = next(table for table in tables(found) if "limit" in table.columns)
    assert {row[verdicts.columns.index("limit")] for row in verdicts.rows} == {"5.0%"}
    assert sum("runs are too narrow" in line for line in text) == 1
    assert not any("inf" in line or "nan" in line for line in text)
