"""Opening a prepared ImageNet folder, with the reader that an engine gets, and verifying it."""

from __future__ import annotations

from pathlib import Path

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.datasets import load_archives
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.imagenet import sample_order
from aiperf_hpc.replica.data.imagenet.dataset import DecodedImages, ImageNetDataset, Reader
from aiperf_hpc.replica.data.imagenet.stored_image import SIDE
from aiperf_hpc.replica.data.sharded.dataset import prepared_folder
from aiperf_hpc.replica.data.sharded.index import load_sizes, open_index, verify_shards
from aiperf_hpc.trial import DatasetInfo, TensorSpec


def load(config: DatasetConfig, cores: int, engine: str) -> ImageNetDataset:
    """Open a prepared folder; each shard's size and first bytes are checked.

    The engine ``tensorflow`` reads it by tf.data, every other one by Pillow.

    Raises:
        DatasetError: no folder is given, it was not prepared, it stores images in another format
            than the configured one, or a shard is missing, truncated or not the one that was
            prepared.
    """
    folder = prepared_folder(config)
    info, index = open_index(folder, "imagenet")
    _check_format(info, config)
    verify_shards(folder, index.shards, cores, "imagenet", whole=False)
    size = (config.image_size, config.image_size, 3)
    used = {
        "inputs": {"image": TensorSpec(shape=size)},
        "archives": load_archives(folder),
    }
    return ImageNetDataset(
        info.model_copy(update=used),
        folder,
        index,
        load_sizes(folder, index, "imagenet"),
        config.augment,
        max(1, min(config.parallel_transforms, cores)),
        _tensorflow if engine == "tensorflow" else _pillow,
        DecodedImages(int(config.decoded_gib * 2**30)),
        config.least_crop,
    )


def _check_format(info: DatasetInfo, config: DatasetConfig) -> None:
    """Require that a folder stores images in the configured format, and large enough.

    Raises:
        DatasetError: it does not.
    """
    if info.stored != config.stored:
        raise DatasetError(
            f"dataset 'imagenet': the images in {config.path} are stored as {info.stored}, and "
            f"dataset.stored is {config.stored}; pass --set dataset.stored={info.stored}"
        )
    shorter = sample_order.resized_side(config.image_size)
    if info.stored != "jpeg" and shorter > SIDE:
        raise DatasetError(
            f"dataset 'imagenet': image_size {config.image_size} needs images with a shorter side "
            f"of {shorter} pixels, and those in {config.path} are resized to {SIDE}; prepare "
            "them with --stored jpeg, or choose a smaller image_size"
        )


def verify(folder: Path, cores: int) -> None:
    """Read every byte of a prepared folder's shards and compare their SHA-256.

    Raises:
        DatasetError: naming the first shard that is not the one that was prepared.
    """
    _, index = open_index(folder, "imagenet")
    verify_shards(folder, index.shards, cores, "imagenet", whole=True)


def _tensorflow() -> Reader:
    from aiperf_hpc.replica.data.imagenet import tensorflow_reader

    return tensorflow_reader


def _pillow() -> Reader:
    from aiperf_hpc.replica.data.imagenet import pillow_reader

    return pillow_reader
