"""The published layouts of ImageNet, and its preparation as TFRecord shards.

Every image is decoded once, by a decoder that accepts the same files as the decoders of a run. Gray
and RGB JPEG files are stored unchanged; others (CMYK, PNG with a JPEG name) are converted to RGB
JPEG. Other formats of ``Options.storage_format`` resize images (``stored_image``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.replica.data.imagenet.sources import folders
from aiperf_hpc.replica.data.imagenet.sources.archives import has_archives, open_archives
from aiperf_hpc.replica.data.imagenet.sources.base import Image, ImageSource, entries
from aiperf_hpc.replica.data.imagenet.sources.parquet import open_parquet, parquet_folder
from aiperf_hpc.replica.data.sharded.preparation import prepare_shards
from aiperf_hpc.replica.data.staging import Options

__all__ = ["Image", "ImageSource", "open_source", "prepare"]


def open_source(source: Path, options: Options) -> ImageSource:
    """Detect the layout of a source and list its images.

    Raises:
        DatasetError: the layout is unknown, ambiguous or incomplete.
    """
    try:
        found = _open_source(source, options)
    except OSError as error:
        raise DatasetError(f"cannot read {error.filename or source}: {reason_of(error)}") from None
    found.storage_format = options.storage_format
    return found


def _open_source(source: Path, options: Options) -> ImageSource:
    entries(source)  # Raises the error if the folder cannot be read at all.
    if has_archives(source):
        # Preferred to files extracted next to them by torchvision: only archives have a checksum.
        return open_archives(source, options)
    kaggle = next((r for r in (source, source.parent) if _is_kaggle(r, source)), None)
    parquet = parquet_folder(source)
    found = {
        "train/": (source / "train").is_dir(),
        f"{folders.KAGGLE}/": kaggle is not None,
        "train-*.parquet": parquet is not None,
    }
    layouts = [name for name, there in found.items() if there]
    if len(layouts) > 1:
        raise DatasetError(
            f"{source} is a mixture of layouts: it has {' and '.join(layouts)}; move all but one "
            "of them away"
        )
    if kaggle is not None:
        return folders.open_kaggle(kaggle, options)
    if parquet is not None:
        return open_parquet(parquet, options)
    if layouts:
        val = source / "val"
        return folders.open_folders(
            source / "train", val, folders.label_files_of(source, val), options
        )
    raise DatasetError(
        f"{source} holds no ImageNet: expected the official archives, train/<wnid>/*.JPEG and "
        f"val/, Kaggle's {folders.KAGGLE}/, or Hugging Face's data/train-*.parquet"
    )


def _is_kaggle(root: Path, source: Path) -> bool:
    """Return whether ``source`` is Kaggle's folder ``root``, or the ILSVRC/ in it."""
    return (root / folders.KAGGLE / "train").is_dir() and source in (root, root / "ILSVRC")


prepare = partial(prepare_shards, open_source)
"""See ``prepare_shards``. Also raises DatasetError if the source has no known layout."""
