"""Datasets made by formulas, of few small samples."""

from __future__ import annotations

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import Dataset, load_dataset


def generated(name: str, size: int, train: int = 40) -> Dataset:
    counts = {"image_size": size, "train_samples": train, "validation_samples": 10}
    return load_dataset(DatasetConfig.model_validate({"name": name, **counts}), 1)
