"""Tests of metrics: what follows from the sums that a run records."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.objective import (
    ACCURACY,
    INTERSECTION_OVER_UNION,
    MEAN_ABSOLUTE_ERROR,
    MEAN_AVERAGE_PRECISION,
    Objective,
    QualityMetric,
    average_precisions,
    detection,
)


def test_the_error_is_exact_where_one_minus_accuracy_is_not() -> None:
    sums, samples = {"correct": 35_000.0}, 50_000
    assert 1 - ACCURACY.quality(sums, samples) > 0.3
    assert ACCURACY.error is not None
    assert ACCURACY.error(sums, samples) == 0.3


def test_a_perfect_evaluation_counts_as_one_wrong_sample() -> None:
    assert ACCURACY.regulated_error({"correct": 50.0}, 50) == 1 / 50
    assert ACCURACY.regulated_error({"correct": 0.0}, 50) == 1.0
    assert ACCURACY.regulated_error({"correct": 35.0}, 50) == 0.3


def test_a_mean_absolute_error_is_no_share_and_regulates_nothing() -> None:
    sums = {"absolute_error": 3.0, "values": 12.0}
    assert MEAN_ABSOLUTE_ERROR.quality(sums, 6) == 0.25
    assert MEAN_ABSOLUTE_ERROR.regulated_error(sums, 6) is None


def test_a_search_maximizes_whatever_the_measure() -> None:
    assert ACCURACY.objective_value(0.75) == 0.75
    assert MEAN_ABSOLUTE_ERROR.objective_value(0.25) == -0.25
    best = MEAN_ABSOLUTE_ERROR.objective_value(MEAN_ABSOLUTE_ERROR.perfect)
    assert math.copysign(1.0, best) == 1.0  # No minus sign before a zero.
    assert ACCURACY.reaches(0.8, 0.8)
    assert not ACCURACY.reaches(0.79, 0.8)
    assert MEAN_ABSOLUTE_ERROR.reaches(0.12, 0.124)
    assert not MEAN_ABSOLUTE_ERROR.reaches(0.13, 0.124)


ABSOLUTE, RATIO = "absolute_error", "intersection_over_union"


@pytest.mark.parametrize(
    ("metric", "sums", "what"),
    [
        (ACCURACY, {"correct": 11.0}, "11 correct of 10 samples"),
        (ACCURACY, {"correct": -1.0}, "-1 correct of 10 samples"),
        (ACCURACY, {"correct": 2.5}, "2.5 correct of 10 samples"),
        (ACCURACY, {}, r"has the sums \['correct'\], not \[\]"),
        (ACCURACY, {"correct": 1.0, "wrong": 9.0}, "not .*wrong"),
        (MEAN_ABSOLUTE_ERROR, {ABSOLUTE: -1.0, "values": 20.0}, "absolute error of -1"),
        (MEAN_ABSOLUTE_ERROR, {ABSOLUTE: 1.0, "values": 9.0}, "in 9 values"),
        (INTERSECTION_OVER_UNION, {RATIO: -0.5}, "add up to -0.5 over 10 samples"),
        (INTERSECTION_OVER_UNION, {RATIO: 10.5}, "add up to 10.5 over 10 samples"),
    ],
)
def test_sums_that_no_evaluation_has_are_refused(
    metric: QualityMetric, sums: dict[str, float], what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        metric.check(sums, 10)


def test_ratios_of_one_a_sample_are_the_most() -> None:
    INTERSECTION_OVER_UNION.check({RATIO: 10.0}, 10)


def test_an_unknown_measure_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValidationError, match="no metric 'bleu'; known: accuracy"):
        Objective(kind="translation", targets={}, loss="softmax_cross_entropy", metric="bleu")


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
