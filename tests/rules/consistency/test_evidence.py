"""Verification's own reading of what an evaluation recorded."""

from __future__ import annotations

import pytest

from aiperf_hpc.objective import MEASURES, Measure
from aiperf_hpc.rules.consistency.evidence import best_quality, quality
from aiperf_hpc.run.history import Evaluation
from aiperf_hpc.run.records import Evaluated

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
"""Sums of two evaluations on 10 samples by each measure, the better one first."""


def evaluations(measure: Measure) -> list[Evaluation]:
    return [
        Evaluation.of(
            float(epoch),
            Evaluated(
                trial="t1",
                epoch=epoch,
                learning_rate=0.1,
                train_loss=1.0,
                validation_loss=1.0,
                measure=measure.name,
                sums=sums,
                samples=10,
            ),
        )
        for epoch, sums in enumerate(SUMS[measure.name], 1)
    ]


@pytest.mark.parametrize("measure", MEASURES.values(), ids=list(MEASURES))
def test_each_measure_can_be_recomputed_and_its_best_found(measure: Measure) -> None:
    found = evaluations(measure)
    assert [quality(each) for each in found] == [each.quality for each in found]
    assert best_quality(found) == best_quality(found[::-1]) == found[0].quality


def test_of_no_evaluation_there_is_no_best_quality() -> None:
    assert best_quality([]) is None
