"""Rank 0's network, engine and dataset, which announce every call to all ranks."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import WHOLE, Batch, Dataset, Part
from aiperf_hpc.replica.data.baseline import Tally
from aiperf_hpc.replica.engines.base import EvaluationSums, NetworkState, OptimizerState, RankEngine
from aiperf_hpc.replica.parallel.collectives import Collective
from aiperf_hpc.replica.parallel.data_parallel import DataParallelNetwork, RankDataset
from aiperf_hpc.replica.parallel.network_builder import NetworkBuilder, Uncompiled, ignored
from aiperf_hpc.replica.parallel.protocol import (
    BuildRequest,
    Command,
    Warmup,
    announce,
)
from aiperf_hpc.run.records import BaselineMeasured
from aiperf_hpc.trial import DatasetInfo

AGREE_SECONDS = 1.0
"""Seconds between training steps with an agreement. Such a step waits for the slowest rank, and
its cost grows with the number of ranks."""


@dataclass(eq=False)
class LeadingNetwork:
    """Rank 0's network: announces each call, then executes it."""

    network: DataParallelNetwork

    def __post_init__(self) -> None:
        self._agreed = -math.inf

    def warm(self, batch_size: int) -> None:
        """Do nothing: each rank warmed its network after building it."""

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        """Calibrate on all ranks with the next training batch."""
        announce(self.network.collective, Command.CALIBRATE)
        return self.network.calibrate(lambda: batch)

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Train on one batch on all ranks; ``batch`` is rank 0's shard."""
        now = time.monotonic()
        agreed = now - self._agreed >= AGREE_SECONDS
        if agreed:
            self._agreed = now
        announce(self.network.collective, Command.TRAIN_STEP, learning_rate, agreed)
        self.network.train_step(lambda: batch, learning_rate, agreed=agreed)

    def drain_training(self) -> float:
        """Return the mean loss of all ranks since the last call."""
        announce(self.network.collective, Command.DRAIN_TRAINING)
        return self.network.drain_training()

    def evaluate_step(self, batch: Batch) -> None:
        """Evaluate one batch on all ranks; ``batch`` is rank 0's shard."""
        announce(self.network.collective, Command.EVALUATE_STEP)
        self.network.evaluate_step(lambda: batch)

    def drain_evaluation(self) -> EvaluationSums:
        """Return the sums of all ranks."""
        announce(self.network.collective, Command.DRAIN_EVALUATION)
        return self.network.drain_evaluation()

    def weights(self) -> Weights:
        """Return the weights, which are equal on all ranks."""
        return self.network.local.weights()

    def optimizer_state(self) -> OptimizerState:
        """Return the optimizer state, which is equal on all ranks."""
        return self.network.local.optimizer_state()

    def close(self) -> None:
        """Free the network on all ranks."""
        announce(self.network.collective, Command.CLOSE)
        self.network.close()


class LeadingEngine:
    """Rank 0's engine: builds on all ranks."""

    def __init__(
        self, engine: RankEngine, collective: Collective, uncompiled: Uncompiled = ignored
    ) -> None:
        """Lead all ranks.

        Args:
            engine: engine of this rank.
            collective: collective of all ranks.
            uncompiled: called with the reason if this rank cannot compile a network ahead.
        """
        self._collective = collective
        self._builder = NetworkBuilder(engine, collective, uncompiled)
        self._numbers = itertools.count()
        self.warms_alone = engine.warms_alone

    def build(self, state: NetworkState) -> LeadingNetwork:
        """Build a network on all ranks.

        Raises:
            EngineError: a rank cannot.
        """
        return self.begin(state, Warmup.NEVER)()

    def begin(
        self, state: NetworkState, warmup: Warmup, built: Callable[[object], None] = ignored
    ) -> Callable[[], LeadingNetwork]:
        """Start to build a network on all ranks, in a background thread of each.

        Args:
            state: network to build.
            warmup: when each rank warms its network.
            built: called by the building thread when this rank's network is built.

        Returns:
            A function that waits for all ranks and returns the network, or raises EngineError.
        """
        number = next(self._numbers)
        request = BuildRequest(state, warmup)
        request.send(self._collective, number)
        self._builder.begin(number, request, built)

        def take() -> LeadingNetwork:
            announce(self._collective, Command.TAKE_NETWORK, number)
            return LeadingNetwork(self._builder.take(number))

        return take


class LeadingDataset(RankDataset):
    """Rank 0's dataset: its shard of each batch. Every epoch is announced to all ranks."""

    def __init__(self, dataset: Dataset, collective: Collective) -> None:
        super().__init__(dataset, Part(collective.rank, collective.size))
        self._collective = collective

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield rank 0's shard of every batch of an epoch."""
        announce(self._collective, Command.TRAIN, epoch, batch_size, seed)
        return super().train(epoch, batch_size, seed)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield rank 0's shard of every batch of the validation samples."""
        announce(self._collective, Command.VALIDATION, batch_size)
        return super().validation(batch_size)


class LeadingTally(Tally):
    """The baseline over all ranks' shards."""

    def __init__(self, objective: Objective, info: DatasetInfo, collective: Collective) -> None:
        super().__init__(objective, info)
        self._collective = collective

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Observe the targets of the last announced evaluation on all ranks."""
        announce(self._collective, Command.WATCH_TARGETS)
        return super().watched(batches)

    def measured(self) -> BaselineMeasured:
        """Return the baseline from the totals of all ranks."""
        announce(self._collective, Command.SUM_TARGETS)
        self._collective.allreduce_sum(self.totals)
        return super().measured()
