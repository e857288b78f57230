"""Tests of the fields out of a formula: their spectrum by numpy's own transform."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.generated import generated

from aiperf_hpc.replica.data.volumes import make_fields


def test_a_field_has_the_power_law_and_the_strength_of_its_targets() -> None:
    size, number = 32, 12
    for slope, strength in ((-1.0, 0.5), (0.0, -1.0), (0.75, 0.0)):
        targets = np.tile([slope, strength], (number, 1))
        fields = make_fields(targets, size, 0, np.arange(number))[..., 0].astype(np.float64)
        assert fields.std() == pytest.approx(2.0**strength, rel=0.1)
        power = (np.abs(np.fft.fftn(fields, axes=(1, 2, 3))) ** 2).mean(0)
        k = np.sqrt(sum(np.meshgrid(*[np.fft.fftfreq(size, 1 / size) ** 2] * 3)))
        known = (k > 2) & (k < size / 2)
        fitted, _ = np.polyfit(np.log(k[known]), np.log(power[known]), 1)
        assert fitted == pytest.approx(-2.0 + slope, abs=0.05)


def test_fields_have_no_mean_and_targets_fill_their_range() -> None:
    batch = next(generated("volumes", 16, train=400).train(1, 400, 0))
    assert batch.inputs["volume"].dtype == batch.targets["values"].dtype == np.float32
    assert np.abs(batch.inputs["volume"].mean((1, 2, 3))).max() < 1e-6
    targets = batch.targets["values"]
    assert targets.shape == (400, 2)
    assert (targets.min(0) < -0.95).all()
    assert (targets.max(0) > 0.95).all()
    assert np.abs(targets).mean() == pytest.approx(0.5, abs=0.03)  # The error of zeros.
    assert abs(np.corrcoef(targets.T)[0, 1]) < 0.2
