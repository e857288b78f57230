"""Phenomena in a sample's weather: location, contribution to the fields, and extent.

Locations are in degrees: latitude from -90 to 90, and 0 to 270 along a parallel, because maps have
square cells and are 1.5 times as wide as high. Longitude is periodic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.base import Floats
from aiperf_hpc.replica.data.rng import Purpose

HEIGHT, AROUND = 180.0, 270.0
"""Size of a map in degrees from south to north, and around."""
HOLLAND_B = 1.5
"""Shape parameter of a cyclone's profile (Holland 1980, equation 2)."""
EDGE = 2.2
"""Radius of the cells marked as a cyclone, in radii of maximum wind."""
RIVER_EDGE = 0.4
"""Fraction of a river's peak above which cells are marked."""
_RIVER_POINTS = 48
_WORDS = 96

Mask = NDArray[np.bool_]
Range = tuple[float, float]


class Kind(IntEnum):
    """Classes of the ExtremeWeather dataset, with its numbers (Racah et al. 2017)."""

    DEPRESSION = 0
    CYCLONE = 1
    EXTRATROPICAL = 2
    RIVER = 3


class Map(NamedTuple):
    """Coordinates of a map's cells in degrees, south first."""

    latitude: Floats
    """Latitudes of the rows, (height, 1)."""
    along: Floats
    """Positions of the columns along a parallel, (1, width)."""

    @classmethod
    def of(cls, height: int) -> Map:
        """Return a map of ``height`` rows and 1.5 times as many columns."""
        width = height * 3 // 2
        rows, columns = (np.arange(n, dtype=np.float32) + 0.5 for n in (height, width))
        return cls((rows * (HEIGHT / height) - 90.0)[:, None], (columns * (AROUND / width))[None])

    def east_of(self, place: float) -> Floats:
        """Return each column's distance to the east of a place by the shorter way, (1, width)."""
        return (self.along - np.float32(place) + AROUND / 2) % AROUND - AROUND / 2


@dataclass(frozen=True, slots=True)
class Cyclone:
    """A low with wind around it, tropical or extratropical."""

    kind: Kind
    latitude: float
    along: float
    """Location in degrees along a parallel."""
    radius: float
    """Radius of maximum wind in degrees."""
    depth: float
    """Pressure deficit at the center in hPa."""

    def plant(self, cells: Map) -> tuple[dict[str, Floats], Mask]:
        """Return its contributions to the fields, by their names, and its marked cells."""
        north, east = cells.latitude - np.float32(self.latitude), cells.east_of(self.along)
        away = np.sqrt(north**2 + east**2)
        # At least half a cell, in case the center of a cell is that of the cyclone.
        away = np.maximum(away, np.float32(HEIGHT / len(cells.latitude) / 2))
        ratio = (self.radius / away) ** HOLLAND_B
        deficit = self.depth * (1.0 - np.exp(-ratio))
        wind = 4.5 * math.sqrt(self.depth) * np.sqrt(ratio * np.exp(1.0 - ratio))
        turning = wind / away * math.copysign(1.0, self.latitude)
        eastward, northward = -turning * north, turning * east
        core = np.exp(-((away / (1.5 * self.radius)) ** 2) / 2.0)
        added = {
            "PSL": -100.0 * deficit,
            "PS": -97.0 * deficit,
            "Z1000": -8.0 * deficit,
            "U850": eastward,
            "V850": northward,
            "UBOT": 0.8 * eastward,
            "VBOT": 0.8 * northward,
            **{name: factor * core for name, factor in self._core().items()},
        }
        return added, away < max(EDGE * self.radius, HEIGHT / len(cells.latitude))

    def _core(self) -> dict[str, float]:
        """Return the peaks of the warm, moist and rainy core by the names of fields."""
        if self.kind is Kind.EXTRATROPICAL:
            return {"PRECT": 0.8e-7, "T500": -3.0, "TMQ": 3.0}
        strength = self.depth / 50.0
        return {
            "TMQ": 16.0 * strength,
            "PRECT": 2.4e-7 * strength,
            "T500": 5.0 * strength,
            "T200": 4.0 * strength,
            "QREFHT": 0.002 * strength,
        }


