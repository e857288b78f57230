"""Tests of the density fields out of formulas: their spectrum, growth and counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aiperf_hpc.replica.data import density
from aiperf_hpc.replica.data.density import (
    PARTICLES,
    Universe,
    growth,
    make_counts,
    power_spectrum,
    transfer,
)
from aiperf_hpc.replica.data.generated import draw_targets


def test_the_spectrum_has_the_sigma_8_that_it_was_made_for() -> None:
    """By an integral over spheres of its own, in steps of k and not of its logarithm."""
    k = np.linspace(1e-4, 8.0, 400_001)
    x = 8.0 * k
    window = 3.0 * (np.sin(x) - x * np.cos(x)) / x**3
    for universe in (Universe(0.31, 0.82), Universe(0.22, 0.9)):
        integrand = k**2 * power_spectrum(k, universe) * window**2 / (2.0 * math.pi**2)
        found = math.sqrt(float(integrand.sum()) * (k[1] - k[0]))
        assert found == pytest.approx(universe.sigma_8, rel=2e-3)


def test_large_scales_are_passed_on_and_small_ones_damped() -> None:
    assert transfer(np.array([1e-5]), 0.31)[0] == pytest.approx(1.0, abs=1e-3)
    falling = transfer(np.geomspace(1e-3, 10.0, 50), 0.31)
    assert (np.diff(falling) < 0.0).all()
    assert 0.10 < transfer(np.array([0.1]), 0.31)[0] < 0.18


def test_fields_grew_as_the_scale_factor_where_there_is_nothing_but_matter() -> None:
    np.testing.assert_allclose(growth(1.0), 1.0 / (1.0 + np.array(density.REDSHIFTS)), rtol=1e-12)
    # Dark energy slows growth down: what there is now was relatively more of it before.
    assert (growth(0.2)[1:] > growth(0.4)[1:]).all()
    assert growth(0.31)[1] == pytest.approx(0.77, abs=0.01)


def test_counts_have_their_mean_and_the_variance_of_their_field() -> None:
    targets = np.array([0.0, 0.5])
    counts = np.stack([make_counts(targets, 16, 0, sample) for sample in range(24)])
    assert counts.shape == (24, 16, 16, 16, 4)
    assert counts.dtype == np.int16
    assert counts.min() >= 0
    np.testing.assert_allclose(counts.mean((0, 1, 2, 3)), PARTICLES, rtol=0.01)
    # Without the scatter of particles: what fields of less growth have is less.
    spread = counts.var((0, 1, 2, 3)) / PARTICLES**2 - 1.0 / PARTICLES
    ratios = np.log1p(spread) / np.log1p(spread[0])
    np.testing.assert_allclose(ratios, growth(Universe.of(targets).omega_m) ** 2, rtol=0.05)


def test_the_targets_can_be_told_of_the_fields() -> None:
    """By a line through the spread of each channel alone: zeros are wrong by 0.5."""
    number, held_out = 240, 60
    targets = np.stack([draw_targets(0, sample) for sample in range(number)])
    fields = [
        np.log1p(make_counts(targets[sample], 16, 0, sample), dtype=np.float64)
        for sample in range(number)
    ]
    spread = np.log(np.stack([field.reshape(-1, 4).std(0) for field in fields]))
    known = np.concatenate([np.ones((number, 1)), spread, spread**2], axis=1)
    line, *_ = np.linalg.lstsq(known[:-held_out], targets[:-held_out], rcond=None)
    wrong = np.abs(known[-held_out:] @ line - targets[-held_out:]).mean(0)
    assert (wrong < 0.3).all()
    assert wrong.mean() < 0.2
