"""Files of public benchmarks and their readers, for benchmarks/workload_input.py.

tf.data is written as CosmoFlow's reference has it (records, a parallel map of parse, decode and
log1p, a batch, a prefetch), and with records read in parallel, which the reference does not. The
DataLoader is written as DeepCAM's reference has it: a sample is read by h5py, scaled by numpy, and
brought to this process by a worker of the loader; with a worker a core, and with none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import cosmoflow, deepcam, density, load_dataset
from aiperf_hpc.replica.data.cosmoflow import Sample, read_sample
from aiperf_hpc.replica.data.generated import draw_targets
from aiperf_hpc.replica.data.staging import Options

FILES, PREPARED = "files", "prepared"
"""The folders of a case: what a benchmark is given, and what is made of it."""

Reader = Callable[[Path], Iterator[int]]
"""Takes the folder of both; yields the samples of each batch."""


class Case(NamedTuple):
    """Files of one benchmark."""

    size: int
    """A volume's side, or a map's rows, in the official files."""
    batch: int
    lay_out: Callable[[Path, int], None]
    """Writes the files of samples of a size, and prepares them."""
    readers: Mapping[str, Reader]


def ours(dataset: str, batch: int, folder: Path) -> Iterator[int]:
    """Read the prepared shards."""
    config = DatasetConfig(name=dataset, path=folder / PREPARED)
    for read in load_dataset(config, len(os.sched_getaffinity(0))).train(1, batch, 0):
        yield read.size


VOLUMES, DISTINCT, TRAINING = 4, 2, 64


def lay_out_cosmoflow(folder: Path, side: int, *, compressed: bool) -> None:
    """Write volumes as TFRecord files, a few of them again and again, and prepare them."""
    from tests.support.official_files import sample_file

    made = [sample_file(_sample(n, side), compressed=compressed) for n in range(DISTINCT)]
    for part, number in (("train", TRAINING), ("validation", 1)):
        (folder / FILES / part).mkdir(parents=True)
        for place in range(number):
            path = folder / FILES / part / f"univ_{place:03d}.tfrecord"
            path.write_bytes(made[place % DISTINCT])
    cosmoflow.prepare(folder / FILES, folder / PREPARED, Options(shards=1, cores=2))


def _sample(number: int, side: int) -> Sample:
    targets = draw_targets(0, number)
    counts = density.make_counts(targets, side, 0, number)
    return Sample(counts, np.array([*targets, 0.0, 0.0], np.float32))


def tf_data(folder: Path, *, compressed: bool, parallel: bool) -> Iterator[int]:
    """Read the files as mlcommons/hpc, cosmoflow/data/cosmo.py does."""
    from aiperf_hpc.replica.tensorflow_import import tf

    wanted = {
        "x": tf.io.FixedLenFeature([], tf.string),
        "y": tf.io.FixedLenFeature([4], tf.float32),
    }
    files = sorted((folder / FILES / "train").iterdir())
    shape = read_sample(files[0].read_bytes()).counts.shape

    def parsed(record: object) -> tuple[Any, Any]:
        features = tf.io.parse_single_example(record, wanted)
        counts = tf.reshape(tf.io.decode_raw(features["x"], tf.int16), shape)
        return tf.math.log(tf.cast(counts, tf.float32) + 1.0), features["y"]

    records = tf.data.TFRecordDataset(
        tf.data.Dataset.from_tensor_slices(list(map(str, files))).shuffle(len(files)),
        compression_type="GZIP" if compressed else "",
        num_parallel_reads=tf.data.AUTOTUNE if parallel else None,
    )
    batches = records.map(parsed, num_parallel_calls=tf.data.AUTOTUNE).batch(VOLUMES)
    for volumes, _ in batches.prefetch(4):
        yield int(volumes.shape[0])


MAPS, CHANNELS = 2, 16
DATA, LABELS = "climate/data", "climate/labels_0"
LOADERS: list[Any] = []
"""Loaders that were made: their workers live as long as they do."""
Floats = NDArray[np.float32]


def lay_out_deepcam(folder: Path, height: int) -> None:
    """Write files of a map each, the same numbers in all, and prepare them."""
    source, shape = folder / FILES, (height, height * 3 // 2)
    fields = np.random.default_rng(0).random((*shape, CHANNELS), np.float32)
    for part, number in (("train", 24), ("validation", 1)):
        (source / part).mkdir(parents=True)
        for place in range(number):
            with h5py.File(source / part / f"data-{place:04d}.h5", "w") as file:
                file[DATA], file[LABELS] = fields, np.zeros(shape, np.int64)
    with h5py.File(source / "stats.h5", "w") as file:
        file["climate/minval"] = np.zeros(CHANNELS, np.float32)
        file["climate/maxval"] = np.ones(CHANNELS, np.float32)
    deepcam.prepare(source, folder / PREPARED, Options(cores=2))


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


def loader(workers: int, folder: Path) -> Iterator[int]:
    """Read the maps with a DataLoader."""
    from torch.utils.data import DataLoader

    maps: Any = MapFiles(folder / FILES)
    loading = DataLoader(
        maps, MAPS, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    LOADERS.append(loading)
    for fields, _ in loading:
        yield len(fields)


def _cosmoflow(*, compressed: bool) -> Case:
    readers: dict[str, Reader] = {
        "ours": partial(ours, "cosmoflow", VOLUMES),
        "tf.data": partial(tf_data, compressed=compressed, parallel=False),
        "tf.data, parallel reads": partial(tf_data, compressed=compressed, parallel=True),
    }
    return Case(128, VOLUMES, partial(lay_out_cosmoflow, compressed=compressed), readers)


CORES = len(os.sched_getaffinity(0))
DEEPCAM: dict[str, Reader] = {
    "ours": partial(ours, "deepcam", MAPS),
    f"DataLoader, {CORES} workers": partial(loader, CORES),
    "DataLoader, no worker": partial(loader, 0),
}
CASES = {
    "cosmoflow": _cosmoflow(compressed=False),
    "cosmoflow-gzip": _cosmoflow(compressed=True),
    "deepcam": Case(768, MAPS, lay_out_deepcam, DEEPCAM),
}
