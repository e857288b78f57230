"""Synthetic fields of matter density, for the regression of two cosmological parameters.

They replace CosmoFlow's volumes, which come from simulations of gravity. Layout (counts in cells at
four redshifts; a network reads ln(1 + counts)) and targets are of the same kind.

A sample is a flat universe with sampled Omega_m and sigma_8; n_s, h and the density of baryons are
fixed. Its linear power spectrum is k^n_s T(k)^2 with the no-wiggle transfer function of Eisenstein
and Hu 1998 (equations 26 and 28 to 31), normalized to sigma_8. The field at redshift 0 is white
noise weighted by this spectrum; the growth factor scales it to the other redshifts (Carroll, Press
and Turner 1992, equation 29). The density is the exponential of the field, normalized to mean 1. A
cell's count is a rounded normal number whose mean and variance are the expected count, which
approximates the Poisson distribution for many particles. Samples are generated when they are first
read and cached in memory up to a limit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import generated, rng
from aiperf_hpc.replica.data.base import Floats
from aiperf_hpc.replica.data.rng import Purpose

REDSHIFTS = (0.0, 0.5, 1.5, 3.0)
CELL = 16.0
"""Side of a cell in Mpc/h: 32 cells are 512 Mpc/h."""
PARTICLES = 64.0
"""Mean number of particles in a cell."""
OMEGA_M, OMEGA_M_RANGE = 0.3, 0.2
SIGMA_8, SIGMA_8_RANGE = 0.8, 0.2
"""Center and half-width of the sampled intervals, as in the Quijote simulations
(Villaescusa-Navarro et al. 2020, section 2.4)."""
N_S, H, OMEGA_B_H2, T_CMB = 0.97, 0.68, 0.0224, 2.7255
FORMULA = 2
"""Version of the formulas, part of the SHA-256."""

_MOST = (1 << 15) - 1

Doubles = NDArray[np.float64]
Counts = NDArray[np.int16]


class Universe(NamedTuple):
    """Sampled parameters of a universe."""

    omega_m: float
    sigma_8: float

    @classmethod
    def of(cls, targets: Doubles) -> Universe:
        """Return the universe for two targets in [-1, 1)."""
        first, second = targets.tolist()
        return cls(OMEGA_M + OMEGA_M_RANGE * first, SIGMA_8 + SIGMA_8_RANGE * second)


def load(config: DatasetConfig, cores: int) -> generated.GeneratedDataset:
    """Return a dataset of volumes, float32 (size, size, size, 4), with two targets each."""
    # One core suffices: it generates about 60 volumes of 32 cells per side per second, once each.
    size = config.image_size
    cache = generated.SampleCache(
        lambda part, sample: make_counts(generated.draw_targets(part, sample), size, part, sample),
        size**3 * len(REDSHIFTS) * np.dtype(np.int16).itemsize,
    )

    def volumes(part: int, chosen: NDArray[np.intp]) -> Floats:
        counts = np.stack([cache.get(part, each) for each in chosen.tolist()])
        return np.log1p(counts, dtype=np.float32)

    return generated.cube_dataset(config, FORMULA, len(REDSHIFTS), volumes)


def make_counts(targets: Doubles, size: int, part: int, sample: int) -> Counts:
    """Return the counts of a sample, int16 (size, size, size, 4).

    Args:
        targets: targets of the sample, (2,).
        size: cells per side.
        part: 0 for training samples, 1 for validation samples.
        sample: number of the sample.
    """
    universe, cells = Universe.of(targets), size**3
    places, weight = generated.cube_modes(size)
    power = _grid_power(universe, size)[places]
    noise = rng.normal(generated.noise_words(cells, part, sample), cells).reshape(size, size, size)
    # Unit noise has power 1 in every mode; a field of power P(k) has P / cell volume.
    modes = np.fft.rfftn(noise) * np.sqrt(power / CELL**3)
    field = np.fft.irfftn(modes, (size, size, size), axes=(0, 1, 2))
    variance = float((power * weight).sum()) / (CELL**3 * cells)
    grown = field[..., None] * growth(universe.omega_m)
    expected = PARTICLES * np.exp(grown - variance * growth(universe.omega_m) ** 2 / 2.0)
    words = rng.halves(expected.size, Purpose.SCATTER, part, sample)
    scatter = rng.normal(words, expected.size)
    found = np.rint(expected + np.sqrt(expected) * scatter.reshape(expected.shape))
    counts: Counts = np.clip(found, 0, _MOST).astype(np.int16)
    return counts


def growth(omega_m: float) -> Doubles:
    """Return the growth factor at each redshift relative to redshift 0, (4,)."""
    redshifts = np.array(REDSHIFTS)
    return _growth_at(omega_m, redshifts) / _growth_at(omega_m, np.zeros(1))


def _growth_at(omega_m: float, redshifts: Doubles) -> Doubles:
    matter = omega_m * (1.0 + redshifts) ** 3
    matter = matter / (matter + 1.0 - omega_m)
    dark = 1.0 - matter
    divisor = matter ** (4.0 / 7.0) - dark + (1.0 + matter / 2.0) * (1.0 + dark / 70.0)
    found: Doubles = 2.5 * matter / divisor / (1.0 + redshifts)
    return found


def transfer(k: Doubles, omega_m: float) -> Doubles:
    """Return the transfer function T(k) at wavenumbers in h/Mpc."""
    omega_m_h2 = omega_m * H**2
    baryons = OMEGA_B_H2 / omega_m_h2
    sound = 44.5 * math.log(9.83 / omega_m_h2) / math.sqrt(1.0 + 10.0 * OMEGA_B_H2**0.75)
    alpha = (
        1.0
        - 0.328 * math.log(431.0 * omega_m_h2) * baryons
        + 0.38 * math.log(22.3 * omega_m_h2) * baryons**2
    )
    shape = omega_m * H * (alpha + (1.0 - alpha) / (1.0 + (0.43 * k * H * sound) ** 4))
    q = k * (T_CMB / 2.7) ** 2 / shape
    logarithm = np.log(2.0 * math.e + 1.8 * q)
    found: Doubles = logarithm / (logarithm + (14.2 + 731.0 / (1.0 + 62.5 * q)) * q**2)
    return found


def power_spectrum(k: Doubles, universe: Universe) -> Doubles:
    """Return P(k) at redshift 0, in (Mpc/h)^3, at wavenumbers in h/Mpc."""
    wide = np.geomspace(1e-4, 20.0, 1024)
    x = 8.0 * wide  # Spheres of 8 Mpc/h.
    window = 3.0 * (np.sin(x) - x * np.cos(x)) / x**3
    integrand = wide**3 * _shape_of(wide, universe.omega_m) * window**2 / (2.0 * math.pi**2)
    step = math.log(wide[1] / wide[0])
    amplitude = universe.sigma_8**2 / float(integrand.sum() * step)
    return amplitude * _shape_of(k, universe.omega_m)


def _shape_of(k: Doubles, omega_m: float) -> Doubles:
    return k**N_S * transfer(k, omega_m) ** 2


def _grid_power(universe: Universe, size: int) -> Doubles:
    """Return P by the squared wavenumber in units of the smallest; zero for the mean."""
    squares = np.arange(3 * (size // 2) ** 2 + 1)
    power = np.zeros(len(squares))
    power[1:] = power_spectrum(2.0 * math.pi * np.sqrt(squares[1:]) / (size * CELL), universe)
    return power
