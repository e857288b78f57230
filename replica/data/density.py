"""Fields of matter density made by formulas, to learn two cosmological parameters from.

They stand in for CosmoFlow's volumes, which come from simulations of gravity: they have the same
layout (counts in cells at four redshifts, of which a network reads ln(1 + counts)) and the same
kind of targets.

A sample is a flat universe whose Omega_m and sigma_8 are drawn; n_s, h and the density of baryons
are fixed. Its linear power spectrum is k^n_s T(k)^2 with the transfer function of Eisenstein and Hu
1998 without wiggles (equations 26 and 28 to 31), of the amplitude that sigma_8 asks for. White
noise weighted by it is the field at redshift 0; at the others it is smaller by the factor of
growth (Carroll, Press and Turner 1992, equation 29). The density is its exponential, of mean 1, and
a cell's count is a normal number about the expected one, with its variance, rounded: Poisson's
distribution for many particles. Samples are made when they are read first, and kept in memory as
far as it is not much.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.generated import (
    GeneratedDataset,
    SampleCache,
    cube_dataset,
    draw_targets,
    mode_counts,
    noise_words,
)
from aiperf_hpc.replica.data.rng import Purpose

REDSHIFTS = (0.0, 0.5, 1.5, 3.0)
CELL = 16.0
"""The side of a cell, in Mpc/h: 32 of them are 512 Mpc/h."""
PARTICLES = 64.0
"""Expected in a cell."""
OMEGA_M, OMEGA_M_RANGE = 0.3, 0.2
SIGMA_8, SIGMA_8_RANGE = 0.8, 0.2
"""The middle of what is drawn, and how far it goes: that of the Quijote simulations
(Villaescusa-Navarro et al. 2020, section 2.4)."""
N_S, H, OMEGA_B_H2, T_CMB = 0.97, 0.68, 0.0224, 2.7255
FORMULA = 2
"""The version of the formulas; part of the SHA-256."""

_MOST = (1 << 15) - 1

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Counts = NDArray[np.int16]


class Universe(NamedTuple):
    """What is drawn for a sample."""

    omega_m: float
    sigma_8: float

    @classmethod
    def of(cls, targets: Doubles) -> Universe:
        """Return the universe of two targets in [-1, 1)."""
        first, second = targets.tolist()
        return cls(OMEGA_M + OMEGA_M_RANGE * first, SIGMA_8 + SIGMA_8_RANGE * second)


def load(config: DatasetConfig, cores: int) -> GeneratedDataset:
    """Return the volumes of the configured size, float32 (size, size, size, 4), and two numbers."""
    del cores  # One core makes some 60 volumes of 32 cells a side in a second, once each.
    size = config.image_size
    cache = SampleCache(
        lambda part, sample: make_counts(draw_targets(part, sample), size, part, sample),
        size**3 * len(REDSHIFTS) * np.dtype(np.int16).itemsize,
    )

    def volumes(part: int, chosen: NDArray[np.intp]) -> Floats:
        counts = np.stack([cache.get(part, each) for each in chosen.tolist()])
        return np.log1p(counts, dtype=np.float32)

    return cube_dataset(config, FORMULA, len(REDSHIFTS), volumes)


def make_counts(targets: Doubles, size: int, part: int, sample: int) -> Counts:
    """Return the counts of a sample, int16 (size, size, size, 4).

    Args:
        targets: the sample's, (2,).
        size: cells a side.
        part: 0 for training samples, 1 for those held out.
        sample: its number.
    """
    universe, cells = Universe.of(targets), size**3
    places, weight = _modes(size)
    power = _grid_power(universe, size)[places]
    noise = rng.normal(noise_words(cells, part, sample), cells).reshape(size, size, size)
    # Unit noise has the power 1 in every mode, and a field of power P(k) has P / cell volume.
    modes = np.fft.rfftn(noise) * np.sqrt(power / CELL**3)
    field = np.fft.irfftn(modes, (size, size, size), axes=(0, 1, 2))
    variance = float((power * weight).sum()) / (CELL**3 * cells)
    grown = field[..., None] * growth(universe.omega_m)
    expected = PARTICLES * np.exp(grown - variance * growth(universe.omega_m) ** 2 / 2.0)
    scatter = rng.normal(_scatter_words(expected.size, part, sample), expected.size)
    found = np.rint(expected + np.sqrt(expected) * scatter.reshape(expected.shape))
    counts: Counts = np.clip(found, 0, _MOST).astype(np.int16)
    return counts


def growth(omega_m: float) -> Doubles:
    """Return by how much less fields had grown at each redshift than by now, (4,)."""
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
    """Return T of wavenumbers in h/Mpc."""
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
    """Return P(k) at redshift 0, in (Mpc/h)^3, of wavenumbers in h/Mpc."""
    wide = np.geomspace(1e-4, 20.0, 1024)
    x = 8.0 * wide  # Spheres of 8 Mpc/h.
    window = 3.0 * (np.sin(x) - x * np.cos(x)) / x**3
    integrand = wide**3 * _shape_of(wide, universe.omega_m) * window**2 / (2.0 * math.pi**2)
    step = math.log(wide[1] / wide[0])
    amplitude = universe.sigma_8**2 / float(integrand.sum() * step)
    return amplitude * _shape_of(k, universe.omega_m)


def _shape_of(k: Doubles, omega_m: float) -> Doubles:
    found: Doubles = k**N_S * transfer(k, omega_m) ** 2
    return found


def _grid_power(universe: Universe, size: int) -> Doubles:
    """Return P by the square of a wavenumber in units of the smallest; none of the mean."""
    squares = np.arange(3 * (size // 2) ** 2 + 1)
    power = np.zeros(len(squares))
    power[1:] = power_spectrum(2.0 * math.pi * np.sqrt(squares[1:]) / (size * CELL), universe)
    return power


@lru_cache(maxsize=4)
def _modes(size: int) -> tuple[NDArray[np.intp], Doubles]:
    """Return the squares of the modes of a real transform, and their ``mode_counts``."""
    whole = np.rint(np.fft.fftfreq(size, 1.0 / size)).astype(np.intp)
    half = np.arange(size // 2 + 1)
    squares = whole[:, None, None] ** 2 + whole[None, :, None] ** 2 + half[None, None, :] ** 2
    return squares, np.broadcast_to(mode_counts(size), squares.shape)


def _scatter_words(cells: int, part: int, sample: int) -> NDArray[np.uint32]:
    return rng.halves(cells, Purpose.SCATTER, part, sample)
