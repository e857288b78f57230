"""The fields of a sample's weather: background and embedded phenomena.

A field is a latitude profile plus a Gaussian random field with a power spectrum of k^-3 or k^-2.5,
as at the atmosphere's large scales (Nastrom and Gage 1985). Values are in the quantity's usual unit
and are scaled to about 0 to 1 by bounds that are equal for all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import Floats
from aiperf_hpc.replica.data.generated import mode_counts
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.data.weather.phenomena import Map, Mask, Phenomenon

FORMULA = 1
"""Version of the formulas, part of the SHA-256."""


class Channel(NamedTuple):
    """A quantity: its background, and its values that are scaled to 0 and 1."""

    equator: float
    pole: float
    deviation: float
    """Standard deviation from the profile."""
    low: float
    high: float
    slope: float = 3.0
    """Negative exponent of the wavenumber in the power spectrum."""


CHANNELS = {
    "TMQ": Channel(45.0, 5.0, 4.0, 0.0, 70.0, 2.5),
    "U850": Channel(-5.0, 5.0, 5.0, -35.0, 35.0, 2.5),
    "V850": Channel(0.0, 0.0, 5.0, -35.0, 35.0, 2.5),
    "UBOT": Channel(-4.0, 3.0, 4.0, -30.0, 30.0, 2.5),
    "VBOT": Channel(0.0, 0.0, 4.0, -30.0, 30.0, 2.5),
    "QREFHT": Channel(0.018, 0.002, 0.001, 0.0, 0.025, 2.5),
    "PS": Channel(98_000.0, 96_500.0, 450.0, 91_000.0, 101_000.0),
    "PSL": Channel(101_100.0, 100_300.0, 450.0, 94_000.0, 103_000.0),
    "T200": Channel(220.0, 215.0, 2.0, 205.0, 232.0),
    "T500": Channel(268.0, 240.0, 2.0, 230.0, 280.0),
    "PRECT": Channel(0.6e-7, 0.2e-7, 0.2e-7, 0.0, 4.0e-7, 2.5),
    "TS": Channel(301.0, 250.0, 2.0, 240.0, 312.0),
    "TREFHT": Channel(300.0, 249.0, 2.0, 240.0, 310.0),
    "Z1000": Channel(110.0, 60.0, 36.0, -400.0, 250.0),
    "Z200": Channel(12_400.0, 11_200.0, 60.0, 10_900.0, 12_700.0),
    "Z100": Channel(16_600.0, 15_900.0, 60.0, 15_600.0, 16_900.0),
    "ZBOT": Channel(65.0, 55.0, 1.0, 50.0, 70.0),
}
"""Quantities of both replaced datasets by their names: total precipitable water in kg/m^2, winds in
m/s, humidity, pressures in Pa, temperatures in K, precipitation in m/s, heights in m."""
_NUMBER = {name: number for number, name in enumerate(CHANNELS)}


def make_fields(
    names: Sequence[str], height: int, part: int, sample: int, planted: Sequence[Phenomenon]
) -> tuple[Floats, list[Mask]]:
    """Return a sample's scaled fields, float32 (height, width, channels), and marked cells.

    Args:
        names: names of the channels, in their order.
        height: number of rows, which must be even; the number of columns is 1.5 times as large.
        part: 0 for training samples, 1 for validation samples.
        sample: number of the sample.
        planted: phenomena that are added to the fields.

    Returns:
        The fields, and the cells of each phenomenon, (height, width), in the phenomena's order.
    """
    cells, marked = Map.of(height), []
    fields = {name: _background(name, cells, part, sample) for name in names}
    for each in planted:
        added, mask = each.plant(cells)
        marked.append(mask)
        for name in fields.keys() & added.keys():
            fields[name] += added[name]
    stacked: Floats = np.stack([_scaled(fields[name], CHANNELS[name]) for name in names], axis=-1)
    return stacked, marked


def field_words(name: str, cells: int, part: int, sample: int) -> NDArray[np.uint32]:
    """Return the random words of a channel's field."""
    return rng.halves(cells, Purpose.FIELD, part, sample, _NUMBER[name])


def _scaled(field: Floats, channel: Channel) -> Floats:
    factor = np.float32(1.0 / (channel.high - channel.low))
    return ((field - np.float32(channel.low)) * factor).astype(np.float32)


def _background(name: str, cells: Map, part: int, sample: int) -> Floats:
    channel, height, width = CHANNELS[name], cells.latitude.size, cells.along.size
    words = field_words(name, height * width, part, sample)
    noise = rng.normal(words, height * width).reshape(height, width).astype(np.float32)
    modes = np.fft.rfft2(noise) * _amplitude(height, width, channel.slope)
    profile = channel.pole + (channel.equator - channel.pole) * np.cos(np.radians(cells.latitude))
    about = channel.deviation * np.fft.irfft2(modes, (height, width))
    field: Floats = (profile + about).astype(np.float32)
    return field


@lru_cache(maxsize=8)
def _amplitude(height: int, width: int, slope: float) -> Floats:
    """Return factors for the modes of unit noise that yield a field of variance 1 and mean 0."""
    north, east = np.fft.fftfreq(height), np.fft.rfftfreq(width)
    squares = north[:, None] ** 2 + east[None] ** 2
    squares[0, 0] = np.inf
    power = squares ** (-slope / 2.0)
    mean = float((power * mode_counts(width)).sum()) / (height * width)
    amplitude: Floats = np.sqrt(power / mean).astype(np.float32)
    return amplitude
