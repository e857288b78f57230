"""The average precision of detections, against recalls and precisions written out."""

from __future__ import annotations

import pytest

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.objective import MEAN_AVERAGE_PRECISION, average_precisions, detection

ONE, OTHER, NOWHERE = [0, 0, 10, 10], [20, 20, 30, 40], [50, 50, 60, 60]


def test_what_is_found_and_what_not_decide() -> None:
    truth = [[[*ONE, 2], [*OTHER, 2]], []]
    both = [[[*ONE, 0.9, 2], [*OTHER, 0.3, 2]], []]
    assert average_precisions(both, truth) == {2: pytest.approx(1.0)}
    assert average_precisions([[], []], truth) == {2: 0.0}
    # At the recalls 0, 0.01, ... 0.5 the precision is 1, and at the others 0.
    assert average_precisions([both[0][:1], []], truth)[2] == pytest.approx(51 / 101)
    # A better one of another sample that is nowhere halves the precision there.
    wrong = [both[0][:1], [[*NOWHERE, 0.95, 2]]]
    assert average_precisions(wrong, truth)[2] == pytest.approx(51 / 101 / 2)


@pytest.mark.parametrize(("bottom", "found"), [(20.1, 0.0), (19.9, 1.0)])
def test_half_an_overlap_is_enough(bottom: float, found: float) -> None:
    precision = average_precisions([[[0, 0, bottom, 10, 0.5, 0]]], [[[*ONE, 0]]])[0]
    assert precision == pytest.approx(found)


def test_classes_are_by_themselves_and_a_box_is_found_once() -> None:
    truth = [[[*ONE, 0], [*OTHER, 3]]]
    found = average_precisions([[[*ONE, 0.9, 0], [*ONE, 0.8, 0], [*OTHER, 0.9, 1]]], truth)
    assert found == {0: pytest.approx(1.0), 3: 0.0}


def test_without_a_box_there_is_nothing_to_measure() -> None:
    with pytest.raises(DatasetError, match="no validation sample has a box"):
        average_precisions([[[*ONE, 0.9, 0]]], [[]])


def test_the_measure_is_the_mean_over_the_classes_that_there_are() -> None:
    assert MEAN_AVERAGE_PRECISION.summarize is not None
    nothing, none = [-1.0] * 6, [-1.0] * 5
    rows = {
        "detections": [[*ONE, 0.9, 1.0, *nothing], [*nothing, *nothing]],
        "boxes": [[*ONE, 1.0, *none], [*none, *OTHER, 0.0]],
    }
    sums = MEAN_AVERAGE_PRECISION.summarize(rows)
    assert sums == {"average_precision": pytest.approx(1.0), "classes": 2.0}
    MEAN_AVERAGE_PRECISION.check(sums, 2)
    assert MEAN_AVERAGE_PRECISION.quality(sums, 2) == pytest.approx(0.5)
    for wrong in (
        {"average_precision": 0.0, "classes": 0.0},
        {"average_precision": 2.1, "classes": 2.0},
    ):
        with pytest.raises(ValueError, match="average precisions of"):
            MEAN_AVERAGE_PRECISION.check(wrong, 2)
    assert detection(15).targets["boxes"].shape == (15, 5)
