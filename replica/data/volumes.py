"""Synthetic Gaussian random fields on a cube, for the regression of their power spectrum.

A sample is white noise whose modes are weighted by a power spectrum k**n and scaled to the standard
deviation 2**a. Its targets are n + 2 and a, both uniform in [-1, 1). A convolutional network has to
estimate the roughness and the amplitude of a field, as for cosmological maps of matter (Mathuriya
et al. 2018 learn parameters of such spectra). Samples are generated when they are read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import generated, rng
from aiperf_hpc.replica.data.base import Floats

SLOPE = -2.0
"""Center of the sampled exponents of the spectrum."""
FORMULA = 1
"""The version of the formula; part of the SHA-256."""


def load(config: DatasetConfig, cores: int) -> generated.GeneratedDataset:
    """Return a dataset of fields, float32 (size, size, size, 1), with two targets each."""
    # One core suffices: it generates thousands of fields of 16 cells per side per second.

    def fields(part: int, chosen: NDArray[np.intp]) -> Floats:
        targets = np.stack([generated.draw_targets(part, sample) for sample in chosen.tolist()])
        return make_fields(targets, config.image_size, part, chosen)

    return generated.cube_dataset(config, FORMULA, 1, fields)


def make_fields(
    targets: NDArray[np.float64], size: int, part: int, samples: NDArray[np.intp]
) -> Floats:
    """Return the fields of several samples, float32 (samples, size, size, size, 1).

    Args:
        targets: targets of the samples, (samples, 2).
        size: cells per side.
        part: 0 for training samples, 1 for validation samples.
        samples: numbers of the samples.
    """
    cells = size**3
    noise = np.stack(
        [rng.normal(generated.noise_words(cells, part, s), cells) for s in samples.tolist()]
    )
    modes = np.fft.rfftn(noise.reshape(-1, size, size, size), axes=(1, 2, 3))
    squares, weight = generated.cube_modes(size)
    wavenumber = np.sqrt(squares)
    for mode, (slope, strength) in zip(modes, targets, strict=True):
        power = np.where(wavenumber > 0, wavenumber, np.inf) ** (SLOPE + slope)
        deviation = np.sqrt((power * weight).sum() / cells)
        mode *= np.sqrt(power) * (2.0**strength / deviation)
    fields = np.fft.irfftn(modes, (size, size, size), axes=(1, 2, 3))
    return fields.astype(np.float32)[..., None]
