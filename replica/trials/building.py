"""How trials are made ready beside a training: on one rank, and on several."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from aiperf_hpc.replica.parallel.leader import LeadingEngine, LeadingNetwork
from aiperf_hpc.replica.parallel.protocol import Warmup
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import BuiltTrial, PlannedTrial
from aiperf_hpc.run.records import StepTimes
from aiperf_hpc.trial import Hyperparameters


class TrialBuilder(Protocol):
    """Makes trials ready. For the thread that trains."""

    def begin(self, trial: PlannedTrial) -> Callable[[], BuiltTrial]:
        """Begin to make a trial ready; return what waits until it is."""
        ...

    def close(self, built: BuiltTrial) -> StepTimes | None:
        """Free a trial's network; return where the time of its steps went, on several ranks."""
        ...


class OneRankBuilder:
    """A background thread does all of it."""

    def __init__(self, trainer: Trainer, background: Executor) -> None:
        self._trainer = trainer
        self._background = background

    def begin(self, trial: PlannedTrial) -> Callable[[], BuiltTrial]:
        taken = self._trainer.running_bytes
        ended = self._trainer.lead.begin()
        preparing = self._background.submit(self._trainer.prepare, trial, taken)
        preparing.add_done_callback(ended)

        def take() -> BuiltTrial:
            prepared = preparing.result()
            if isinstance(prepared, BuiltTrial):
                return prepared
            # Behind the closing of the network that it has to wait for.
            self._background.submit(_nothing).result()
            return prepared()

        return take

    def close(self, built: BuiltTrial) -> None:
        self._background.submit(built.close)


class SeveralRanksBuilder:
    """The thread that trains says to all ranks what to build; a thread of each builds it.

    For only one thread may speak to other ranks, and all ranks must hear the same in one order.
    """

    def __init__(self, trainer: Trainer, engine: LeadingEngine) -> None:
        self._trainer = trainer
        self._engine = engine

    def begin(self, trial: PlannedTrial) -> Callable[[], BuiltTrial]:
        graph, weights = trial.candidate.graph, trial.candidate.weights

        def begin_network(used: Hyperparameters) -> Callable[[], LeadingNetwork]:
            taken = self._trainer.running_bytes
            beside = self._trainer.warms_beside(graph, used.batch_size, taken)
            warmup = Warmup.BUILT if beside else Warmup.TAKEN
            ended = self._trainer.lead.begin()
            return self._engine.begin(
                graph, weights, used, trial.optimizer_state, warmup, built=ended
            )

        return self._trainer.begin(trial, begin_network)

    def close(self, built: BuiltTrial) -> StepTimes | None:
        built.close()
        return self._engine.take_step_times(built.trial.name)


def _nothing() -> None:
    """Do nothing."""
