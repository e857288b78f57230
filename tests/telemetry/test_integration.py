"""Energies by arithmetic that is written out."""

from __future__ import annotations

import pytest

from aiperf_hpc.telemetry.energy import Counter, Mean, Trapezoid


def test_a_counter_begins_anew_after_its_greatest_value() -> None:
    counter = Counter(1e-6, greatest=999_999)
    for now, value in enumerate([999_000, 999_999, 499_999]):
        counter.read(now, value)
    # 999 steps, then one to 0 and 499,999 more: 500,999 microjoules in two seconds.
    assert counter.take() == pytest.approx((0.500999, 2.0))
    assert counter.take() == (0.0, 0.0)
    counter.read(3.0, 500_000)
    assert counter.take() == pytest.approx((1e-6, 1.0))


def test_what_a_counter_may_have_begun_anew_in_twice_is_not_covered() -> None:
    counter = Counter(1.0, greatest=99, longest=10.0)
    for now, value in [(0.0, 0), (10.0, 50), (20.5, 60), (21.5, 70)]:
        counter.read(now, value)
    assert counter.take() == (60.0, 11.0)


def test_a_counter_that_was_reset_covers_nothing_meanwhile() -> None:
    counter = Counter(1e-3)
    for now, value in [(0.0, 5_000), (1.0, 7_000), (2.0, 100), (3.0, 600)]:
        counter.read(now, value)
    assert counter.take() == (2.5, 2.0)


def test_power_is_taken_to_change_evenly() -> None:
    power = Trapezoid(longest=5.0)
    for now, watts in [(0.0, 100.0), (1.0, 300.0), (3.0, 300.0)]:
        power.read(now, watts)
    # (100 + 300) / 2 for a second, then 300 for two.
    assert power.take() == (800.0, 3.0)
    power.read(4.0, 100.0)
    assert power.take() == (200.0, 1.0)


def test_gaps_in_power_are_not_covered() -> None:
    power = Trapezoid(longest=5.0)
    power.read(0.0, 100.0)
    power.read(5.1, 100.0)
    power.missed()
    power.read(7.0, 100.0)
    power.read(8.0, 100.0)
    assert power.take() == (100.0, 1.0)


def test_a_mean_of_nothing_is_none() -> None:
    mean = Mean()
    for value in (1.0, None, 4.0):
        mean.read(value)
    assert mean.take() == 2.5
    assert mean.take() is None
