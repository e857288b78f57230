"""The next trial, planned and made ready for its first step while another one is trained."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from aiperf_hpc.clock import Clock
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.replica.training.trainer import Prepared
from aiperf_hpc.replica.trials.building import TrialBuilder
from aiperf_hpc.replica.trials.planner import Planned
from aiperf_hpc.trial import TimePhase

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two looks for something to train."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What is trained next."""

    planned: Planned
    prepared: Prepared


class Prefetch:
    """Has one trial made ready at a time."""

    def __init__(
        self,
        background: Executor,
        plan: Callable[[], Planned | None],
        builder: TrialBuilder,
        stop: StopFlag,
        stopwatch: Stopwatch,
        clock: Clock,
    ) -> None:
        """Prepare.

        Args:
            background: does it.
            plan: says what to train next; None when there is nothing yet.
            builder: makes it ready.
            stop: ends the waiting.
            stopwatch: told what is waited for.
            clock: rested by.
        """
        self._background = background
        self._plan = plan
        self._builder = builder
        self._stop = stop
        self._watch = stopwatch
        self._clock = clock
        self._planning: Future[Planned | None] | None = None
        self._making: tuple[Planned, Callable[[], Prepared]] | None = None
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

    def take(self) -> Ready | None:
        """Wait for the next trial and return it; None when the run ends first."""
        self._look_at = 0.0
        self._pause = FIRST_PAUSE
        with self._watch.during(TimePhase.SEARCH_WAIT):
            while self._making is None:
                if self._stop.reason is not None:
                    return None
                self.look()
                if self._making is None:
                    self._wait()
        with self._watch.during(TimePhase.BUILD):
            (planned, ready) = self._making
            self._making = None
            return Ready(planned, ready())

    def close(self) -> Planned | None:
        """Free what was made ready and is not wanted any more; return what had been planned."""
        if self._making is not None:
            planned, ready = self._making
            self._builder.close(ready())
            return planned
        return None if self._planning is None else self._planning.result()

    def _wait(self) -> None:
        """Wait for what is being planned, or until it is time to look for it again."""
        if self._planning is not None:
            self._make(self._planning)
        else:
            self._clock.sleep(max(0.0, self._look_at - self._clock.monotonic()))

    def _make(self, planning: Future[Planned | None]) -> None:
        """Have what was planned made ready; if there was nothing yet, look again later."""
        planned = planning.result()
        self._planning = None
        if planned is None:
            self._look_at = self._clock.monotonic() + self._pause
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)
        else:
            self._making = planned, self._builder.begin(planned.plan)
