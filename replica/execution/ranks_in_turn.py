"""One network that several ranks trained, trained by one process: their parts one after the other.

What each rank has of its own are its part of every batch, by which it normalises, and its running
statistics, whose mean is evaluated. Both are here as they are there; what differs is the order in
which gradients are added up, in the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.checkpoint import Weights
from aiperf_hpc.replica.data.base import Batch, Dataset, Part
from aiperf_hpc.replica.engines.base import Buffer, RankNetwork
from aiperf_hpc.replica.parallel.collectives.memory import on_host
from aiperf_hpc.replica.parallel.rank_dataset import RankDataset

Parts = Sequence[Batch]
"""The parts of one batch, in the order of the ranks."""


def parts_of_batches(
    dataset: Dataset, epoch: int, batch_size: int, seed: int, ranks: int
) -> Iterator[Parts]:
    """Yield the batches of a training epoch in the ranks' parts."""
    own = [RankDataset(dataset, Part(rank, ranks)) for rank in range(ranks)]
    yield from zip(*(each.train(epoch, batch_size, seed) for each in own), strict=True)


class RanksInTurn:
    """Trains a network by the parts of its ranks."""

    def __init__(self, network: RankNetwork, graph: Graph, weights: Weights, ranks: int) -> None:
        self._network = network
        self._graph = graph
        self._transparent = transparent(graph, weights)
        self._ranks = ranks
        self._statistics = [network.statistics() for _ in range(ranks)]

    def calibrate(self, parts: Parts) -> None:
        """Make inserted normalisations transparent on one batch."""
        calibrate(
            self._graph, self._transparent, lambda: self._moments(parts), self._network.assign
        )
        self._statistics = [self._network.statistics() for _ in range(self._ranks)]

    def _moments(self, parts: Parts) -> NDArray[np.float64]:
        """Return the mean, over all samples, of the parts' moments."""
        total = np.zeros(sum(map(math.prod, self._graph.statistics.values())), np.float64)
        for part in parts:
            if part.size:
                total += self._network.moments(part) * (part.size / part.whole)
        return total

    def train_step(self, parts: Parts, learning_rate: float) -> None:
        """Train on one batch."""
        if self._ranks == 1:
            self._network.train_step(parts[0], learning_rate)
            return
        gradients = [np.zeros(size, np.float32) for size in self._network.buckets]
        for rank, part in enumerate(parts):
            self._network.set_statistics(self._statistics[rank])
            for total, given in zip(gradients, self._gradients(part), strict=True):
                total += given
            self._statistics[rank] = self._network.statistics()
        self._network.apply(gradients, learning_rate)

    def _gradients(self, part: Batch) -> list[NDArray[np.float32]]:
        given: list[NDArray[np.float32]] = []

        def ready(bucket: Buffer) -> None:
            given.append(np.array(on_host(bucket)))

        self._network.gradients(part, part.size / part.whole, ready)
        return given

    def drain_training(self) -> float:
        """Return the mean loss of the steps, and let the ranks' mean statistics be evaluated."""
        loss = self._network.drain_training()
        if self._ranks > 1:
            self._network.set_statistics(np.mean(self._statistics, axis=0, dtype=np.float32))
        # Each part counted as a step of the network.
        return loss * self._ranks
