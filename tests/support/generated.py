"""Datasets made by formulas, of few small samples."""

from __future__ import annotations

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import Dataset, load_dataset


def generated(name: str, size: int, train: int = 40, validation: int = 10) -> Dataset:
    counts = {"train_samples": train, "validation_samples": validation}
    return load_dataset(
        DatasetConfig.model_validate({"name": name, "image_size": size, **counts}), 1
    )
