"""Tests of measures: what follows from the sums that a run records."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from aiperf_hpc.objective import (
    ACCURACY,
    CLASSIFICATION,
    INTERSECTION_OVER_UNION,
    MEAN_ABSOLUTE_ERROR,
    MEASURES,
    Objective,
    regression,
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


@pytest.mark.parametrize(
    ("sums", "what"),
    [
        ({"correct": 11.0}, "11 correct of 10 samples"),
        ({"correct": -1.0}, "-1 correct of 10 samples"),
        ({"correct": 2.5}, "2.5 correct of 10 samples"),
        ({}, r"has the sums \['correct'\], not \[\]"),
        ({"correct": 1.0, "wrong": 9.0}, "not .*wrong"),
    ],
)
def test_sums_that_no_evaluation_has_are_refused(sums: dict[str, float], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ACCURACY.check(sums, 10)


def test_a_negative_distance_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute error of -1"):
        MEAN_ABSOLUTE_ERROR.check({"absolute_error": -1.0, "values": 20.0}, 10)
    with pytest.raises(ValueError, match="in 9 values"):
        MEAN_ABSOLUTE_ERROR.check({"absolute_error": 1.0, "values": 9.0}, 10)


@pytest.mark.parametrize("total", [-0.5, 10.5])
def test_ratios_beyond_one_a_sample_are_refused(total: float) -> None:
    INTERSECTION_OVER_UNION.check({"intersection_over_union": 10.0}, 10)
    with pytest.raises(ValueError, match=f"add up to {total} over 10 samples"):
        INTERSECTION_OVER_UNION.check({"intersection_over_union": total}, 10)


def test_an_objective_is_data_that_a_record_can_hold() -> None:
    for objective in (CLASSIFICATION, regression(2)):
        assert Objective.model_validate_json(objective.model_dump_json()) == objective
        assert MEASURES[objective.measure] is objective.quality
    assert regression(2, 3).targets["values"].shape == (2, 3)


def test_an_unknown_measure_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValidationError, match="no measure 'bleu'; known: accuracy"):
        Objective(kind="translation", targets={}, loss="softmax_cross_entropy", measure="bleu")
