"""Prepared ImageNet folders as each engine's reader reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import Batch, tfrecord
from aiperf_hpc.replica.data.imagenet import sample_order
from aiperf_hpc.replica.data.imagenet.dataset import ImageNetDataset, load
from aiperf_hpc.replica.data.imagenet.stored_image import LabelledImage, pack, unpack
from aiperf_hpc.replica.data.sharded.dataset import (
    describe_shard,
    load_index,
    save_index,
    save_sizes,
)


def open_folder(
    folder: Path | None, *, engine: str = "torch", cores: int = 2, **values: object
) -> ImageNetDataset:
    settings = {"name": "imagenet", "path": folder, "image_size": 32, **values}
    return load(DatasetConfig.model_validate(settings), cores, engine)


def both_readers(
    folder: Path,
    **values: Any,  # noqa: ANN401 -- settings of a dataset
) -> tuple[ImageNetDataset, ImageNetDataset]:
    """Open a folder by TensorFlow's reader and by Pillow's."""
    return open_folder(folder, engine="tensorflow", **values), open_folder(folder, **values)


def agree(theirs: Iterable[Batch], ours: Iterable[Batch]) -> None:
    """Require the same samples in the same order, each with the same pixels.

    Pillow's are whole numbers. At the edges of a crop the colors differ, because TensorFlow's
    decoder does not look behind them; so half of the pixels say that it is the same crop.
    """
    for one, other in zip(theirs, ours, strict=True):
        assert np.array_equal(one.targets["label"], other.targets["label"])
        difference = pixels_of(one.inputs["image"]) - pixels_of(other.inputs["image"])
        for sample in np.abs(difference):
            assert np.median(sample) < 0.51
            assert np.quantile(sample, 0.9) < 1.5
        assert abs(difference.mean()) < 0.51


def pixels_of(inputs: ArrayLike) -> NDArray[np.float64]:
    """Undo the normalisation."""
    numbers = np.asarray(inputs, np.float64)
    pixels: NDArray[np.float64] = numbers * np.array(sample_order.STD) + np.array(sample_order.MEAN)
    return pixels


def images_of(shard: Path) -> list[LabelledImage]:
    """Return the images of a shard."""
    with shard.open("rb") as file:
        return [unpack(content) for content in tfrecord.contents(file.fileno())]


def stored_images(folder: Path, part: str) -> list[LabelledImage]:
    """Return the images of a part of a prepared folder."""
    return [image for path in sorted(folder.glob(f"{part}-*")) for image in images_of(path)]


def forge_shard(folder: Path, name: str, images: Sequence[LabelledImage]) -> None:
    """Write a shard of other images, with an index that agrees."""
    path = folder / name
    with path.open("wb") as file:
        for image in images:
            tfrecord.write_record(file, pack(image))
    index = load_index(folder, "imagenet")
    train = tuple(s if s.file != name else describe_shard(path, s.samples) for s in index.train)
    save_index(folder, index.model_copy(update={"train": train}))
    sizes = []
    for shard in index.shards:
        with (folder / shard.file).open("rb") as file:
            sizes += [len(c) + tfrecord.OVERHEAD for c in tfrecord.contents(file.fileno())]
    save_sizes(folder, sizes)
