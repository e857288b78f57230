"""Weather in HDF5, and PyTorch's DataLoader over it: for benchmarks/workload_input.py.

The loaders are written as references have theirs: a sample is read by h5py, scaled by numpy, and
brought to this process by a worker of the loader; with a worker a core, and with none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from input_case import FILES, PREPARED, Case, ours
from numpy.typing import NDArray

from aiperf_hpc.replica.data import deepcam, extremeweather
from aiperf_hpc.replica.data.staging import Options

BATCH, TRAINING, HELD_OUT, CHANNELS = 2, 24, 1, 16
DATA, LABELS = "climate/data", "climate/labels_0"
BOX = (8, 8, 24, 24, 1)
LOADERS: list[Any] = []
"""Loaders that were made: their workers live as long as they do."""
Floats = NDArray[np.float32]


def lay_out_deepcam(folder: Path, height: int) -> None:
    """Write files of a map each, the same numbers in all, and prepare them."""
    source, shape = folder / FILES, (height, height * 3 // 2)
    fields = np.random.default_rng(0).random((*shape, CHANNELS), np.float32)
    for part, number in (("train", TRAINING), ("validation", HELD_OUT)):
        (source / part).mkdir(parents=True)
        for place in range(number):
            with h5py.File(source / part / f"data-{place:04d}.h5", "w") as file:
                file[DATA], file[LABELS] = fields, np.zeros(shape, np.int64)
    with h5py.File(source / "stats.h5", "w") as file:
        file["climate/minval"] = np.zeros(CHANNELS, np.float32)
        file["climate/maxval"] = np.ones(CHANNELS, np.float32)
    deepcam.prepare(source, folder / PREPARED, Options(cores=2))


def lay_out_extreme_weather(folder: Path, height: int) -> None:
    """Write two years of a few maps, the same numbers in all, and prepare them."""
    source = folder / FILES
    source.mkdir()
    fields = np.random.default_rng(0).random((CHANNELS, height, height * 3 // 2), np.float32)
    fields *= 1e-6  # So little that any quantity may be it.
    boxes = np.full((15, 5), -1.0, np.float32)
    boxes[0] = BOX
    for year, maps in ((1979, TRAINING), (1980, HELD_OUT)):
        with h5py.File(source / f"climo_{year}.h5", "w") as file:
            file.create_dataset("images", (maps, *fields.shape), np.float32)
            file["boxes"] = np.broadcast_to(boxes, (maps, *boxes.shape))
            for place in range(maps):
                file["images"][place] = fields
    extremeweather.prepare(source, folder / PREPARED, Options(cores=2))


class MapFiles:
    """DeepCAM's maps. [mlcommons/hpc, deepcam/src/deepCam/data/cam_hdf5_dataset.py]"""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted((folder / "train").glob("*.h5"))
        with h5py.File(folder / "stats.h5", "r") as file:
            self._shift = file["climate/minval"][...]
            self._scale = 1.0 / (file["climate/maxval"][...] - self._shift)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> tuple[Floats, NDArray[np.int64]]:
        with h5py.File(self._paths[place], "r") as file:
            data, labels = file[DATA][...], file[LABELS][...]
        return self._scale * (data - self._shift), labels.astype(np.int64)


class YearOfMaps:
    """Extreme Weather's maps of a year, scaled as ours are."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "climo_1979.h5"
        self._file: Any = None
        self._low = np.zeros((CHANNELS, 1, 1), np.float32)
        self._factor = np.ones((CHANNELS, 1, 1), np.float32)

    def __len__(self) -> int:
        return TRAINING

    def __getitem__(self, place: int) -> tuple[Floats, Floats]:
        if self._file is None:  # Opened by the worker: HDF5 lets no two processes share a file.
            self._file = h5py.File(self._path, "r")
        fields, boxes = self._file["images"][place], self._file["boxes"][place]
        return (fields - self._low) * self._factor, boxes


Maps = MapFiles | YearOfMaps


def loader(dataset: type[Maps], workers: int, folder: Path) -> Iterator[int]:
    """Read a dataset by a DataLoader."""
    from torch.utils.data import DataLoader

    made: Any = dataset(folder / FILES)
    loading = DataLoader(
        made, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    LOADERS.append(loading)
    for fields, _ in loading:
        yield len(fields)


def _case(name: str, dataset: type[Maps], lay_out: Callable[[Path, int], None]) -> Case:
    cores = len(os.sched_getaffinity(0))
    return Case(
        768,
        BATCH,
        lay_out,
        {
            "ours": partial(ours, name, BATCH),
            f"DataLoader, {cores} workers": partial(loader, dataset, cores),
            "DataLoader, no worker": partial(loader, dataset, 0),
        },
    )


CASES = {
    "deepcam": _case("deepcam", MapFiles, lay_out_deepcam),
    "extreme-weather": _case("extremeweather", YearOfMaps, lay_out_extreme_weather),
}
