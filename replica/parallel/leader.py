"""Rank 0's network, engine and dataset: what is asked of them is announced to all ranks."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import WHOLE, Batch, Dataset, Part
from aiperf_hpc.replica.data.baseline import Tally
from aiperf_hpc.replica.engines.base import EvaluationSums, OptimizerState, RankEngine
from aiperf_hpc.replica.parallel.collectives.base import Collective
from aiperf_hpc.replica.parallel.data_parallel import PARTS, DataParallelNetwork, RankDataset
from aiperf_hpc.replica.parallel.network_builder import NetworkBuilder, Uncompiled, ignored
from aiperf_hpc.replica.parallel.protocol import Announce, BuildRequest, Command, Warmup
from aiperf_hpc.run.records import BaselineMeasured, StepTimes
from aiperf_hpc.trial import DatasetInfo, Hyperparameters

AGREE_SECONDS = 1.0
"""The time after which the ranks agree in a training step again: such a step waits for the slowest
rank, by messages that take the longer the more ranks there are."""


class LeadingNetwork:
    """Rank 0's side of a network: announces each call, then makes it."""

    def __init__(
        self,
        network: DataParallelNetwork,
        announce: Announce,
        closed: Callable[[DataParallelNetwork], None],
    ) -> None:
        self._network = network
        self._announce = announce
        self._closed = closed
        self._agreed = -math.inf

    def warm(self, batch_size: int) -> None:
        """Each rank warmed its network when it had built it."""

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        """Calibrate on all ranks, on the batch that is trained on next."""
        self._announce(Command.CALIBRATE)
        return self._network.calibrate(lambda: batch)

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Train on one batch on all ranks; ``batch`` is rank 0's part of it."""
        now = time.monotonic()
        agreed = now - self._agreed >= AGREE_SECONDS
        if agreed:
            self._agreed = now
        self._announce(Command.TRAIN_STEP, learning_rate, agreed)
        self._network.train_step(lambda: batch, learning_rate, agreed=agreed)

    def drain_training(self) -> float:
        """Return the mean loss since the last call, of all ranks."""
        self._announce(Command.DRAIN_TRAINING)
        return self._network.drain_training()

    def evaluate_step(self, batch: Batch) -> None:
        """Evaluate one batch on all ranks; ``batch`` is rank 0's part of it."""
        self._announce(Command.EVALUATE_STEP)
        self._network.evaluate_step(lambda: batch)

    def drain_evaluation(self) -> EvaluationSums:
        """Return the sums of all ranks."""
        self._announce(Command.DRAIN_EVALUATION)
        return self._network.drain_evaluation()

    def outputs(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return rank 0's outputs."""
        return self._network.local.outputs(inputs)

    def weights(self) -> Weights:
        """Return rank 0's weights, which are everybody's."""
        return self._network.local.weights()

    def optimizer_state(self) -> OptimizerState:
        """Return rank 0's optimizer state, which is everybody's."""
        return self._network.local.optimizer_state()

    def close(self) -> None:
        """Free the network on all ranks."""
        self._announce(Command.CLOSE)
        self._network.close()
        self._closed(self._network)


class LeadingEngine:
    """Rank 0's engine: builds on all ranks."""

    def __init__(
        self, engine: RankEngine, collective: Collective, uncompiled: Uncompiled = ignored
    ) -> None:
        """Lead all ranks.

        Args:
            engine: this rank's.
            collective: of all ranks.
            uncompiled: told why this rank's part of a network was not compiled ahead.
        """
        self._collective = collective
        self._announce = Announce(collective)
        self._builder = NetworkBuilder(engine, collective, uncompiled)
        self._numbers = itertools.count()
        self._step_times = np.zeros(1 + len(PARTS))
        self.name = engine.name
        self.objective = engine.objective
        self.versions = engine.versions
        self.accelerators = engine.accelerators
        self.memory_bytes = engine.memory_bytes
        self.warms_alone = engine.warms_alone

    def compile_ahead(self, graph: Graph, precision: str, samples: int) -> str:
        """Do nothing: each rank has its own part compiled when it builds a network."""
        return ""

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> LeadingNetwork:
        """Build a graph on all ranks.

        Raises:
            EngineError: a rank cannot.
        """
        return self.begin(graph, weights, hyperparameters, optimizer_state, Warmup.NEVER)()

    def begin(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None,
        warmup: Warmup,
        *,
        built: Callable[[object], None] = ignored,
    ) -> Callable[[], LeadingNetwork]:
        """Have a graph built on all ranks, by a thread of each, while they do other things.

        Args:
            graph: what to build.
            weights: as for ``build``.
            hyperparameters: as for ``build``.
            optimizer_state: as for ``build``.
            warmup: when each rank warms its network.
            built: called when this rank's network is built, by the thread that builds it.

        Returns:
            What waits for all ranks and returns the network, or raises EngineError.
        """
        number = next(self._numbers)
        request = BuildRequest(graph, weights, hyperparameters, optimizer_state, warmup)
        request.send(self._collective, number)
        self._builder.begin(number, request, built)

        def take() -> LeadingNetwork:
            self._announce(Command.TAKE_NETWORK, number)
            network = self._builder.take(number)
            return LeadingNetwork(network, self._announce, self._keep_step_times)

        return take

    def _keep_step_times(self, closed: DataParallelNetwork) -> None:
        self._step_times = closed.step_times

    def take_step_times(self, trial: str) -> StepTimes | None:
        """Return the step times of the network that was closed last; None when it did no step."""
        (steps, *seconds) = self._step_times
        self._step_times = np.zeros(1 + len(PARTS))
        if not steps:
            return None
        return StepTimes(
            trial=trial,
            collective=self._collective.name,
            ranks=self._collective.size,
            steps=round(steps),
            seconds=dict(zip(PARTS, map(float, seconds), strict=True)),
        )


class LeadingDataset(RankDataset):
    """Rank 0's dataset: its part of each batch, of epochs that are announced to all."""

    def __init__(self, dataset: Dataset, collective: Collective) -> None:
        super().__init__(dataset, Part(collective.rank, collective.size))
        self._announce = Announce(collective)

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield rank 0's part of every batch of an epoch."""
        del part
        self._announce(Command.TRAIN, epoch, batch_size, seed)
        return super().train(epoch, batch_size, seed)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield rank 0's part of every batch of the validation samples."""
        del part
        self._announce(Command.VALIDATION, batch_size)
        return super().validation(batch_size)


class LeadingBaseline:
    """The baseline of all ranks' parts of the samples; see ``data.baseline.Baseline``."""

    def __init__(self, objective: Objective, info: DatasetInfo, collective: Collective) -> None:
        self._tally = Tally(objective, info)
        self._collective = collective
        self._announce = Announce(collective)

    def watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Have all ranks look at the targets of the evaluation that was announced last."""
        self._announce(Command.WATCH_TARGETS)
        return self._tally.watched(batches)

    def measured(self) -> BaselineMeasured:
        """Return what the totals of all ranks come to."""
        self._announce(Command.SUM_TARGETS)
        self._collective.allreduce_sum(self._tally.totals)
        return self._tally.measured()
