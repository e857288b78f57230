"""How trials are made ready beside a training: on one rank, and on several."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Protocol

from aiperf_hpc.replica.parallel.leader import LeadingEngine
from aiperf_hpc.replica.parallel.protocol import Warmup
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import BuildState, BuiltTrial, PlannedTrial
from aiperf_hpc.run.records import StepTimes


class TrialBuilder(Protocol):
    """Makes trials ready. For the thread that trains."""

    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        """Begin to make a trial ready."""
        ...

    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        """Wait until a trial is ready or has failed."""
        ...

    def close(self, built: BuiltTrial) -> StepTimes | None:
        """Free a trial's network; return where the time of its steps went, on several ranks."""
        ...


class OneRankBuilder:
    """A background thread does all of it but what has to wait for the end of a training."""

    def __init__(self, trainer: Trainer, background: Executor) -> None:
        self._trainer = trainer
        self._background = background

    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        taken = self._trainer.running_bytes
        ended = self._trainer.lead.begin()
        preparing = self._background.submit(self._trainer.prepare, trial, taken)
        preparing.add_done_callback(ended)
        return preparing

    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        built = begun.result()
        if built.state is BuildState.PENDING:
            # Behind the closing of the network that it has to wait for.
            self._background.submit(_nothing).result()
        return self._trainer.supply(built)

    def close(self, built: BuiltTrial) -> None:
        self._background.submit(built.close)


class SeveralRanksBuilder:
    """The thread that trains says to all ranks what to build; a thread of each builds it.

    For only one thread may speak to other ranks, and all ranks must hear the same in one order.
    """

    def __init__(self, trainer: Trainer, engine: LeadingEngine) -> None:
        self._trainer = trainer
        self._engine = engine

    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        begun: Future[BuiltTrial] = Future()
        begun.set_result(self._begun(self._trainer.fit(trial)))
        return begun

    def _begun(self, built: BuiltTrial) -> BuiltTrial:
        if built.state is BuildState.FAILED:
            return built
        trial, used, taken = built.trial, built.used, self._trainer.running_bytes
        graph, weights = trial.candidate.graph, trial.candidate.weights
        beside = self._trainer.warms_beside(graph, used.batch_size, taken)
        warmup = Warmup.BUILT if beside else Warmup.TAKEN
        ended = self._trainer.lead.begin()
        return built.awaiting(
            self._engine.begin(graph, weights, used, trial.optimizer_state, warmup, built=ended)
        )

    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        return self._trainer.supply(begun.result())

    def close(self, built: BuiltTrial) -> StepTimes | None:
        built.close()
        return self._engine.take_step_times(built.trial.name)


def _nothing() -> None:
    """Do nothing."""
