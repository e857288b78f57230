"""One rank's part of a dataset's batches."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.data.base import Batch, Dataset, Part
from aiperf_hpc.trial import DatasetInfo


class RankDataset:
    """This rank's part of every batch: as many batches as on every other rank."""

    def __init__(self, dataset: Dataset, part: Part) -> None:
        self._dataset = dataset
        self._part = part

    @property
    def info(self) -> DatasetInfo:
        """What the whole dataset is."""
        return self._dataset.info

    def train(self, epoch: int, batch_size: int, seed: int) -> Iterator[Batch]:
        """Yield this rank's part of every batch of an epoch."""
        batches = self._dataset.train(epoch, batch_size, seed, self._part)
        return self._parts(batches, self.info.train_samples, batch_size)

    def validation(self, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's part of every batch of the validation samples."""
        batches = self._dataset.validation(batch_size, self._part)
        return self._parts(batches, self.info.validation_samples, batch_size)

    def _parts(self, batches: Iterator[Batch], samples: int, batch_size: int) -> Iterator[Batch]:
        """Yield a part of every batch of an epoch, empty where this rank has no sample in it."""
        for start in range(0, samples, batch_size):
            whole = min(batch_size, samples - start)
            first, last = self._part.bounds(whole)
            if first == last:
                yield Batch({}, {}, whole)
                continue
            batch = next(batches, None)
            if batch is None or batch.size != last - first:
                size = 0 if batch is None else batch.size
                raise EngineError(
                    f"rank {self._part.rank} got {size} of the {last - first} samples that are "
                    "its part"
                )
            yield Batch(batch.inputs, batch.targets, whole)
