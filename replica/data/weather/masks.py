"""Weather with a mask of cyclones and atmospheric rivers: what DeepCAM's network learns from.

The channels are those of DeepCAM's samples, in its order, and so are the mask's classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data.generated import GeneratedDataset
from aiperf_hpc.replica.data.weather.phenomena import Kind, Mask, Phenomenon
from aiperf_hpc.replica.data.weather.samples import Integers, Marks, height_of, load_weather
from aiperf_hpc.trial import TensorSpec

CHANNELS = (
    "TMQ", "U850", "V850", "UBOT", "VBOT", "QREFHT", "PS", "PSL",
    "T200", "T500", "PRECT", "TS", "TREFHT", "Z1000", "Z200", "ZBOT",
)  # fmt: skip
MASK = "mask"
CLASSES = {Kind.RIVER: 2, Kind.CYCLONE: 1}
"""The numbers of what is marked, 0 being the background. The last is what cells of both are."""


def load(config: DatasetConfig, cores: int) -> GeneratedDataset:
    """Return maps, float32 (size, 3/2 size, 16), and each cell's class, int32 (size, 3/2 size)."""
    del cores  # One core makes some 20 maps of 96 rows in a second, once each.
    height = height_of(config)
    spec = TensorSpec(shape=(height, height * 3 // 2), dtype="int32")
    marks = Marks(MASK, spec, mask, read=False, classes=1 + len(CLASSES))
    return load_weather(config, CHANNELS, marks, weaker=False)


def mask(planted: Sequence[Phenomenon], marked: Sequence[Mask]) -> Integers:
    """Return each cell's class, int32 (height, width)."""
    found = np.zeros(marked[0].shape, np.int32)
    for kind, number in CLASSES.items():
        for each, cells in zip(planted, marked, strict=True):
            if each.kind is kind:
                found[cells] = number
    return found
