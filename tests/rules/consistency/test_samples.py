"""Metrics recomputed from evaluations, and the baseline of a trivial predictor."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.clock import Clock
from tests.support.rules import check_rule

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.objective import QUALITY_METRICS, QualityMetric
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Evidence, best_quality, quality
from aiperf_hpc.run.history import Evaluation
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import BaselineMeasured, Evaluated
from aiperf_hpc.verification.audit import evidence_of

SUMS = {
    "accuracy": ({"correct": 7.0}, {"correct": 4.0}),
    "intersection_over_union": (
        {"intersection_over_union": 6.5},
        {"intersection_over_union": 2.0},
    ),
    "mean_absolute_error": (
        {"absolute_error": 3.0, "values": 20.0},
        {"absolute_error": 9.0, "values": 20.0},
    ),
    "mean_average_precision": (
        {"average_precision": 1.5, "classes": 4.0},
        {"average_precision": 0.5, "classes": 4.0},
    ),
}
"""Sums of two evaluations on 10 samples by each metric, the better one first."""


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", 2, ended=False).paths


def evidence(paths: RunPaths, *measured: BaselineMeasured, method: str = "fixed") -> Evidence:
    """Return the run whose replicas, in their order, measured these."""
    view = RunView.read(paths)
    for number, event in enumerate(measured):
        with JournalWriter(
            paths.replica_journal(f"r{number}"), clock=Clock(view.history.last_utc)
        ) as journal:
            journal.append(event)
    found = evidence_of(view)
    search = SearchConfig.model_validate({"method": method})
    found.config = found.config.model_copy(update={"search": search})
    return found


def accuracy(correct: float) -> BaselineMeasured:
    return BaselineMeasured(metric="accuracy", sums={"correct": correct}, samples=360)


def test_what_all_replicas_measured_alike_is_no_fault(run: RunPaths) -> None:
    found = evidence(run, accuracy(10), accuracy(10))
    result = check_rule("baseline", found)
    assert (result.failures, result.checked) == ((), 2)
    assert RunView.read(run).baseline() is not None


@pytest.mark.parametrize(
    ("measured", "method", "failures"),
    [
        ([BaselineMeasured(metric="mean_absolute_error",
                           sums={"absolute_error": 1.0, "values": 9.0}, samples=3)],
         "fixed",
         ["r0, attempt 0.0, evaluated a baseline by mean_absolute_error; the run's metric is "
          "accuracy",
          "r0, attempt 0.0, measured a baseline on 3 samples, there are 360",
          "r0, attempt 0.0, measured a baseline on 9 values, there must be 3"]),
        ([accuracy(10), accuracy(11)], "fixed",
         ["r1, attempt 0.0, measured a different baseline from r0, attempt 0.0"]),
        ([accuracy(10)], "greedy",
         ["r0, attempt 0.0, measured a baseline, though a network was searched for"]),
    ],
)  # fmt: skip
def test_another_baseline_is_found(
    run: RunPaths, measured: list[BaselineMeasured], method: str, failures: list[str]
) -> None:
    found = evidence(run, *measured, method=method)
    assert list(check_rule("baseline", found).failures) == failures


def evaluations(metric: QualityMetric) -> list[Evaluation]:
    return [
        Evaluation.of(
            float(epoch),
            Evaluated(
                trial="t1",
                epoch=epoch,
                learning_rate=0.1,
                train_loss=1.0,
                validation_loss=1.0,
                metric=metric.name,
                sums=sums,
                samples=10,
            ),
        )
        for epoch, sums in enumerate(SUMS[metric.name], 1)
    ]


@pytest.mark.parametrize("metric", QUALITY_METRICS.values(), ids=list(QUALITY_METRICS))
def test_each_metric_can_be_recomputed_and_its_best_found(metric: QualityMetric) -> None:
    found = evaluations(metric)
    assert [quality(each) for each in found] == [each.quality for each in found]
    assert best_quality(found) == best_quality(found[::-1]) == found[0].quality


def test_of_no_evaluation_there_is_no_best_quality() -> None:
    assert best_quality([]) is None
