"""Datasets made by formulas, of few small samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import Dataset, load_dataset
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.generated import GeneratedDataset
from aiperf_hpc.trial import DatasetInfo


def generated(name: str, size: int, train: int = 40) -> Dataset:
    counts = {"image_size": size, "train_samples": train, "validation_samples": 10}
    return load_dataset(DatasetConfig.model_validate({"name": name, **counts}), 1)


def some_of(whole: Batch) -> GeneratedDataset:
    """Return a dataset of the samples of a batch; its description has their number alone."""
    (number, *_), *_ = (array.shape for array in whole.inputs.values())
    info = DatasetInfo.of_labelled_images("digits", "0" * 64, (1, 1, 1), 2, number, 1)

    def make(_: int, chosen: NDArray[np.intp]) -> Batch:
        parts = {name: array[chosen] for name, array in whole.inputs.items()}
        return Batch(parts, {name: array[chosen] for name, array in whole.targets.items()})

    return GeneratedDataset(info, make)
