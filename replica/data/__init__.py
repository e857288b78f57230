"""Datasets: real samples, each with its SHA-256."""

from __future__ import annotations

from collections.abc import Callable

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import cifar10, digits, imagenet, simulated, synthetic, volumes
from aiperf_hpc.replica.data.base import Batch, Dataset

__all__ = ["Batch", "Dataset", "dataset_names", "load_dataset"]

_LOADERS: dict[str, Callable[[DatasetConfig, int], Dataset]] = {
    "cifar10": cifar10.load,
    "digits": digits.load,
    "simulated": simulated.load,
    "synthetic": synthetic.load,
    "volumes": volumes.load,
}


def dataset_names() -> list[str]:
    """Return the names that ``load_dataset`` knows."""
    return sorted([*_LOADERS, "imagenet"])


def load_dataset(config: DatasetConfig, cores: int, engine: str = "tensorflow") -> Dataset:
    """Open the dataset that ``config`` names.

    Args:
        cores: logical CPUs that reading may use; with ``config.parallel_transforms`` it bounds
            the parallel decoding of ImageNet. The other datasets need one core.
        engine: what trains on it, which decides what reads ImageNet.

    Raises:
        DatasetError: the dataset's folder is missing, unreadable, damaged or of other content.
    """
    if config.name == "imagenet":
        return imagenet.load(config, cores, engine)
    return _LOADERS[config.name](config, cores)
