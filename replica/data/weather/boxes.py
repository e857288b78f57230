"""Weather with a box about each cyclone and river: what Extreme Weather Analytics learns from.

The channels are those of the ExtremeWeather dataset (Racah et al. 2017), in its order, and so are
its boxes: first row, first column, the row behind the last and the column behind the last, class;
rows of -1 where there are fewer. Longitude goes round, and boxes do not: what lies across the seam
has the box of the side that its middle is on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data.generated import GeneratedDataset
from aiperf_hpc.replica.data.weather.phenomena import AROUND, Mask, Phenomenon
from aiperf_hpc.replica.data.weather.samples import Integers, Marks, load_weather
from aiperf_hpc.trial import TensorSpec

CHANNELS = (
    "PRECT", "PS", "PSL", "QREFHT", "T200", "T500", "TMQ", "TREFHT",
    "TS", "U850", "UBOT", "V850", "VBOT", "Z100", "Z200", "ZBOT",
)  # fmt: skip
BOXES = "boxes"
MOST_BOXES = 15
"""Rows for boxes of a sample, as the dataset has them."""
NONE = -1
"""What stands in the rows that no box is in."""


def load(config: DatasetConfig, cores: int) -> GeneratedDataset:
    """Return maps, float32 (size, 3/2 size, 16), and their boxes, int32 (15, 5)."""
    del cores  # One core makes some 20 maps of 96 rows in a second, once each.
    spec = TensorSpec(shape=(MOST_BOXES, 5), dtype="int32")
    return load_weather(config, CHANNELS, Marks(BOXES, spec, boxes, read=True), weaker=True)


def boxes(planted: Sequence[Phenomenon], marked: Sequence[Mask]) -> Integers:
    """Return the boxes of a sample, int32 (15, 5)."""
    found = np.full((MOST_BOXES, 5), NONE, np.int32)
    for row, each, cells in zip(found, planted, marked, strict=False):
        row[:] = (*box(cells, each.along / AROUND), int(each.kind))
    return found


def box(cells: Mask, middle: float) -> tuple[int, int, int, int]:
    """Return the box of marked cells, (top, left, bottom, right), the latter two behind the last.

    Args:
        cells: (height, width).
        middle: where it is along the width, as a share of it; its cells are the nearer ones there.
    """
    width = cells.shape[1]
    rows, columns = (np.flatnonzero(cells.any(axis)) for axis in (1, 0))
    first = round(middle % 1.0 * width) - width // 2
    near = (columns - first) % width + first
    left, right = max(0, int(near.min())), min(width, int(near.max()) + 1)
    return int(rows[0]), left, int(rows[-1]) + 1, right
