"""Datasets of real samples, each identified by its SHA-256."""

from __future__ import annotations

import importlib
from typing import cast, get_args

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.config.run import PREPARED_DATASETS
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import Batch, Dataset

__all__ = ["Batch", "Dataset", "dataset_names", "load_dataset"]

# By name: a replica imports only the module of its dataset.
_LOADERS = {
    "imagenet": ("imagenet.dataset", "load"),
    "weather_boxes": ("weather.datasets", "load_boxes"),
    "weather_masks": ("weather.datasets", "load_masks"),
}
"""Module and function of each dataset that is not loaded by ``load`` in the module of its name."""


def dataset_names() -> list[str]:
    """Return the names of the datasets that ``load_dataset`` supports."""
    return sorted(get_args(DatasetConfig.model_fields["name"].annotation))


def load_dataset(config: DatasetConfig, cores: int, engine: str = "tensorflow") -> Dataset:
    """Open the dataset that ``config`` names.

    Args:
        cores: logical CPUs that reading may use; with ``config.parallel_transforms`` it bounds
            the parallel decoding of ImageNet. The other datasets need one core.
        engine: name of the training engine, which determines the reader of ImageNet.

    Raises:
        DatasetError: the dataset's folder is missing, unreadable or damaged, or has other content;
            or a folder is given for a dataset without one.
    """
    if config.path is not None and config.name not in PREPARED_DATASETS:
        raise DatasetError(
            f"dataset.path={config.path}: dataset '{config.name}' needs no folder; omit it "
            "(--set dataset.path=null)"
        )
    module, function = _LOADERS.get(config.name, (config.name, "load"))
    load = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    # ImageNet has a reader for each engine; the other datasets return arrays.
    further = (engine,) if config.name == "imagenet" else ()
    return cast("Dataset", load(config, cores, *further))
