"""Prefetch: plans and builds the next trial while another one trains."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.training.trial import BuiltTrial, PlannedTrial
from aiperf_hpc.replica.trials.building import TrialBuilder
from aiperf_hpc.trial import TimePhase

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two polls for a trial: the first and the longest interval."""


@dataclass(eq=False)
class Prefetch:
    """Keeps at most one trial planned or built ahead."""

    context: ReplicaContext
    """The replica's context; its stop signal ends every wait."""
    background: Executor
    """Executor that plans."""
    plan: Callable[[], PlannedTrial | None]
    """Returns the next trial, or None if there is none yet."""
    builder: TrialBuilder
    """Builds the trial."""
    done: Callable[[], bool]
    """Returns True once no trial will follow."""

    def __post_init__(self) -> None:
        self._watch = self.context.stopwatch
        self._clock = self.context.clock
        self._planning: Future[PlannedTrial | None] | None = None
        self._making: tuple[PlannedTrial, Future[BuiltTrial]] | None = None
        self._look_at = 0.0
        self._pause = FIRST_PAUSE

    def look(self) -> None:
        """Advance planning and building of the next trial. Cheap enough for every step."""
        if self._making is not None:
            return
        if self._planning is None and self._clock.monotonic() >= self._look_at:
            self._planning = self.background.submit(self.plan)
        if self._planning is not None and self._planning.done():
            self._make(self._planning)

    def take(self) -> BuiltTrial | None:
        """Wait for the next trial and return it, or None if the run ends or no trial follows."""
        self._look_at = 0.0
        self._pause = FIRST_PAUSE
        with self._watch.during(TimePhase.SEARCH_WAIT):
            while self._making is None:
                if self.context.stop.reason is not None or self.done():
                    return None
                self.look()
                if self._making is None:
                    self._wait()
        with self._watch.during(TimePhase.BUILD):
            _, begun = self._making
            self._making = None
            return self.builder.finish(begun)

    def close(self) -> PlannedTrial | None:
        """Free the trial that was built ahead; return the trial that was planned."""
        if self._making is not None:
            planned, begun = self._making
            self.builder.close(self.builder.finish(begun))
            return planned
        return None if self._planning is None else self._planning.result()

    def _wait(self) -> None:
        """Wait for planning to finish, or until the next poll is due."""
        if self._planning is not None:
            self._make(self._planning)
        else:
            self._clock.sleep(max(0.0, self._look_at - self._clock.monotonic()))

    def _make(self, planning: Future[PlannedTrial | None]) -> None:
        """Build the planned trial; if there was none, poll again later."""
        planned = planning.result()
        self._planning = None
        if planned is None:
            self._look_at = self._clock.monotonic() + self._pause
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)
        else:
            self._making = planned, self.builder.begin(planned)
