"""The next trial, planned and made ready for its first step while another one is trained."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future

from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.training.trial import BuiltTrial, PlannedTrial
from aiperf_hpc.replica.trials.building import TrialBuilder
from aiperf_hpc.trial import TimePhase

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""The seconds between two looks for something to train, at first and at most."""


class Prefetch:
    """Has one trial made ready at a time."""

    def __init__(
        self,
        context: ReplicaContext,
        background: Executor,
        plan: Callable[[], PlannedTrial | None],
        builder: TrialBuilder,
        done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin with nothing.

        Args:
            context: the replica's, whose end ends the waiting.
            background: where it is planned.
            plan: says what to train next; None when there is nothing yet.
            builder: makes it ready.
            done: says whether there will be nothing more to train.
        """
        self._background = background
        self._plan = plan
        self._builder = builder
        self._done = done
        self._stop = context.stop
        self._watch = context.stopwatch
        self._clock = context.clock
        self._planning: Future[PlannedTrial | None] | None = None
        self._making: tuple[PlannedTrial, Future[BuiltTrial]] | None = None
        self._look_at = 0.0
        self._pause = FIRST_PAUSE

    def look(self) -> None:
        """See to it that the next trial is made ready. Cheap enough for every training step."""
        if self._making is not None:
            return
        if self._planning is None and self._clock.monotonic() >= self._look_at:
            self._planning = self._background.submit(self._plan)
        if self._planning is not None and self._planning.done():
            self._make(self._planning)

    def take(self) -> BuiltTrial | None:
        """Wait for the next trial and return it; None when the run ends first, or none follows."""
        self._look_at = 0.0
        self._pause = FIRST_PAUSE
        with self._watch.during(TimePhase.SEARCH_WAIT):
            while self._making is None:
                if self._stop.reason is not None or self._done():
                    return None
                self.look()
                if self._making is None:
                    self._wait()
        with self._watch.during(TimePhase.BUILD):
            _, begun = self._making
            self._making = None
            return self._builder.finish(begun)

    def close(self) -> PlannedTrial | None:
        """Free what was made ready and is not wanted any more; return what had been planned."""
        if self._making is not None:
            planned, begun = self._making
            self._builder.close(self._builder.finish(begun))
            return planned
        return None if self._planning is None else self._planning.result()

    def _wait(self) -> None:
        """Wait for what is being planned, or until it is time to look for it again."""
        if self._planning is not None:
            self._make(self._planning)
        else:
            self._clock.sleep(max(0.0, self._look_at - self._clock.monotonic()))

    def _make(self, planning: Future[PlannedTrial | None]) -> None:
        """Have what was planned made ready; if there was nothing yet, look again later."""
        planned = planning.result()
        self._planning = None
        if planned is None:
            self._look_at = self._clock.monotonic() + self._pause
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)
        else:
            self._making = planned, self._builder.begin(planned)
