"""Gaussian random fields on a cube out of a formula, to learn the power spectrum of.

A sample is white noise whose modes are weighted so that their power falls as k**n, for a field of
standard deviation 2**a. Its targets are n + 2 and a, both uniform in [-1, 1): what a network of
convolutions has to find is how rough a field is and how strong, as in cosmology's maps of matter
(Mathuriya et al. 2018 learn parameters of such spectra). Samples are made when they are read.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.generated import (
    GeneratedDataset,
    cube_dataset,
    draw_targets,
    mode_counts,
    noise_words,
)

SLOPE = -2.0
"""The spectrum's exponent in the middle of what is drawn."""
FORMULA = 1
"""The version of the formula; part of the SHA-256."""

Floats = NDArray[np.float32]


def load(config: DatasetConfig, cores: int) -> GeneratedDataset:
    """Return the fields of the configured size, float32 (size, size, size, 1), and numbers."""
    del cores  # One core makes thousands of 16 cells a side in a second.

    def fields(part: int, chosen: NDArray[np.intp]) -> Floats:
        targets = np.stack([draw_targets(part, sample) for sample in chosen.tolist()])
        return make_fields(targets, config.image_size, part, chosen)

    return cube_dataset(config, FORMULA, 1, fields)


def make_fields(
    targets: NDArray[np.float64], size: int, part: int, samples: NDArray[np.intp]
) -> Floats:
    """Return the fields of some samples, float32 (samples, size, size, size, 1).

    Args:
        targets: theirs, (samples, 2).
        size: cells a side.
        part: 0 for training samples, 1 for those held out.
        samples: their numbers.
    """
    cells = size**3
    noise = np.stack([rng.normal(noise_words(cells, part, s), cells) for s in samples.tolist()])
    modes = np.fft.rfftn(noise.reshape(-1, size, size, size), axes=(1, 2, 3))
    wavenumber, weight = _wavenumbers(size)
    for mode, (slope, strength) in zip(modes, targets, strict=True):
        power = np.where(wavenumber > 0, wavenumber, np.inf) ** (SLOPE + slope)
        deviation = np.sqrt((power * weight).sum() / cells)
        mode *= np.sqrt(power) * (2.0**strength / deviation)
    fields = np.fft.irfftn(modes, (size, size, size), axes=(1, 2, 3))
    return fields.astype(np.float32)[..., None]


@lru_cache(maxsize=4)
def _wavenumbers(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return |k| of the modes of a real transform, and their ``mode_counts``."""
    whole, half = np.fft.fftfreq(size, 1.0 / size), np.fft.rfftfreq(size, 1.0 / size)
    squares = whole[:, None, None] ** 2 + whole[None, :, None] ** 2 + half[None, None, :] ** 2
    return np.sqrt(squares), np.broadcast_to(mode_counts(size), squares.shape)
