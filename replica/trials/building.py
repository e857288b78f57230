"""Building of planned trials: their network, warmed, and the first batch of their data.

The next trial is built while another one trains. Steps that must wait for the end of that training
are done by the training thread.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.data.base import Dataset
from aiperf_hpc.replica.engines.base import Engine, Network
from aiperf_hpc.replica.parallel.leader import LeadingEngine, LeadingNetwork
from aiperf_hpc.replica.parallel.network_builder import closed_if_it_fails
from aiperf_hpc.replica.parallel.protocol import Warmup
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import BuiltTrial, PlannedTrial
from aiperf_hpc.run.records import Calibrated, CompilerFailed, StepTimes


@dataclass(eq=False)
class TrialBuilder(ABC):
    """Builds trials. The built trial holds its failure, which is not raised.

    Called by the training thread. Building records nothing of the trial and disturbs no other.
    """

    context: ReplicaContext
    engine: Engine | LeadingEngine
    dataset: Dataset
    trainer: Trainer

    @abstractmethod
    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        """Begin to build a trial."""

    @abstractmethod
    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        """Wait until a trial is built or has failed."""

    @abstractmethod
    def close(self, built: BuiltTrial) -> StepTimes | None:
        """Free a trial's network; with several ranks, return the time breakdown of its steps."""

    def _fitted(self, trial: PlannedTrial) -> BuiltTrial:
        """Choose batches that fit in memory."""
        built = BuiltTrial(trial, trial.hyperparameters)
        try:
            used = self.trainer.memory.fit(trial.candidate.graph, built.used)
            return replace(built, used=used)
        except (AIPerfError, MemoryError) as error:
            return built.failed(error)

    def _warms_concurrently(self, graph: Graph, batch_size: int, running_bytes: int) -> bool:
        """Return whether to warm a network with its batch while a trial of this size trains."""
        memory = self.trainer.memory
        fits = running_bytes + memory.needed(graph, batch_size) <= memory.bytes
        return fits and not self.engine.warms_alone

    def _supplied(self, built: BuiltTrial) -> BuiltTrial:
        """Take a pending trial's network, begin to read its first epoch and calibrate the network.

        Any other trial is returned unchanged.
        """
        trial, used, take = built.trial, built.used, built.pending
        if take is None:
            return built
        built = replace(built, pending=None)
        try:
            built = replace(built, network=(network := take()))
            batches = self.dataset.train(trial.progress.epochs + 1, used.batch_size, trial.seed)
            calibrated = None
            if trial.progress.epochs == 0:
                first = next(batches)
                layers = network.calibrate(first)
                if layers:
                    calibrated = Calibrated(trial=trial.name, layers=layers, samples=first.whole)
                batches = itertools.chain((first,), batches)
        except (AIPerfError, MemoryError) as error:
            return built.failed(error)
        return replace(built, batches=batches, calibrated=calibrated)


@dataclass(eq=False)
class OneRankBuilder(TrialBuilder):
    """Builds trials for one rank, in a background thread."""

    engine: Engine
    background: Executor

    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        running_bytes = self.trainer.running_bytes
        ended = self.trainer.lead.begin()
        preparing = self.background.submit(self._prepare, trial, running_bytes)
        preparing.add_done_callback(ended)
        return preparing

    def _prepare(self, trial: PlannedTrial, running_bytes: int) -> BuiltTrial:
        """Build a trial while another one trains in ``running_bytes`` of memory.

        If its steps don't fit in memory with that one, or have to run alone, the trial is
        returned pending: it is supplied once the other one has ended and its network is closed.
        """
        built = self._fitted(trial)
        if built.failure is not None:
            return built
        state, batch_size = built.network_state, built.used.batch_size
        try:
            warmed = self._warms_concurrently(state.graph, batch_size, running_bytes)
            if running_bytes and (problem := self.engine.compile_ahead(state)):
                self.context.journal.append(CompilerFailed(problem=problem))
            network = self.engine.build(state)
            if warmed or not self.engine.warms_alone:
                _warm(network, batch_size if warmed else 1)
        except (AIPerfError, MemoryError) as error:
            return built.failed(error)
        if warmed:
            return self._supplied(replace(built, pending=lambda: network))
        return replace(built, pending=lambda: _warm(network, batch_size))

    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        built = begun.result()
        if built.pending is not None:
            # The network that it waits for is closed by a job submitted before this one.
            self.background.submit(lambda: None).result()
        return self._supplied(built)

    def close(self, built: BuiltTrial) -> None:
        self.background.submit(built.close)


class SeveralRanksBuilder(TrialBuilder):
    """Builds trials for several ranks, each in a thread of its own.

    The training thread announces what to build, because only one thread may send messages to the
    other ranks, and all ranks must receive them in the same order.
    """

    engine: LeadingEngine

    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        begun: Future[BuiltTrial] = Future()
        begun.set_result(self._announced(self._fitted(trial)))
        return begun

    def _announced(self, built: BuiltTrial) -> BuiltTrial:
        if built.failure is not None:
            return built
        state, running_bytes = built.network_state, self.trainer.running_bytes
        warmed = self._warms_concurrently(state.graph, built.used.batch_size, running_bytes)
        warmup = Warmup.BUILT if warmed else Warmup.TAKEN
        ended = self.trainer.lead.begin()
        return replace(built, pending=self.engine.begin(state, warmup, built=ended))

    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        return self._supplied(begun.result())

    def close(self, built: BuiltTrial) -> StepTimes | None:
        built.close()
        if not isinstance(built.network, LeadingNetwork):
            return None
        return built.network.network.step_times(built.trial.name)


def _warm(network: Network, batch_size: int) -> Network:
    with closed_if_it_fails(network):
        network.warm(batch_size)
    return network