@dataclass(frozen=True, slots=True)
class River:
    """A long band of moist air from the tropics toward a pole."""

    latitude: float
    """Latitude of the start; the end and the bend are closer to the same pole."""
    along: float
    """Location of the middle, in degrees along a parallel."""
    end: float
    """Latitude of the end."""
    reach: float
    """Distance of the end to the east of the start in degrees; negative to the west."""
    bend: float
    """Sideways bend in degrees."""
    width: float
    """Standard deviation of the cross-section in degrees."""

    @property
    def kind(self) -> Kind:
        return Kind.RIVER

    def plant(self, cells: Map) -> tuple[dict[str, Floats], Mask]:
        away = np.full((cells.latitude.size, cells.along.size), np.inf, np.float32)
        for latitude, along in zip(*self._course(), strict=True):
            np.minimum(away, (cells.latitude - latitude) ** 2 + cells.east_of(along) ** 2, out=away)
        band = np.exp(-away / (2.0 * self.width**2))
        north, east = self.end - self.latitude, self.reach
        wind = 14.0 / math.hypot(north, east) * band
        added = {
            "TMQ": 22.0 * band,
            "PRECT": 0.6e-7 * band,
            "QREFHT": 0.003 * band,
            "U850": wind * east,
            "V850": wind * north,
            "UBOT": 0.8 * wind * east,
            "VBOT": 0.8 * wind * north,
        }
        return added, band > RIVER_EDGE

    def _course(self) -> tuple[Floats, Floats]:
        """Return points of its path, a parabola: latitudes, and degrees along a parallel."""
        share = np.linspace(0.0, 1.0, _RIVER_POINTS, dtype=np.float32)
        latitude = self.latitude + share * (self.end - self.latitude)
        aside = 4.0 * self.bend * share * (1.0 - share)
        return latitude, self.along + (share - 0.5) * self.reach + aside


Phenomenon = Cyclone | River
"""A phenomenon that is embedded in weather and to be detected."""


def draw(part: int, sample: int, *, weaker: bool) -> list[Phenomenon]:
    """Return the phenomena of a sample: one to four cyclones, and up to two rivers.

    Args:
        part: 0 for training samples, 1 for validation samples.
        sample: number of the sample.
        weaker: whether to add up to two depressions and up to two extratropical cyclones.
    """
    drawn = iter((phenomenon_words(part, sample) / 2.0**64).tolist())
    cyclones, depressions, lows = (int(next(drawn) * n) for n in (4, 3, 3))
    rivers = sum(next(drawn) < 0.5 for _ in range(2))
    found: list[Phenomenon] = []
    tropics, middle = (15.0, 40.0), (45.0, 65.0)
    for _ in range(1 + cyclones):
        found.append(_cyclone(Kind.CYCLONE, tropics, 1.0, (30.0, 70.0), drawn))
    found += [_river(drawn) for _ in range(rivers)]
    if weaker:
        for _ in range(depressions):
            found.append(_cyclone(Kind.DEPRESSION, tropics, 1.0, (10.0, 20.0), drawn))
        for _ in range(lows):
            found.append(_cyclone(Kind.EXTRATROPICAL, middle, 3.0, (20.0, 45.0), drawn))
    return found


def phenomenon_words(part: int, sample: int) -> NDArray[np.uint64]:
    """Return the random words of a sample's phenomena."""
    return rng.words(_WORDS, Purpose.TARGET, part, sample)


def _between(least: float, most: float, drawn: Iterator[float]) -> float:
    return least + (most - least) * next(drawn)


def _hemisphere(drawn: Iterator[float]) -> float:
    return math.copysign(1.0, next(drawn) - 0.5)


def _cyclone(
    kind: Kind, latitudes: Range, size: float, depths: Range, drawn: Iterator[float]
) -> Cyclone:
    return Cyclone(
        kind,
        latitude=_hemisphere(drawn) * _between(*latitudes, drawn),
        along=_between(0.0, AROUND, drawn),
        radius=size * _between(2.2, 4.3, drawn),
        depth=_between(*depths, drawn),
    )


def _river(drawn: Iterator[float]) -> River:
    side = _hemisphere(drawn)
    return River(
        latitude=20.0 * side,
        along=_between(0.0, AROUND, drawn),
        end=side * _between(45.0, 60.0, drawn),
        reach=_between(25.0, 60.0, drawn) * _hemisphere(drawn),
        bend=_between(-10.0, 10.0, drawn),
        width=_between(3.0, 4.5, drawn),
    )
