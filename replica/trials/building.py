"""How trials are made ready beside a training: on one rank, and on several."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from aiperf_hpc.replica.parallel.leader import LeadingEngine
from aiperf_hpc.replica.training.trainer import Prepared, Trainer, TrialPlan
from aiperf_hpc.run.records import StepTimes


class TrialBuilder(Protocol):
    """Makes trials ready. For the thread that trains."""

    def begin(self, plan: TrialPlan) -> Callable[[], Prepared]:
        """Begin to make a trial ready; return what waits until it is."""
        ...

    def close(self, prepared: Prepared) -> StepTimes | None:
        """Free a trial's network; return where the time of its steps went, on several ranks."""
        ...


class OneRankBuilder:
    """A background thread does all of it."""

    def __init__(self, trainer: Trainer, background: Executor) -> None:
        self._trainer = trainer
        self._background = background

    def begin(self, plan: TrialPlan) -> Callable[[], Prepared]:
        return self._background.submit(self._trainer.prepare, plan).result

    def close(self, prepared: Prepared) -> None:
        self._background.submit(prepared.close)


class SeveralRanksBuilder:
    """The thread that trains says to all ranks what to build; a thread of each builds it.

    For only one thread may speak to other ranks, and all ranks must hear the same in one order.
    """

    def __init__(self, trainer: Trainer, engine: LeadingEngine) -> None:
        self._trainer = trainer
        self._engine = engine

    def begin(self, plan: TrialPlan) -> Callable[[], Prepared]:
        prepared = self._trainer.fit_batch(plan)
        if prepared.failure is not None:
            return lambda: prepared
        take = self._engine.begin(
            plan.graph,
            plan.weights,
            prepared.used,
            plan.optimizer_state,
            self._trainer.warmup_batch_size(prepared),
        )
        return lambda: self._trainer.with_network(prepared, take)

    def close(self, prepared: Prepared) -> StepTimes | None:
        prepared.close()
        return self._engine.take_step_times(prepared.plan.trial)
