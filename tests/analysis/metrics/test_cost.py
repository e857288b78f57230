"""Costs, price index and Pareto front: published figures and plain definitions."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from aiperf_hpc.analysis.sections.cost import cost_of, pareto_front, price_index


def test_cost_is_time_times_price() -> None:
    """8 x V100 at 24.48 USD an hour for 0.0483219 h: 1.18 USD, as published."""
    assert cost_of(173.958958, 24.48) == pytest.approx(0.04832193 * 24.48, rel=1e-6)
    assert f"{cost_of(173.958958, 24.48):.2f}" == "1.18"


def test_price_index_of_mlbenchs_published_results() -> None:
    """GNMT: 4 workers are 2.56 times faster for 18 $ in place of 10 $: 1.8 / 2.56. Transformer:
    8 workers are 4.36 times faster for 9.3 $ in place of 5.5 $; both below 1, as it says."""
    gnmt = price_index(18.0, 100.0 / 2.56, 10.0, 100.0)
    transformer = price_index(9.3, 100.0 / 4.36, 5.5, 100.0)
    assert gnmt == pytest.approx(0.703125)
    assert transformer == pytest.approx(0.387823, rel=1e-5)
    assert price_index(10.0, 100.0, 10.0, 100.0) == 1.0


def test_price_index_of_nothing() -> None:
    assert price_index(0.0, 1.0, 1.0, 1.0) is None
    assert price_index(1.0, 1.0, 0.0, 1.0) is None
    assert price_index(1.0, 0.0, 1.0, 1.0) is None


def test_front_by_hand() -> None:
    points = [(1.0, 9.0), (2.0, 9.0), (2.0, 5.0), (3.0, 5.0), (4.0, 1.0), (5.0, 2.0)]
    assert pareto_front(points) == [0, 2, 4]
    assert pareto_front([]) == []


def test_equal_points_are_on_the_front_together() -> None:
    assert pareto_front([(2.0, 2.0), (1.0, 3.0), (2.0, 2.0), (1.0, 3.0), (1.0, 4.0)]) == [
        1,
        3,
        0,
        2,
    ]


def test_front_is_that_of_the_definition() -> None:
    rng = random.Random(2)  # noqa: S311 -- no secret
    for _ in range(200):
        points = [(float(rng.randint(0, 6)), float(rng.randint(0, 6))) for _ in range(15)]
        beaten = {
            i for i, (x, y) in enumerate(points)
            if any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
        }  # fmt: skip
        front = pareto_front(points)
        assert set(front) == set(range(15)) - beaten
        assert all(points[a][0] <= points[b][0] for a, b in pairwise(front))
