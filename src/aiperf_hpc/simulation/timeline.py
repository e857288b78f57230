"""Virtual time: many tasks, of which one runs at a time, in the order of their wake times.

A task is ordinary code. It runs until it sleeps by the timeline, which then goes to the task
that wakes first. Nothing else lets time pass, so an hour takes as long as what is done in it.
Of tasks that wake at the same time the one that fell asleep first runs first, and so everything
happens in the same order each time.

Tasks are greenlets: a change between threads costs 10 to 60 microseconds where there are
thousands of them, one between greenlets less than one.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from itertools import count
from typing import Final

import numpy as np
from greenlet import getcurrent, greenlet


@dataclass(slots=True, eq=False)
class Task:
    """Something that runs by a timeline."""

    action: Callable[[], None]
    hub: InitVar[greenlet]
    """What goes on when the task gives way or ends."""
    debt: float = 0.0
    """Virtual seconds that it has used and not yet slept."""
    turn: int = -1
    """Which of its entries in the timeline's order counts: the last one made."""
    ended: bool = False
    awaited_by: list[Task] = field(default_factory=list)
    switch: Callable[[], object] = field(init=False)

    def __post_init__(self, hub: greenlet) -> None:
        self.switch = greenlet(self._run, parent=hub).switch

    def _run(self) -> None:
        self.action()
        self.ended = True


class Timeline:
    """A virtual clock and all that goes by it. It is a ``Clock`` for the tasks on it."""

    def __init__(self, start_utc: float, *, charge: bool = False) -> None:
        """Begin with nothing to do.

        Args:
            start_utc: when virtual time begins, UTC seconds.
            charge: whether the CPU time that a task takes is time that it takes; then no two
                simulations are equal to the last digit.
        """
        self.start_utc = start_utc
        self._charge = charge
        self._now = 0.0
        self._order: list[tuple[float, int, Task]] = []
        self._numbers = count()
        self._current: Task | None = None
        self._resumed = 0.0
        self._hub = getcurrent()
        self.switches = 0
        """How often a task was given its turn."""

    @property
    def turn_began(self) -> float:
        """When the current task woke: earlier than its own time by what it has spent since."""
        return self._now

    def utc(self) -> float:
        """Return UTC seconds."""
        return self.start_utc + self.monotonic()

    def monotonic(self) -> float:
        """Return seconds since virtual time began."""
        task = self._current
        if task is None:
            return self._now
        used = time.thread_time() - self._resumed if self._charge else 0.0
        return self._now + task.debt + used

    def sleep(self, seconds: float) -> None:
        """Let others run until so many seconds have passed."""
        task = self._current
        assert task is not None  # noqa: S101 -- only tasks sleep
        self._enter(task, self.monotonic() + max(0.0, seconds))
        task.debt = 0.0
        self._hub.switch()

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Sleep, unless it is over. Whoever ends it wakes this task."""
        self.sleep(0.0 if over() else seconds)

    def spend(self, seconds: float) -> None:
        """Let the current task take so long for what it is doing, without giving way.

        So it may be called while a lock is held. Others see the time pass when the task sleeps.
        """
        if self._current is not None:
            self._current.debt += seconds

    def spawn(self, action: Callable[[], None], after: float = 0.0) -> Task:
        """Have ``action`` done by a task of its own, ``after`` seconds from now."""
        task = Task(action, self._hub)
        self._enter(task, self.monotonic() + after)
        return task

    def wake(self, task: Task) -> None:
        """Let a task that sleeps go on now."""
        if not task.ended:
            self._enter(task, self.monotonic())

    def cancel(self, task: Task) -> None:
        """Never let a task go on; it does not learn of it."""
        task.turn = -1
        task.ended = True
        self._tell(task)

    def join(self, task: Task) -> None:
        """Sleep until a task has ended."""
        if not task.ended:
            assert self._current is not None  # noqa: S101 -- only tasks wait
            task.awaited_by.append(self._current)
            self.sleep(math.inf)

    def run(self, action: Callable[[], None]) -> None:
        """Do ``action`` and all that it spawns, until it has ended; raise what any task raises."""
        self._hub = getcurrent()
        main = self.spawn(action)
        while not main.ended:
            wakes, number, task = heapq.heappop(self._order)
            if task.turn != number:
                continue  # It was woken before, or cancelled.
            self._now = wakes
            self._current = task
            self.switches += 1
            if self._charge:
                self._resumed = time.thread_time()
            task.switch()
            self._current = None
            if task.ended:
                self._tell(task)

    def _tell(self, ended: Task) -> None:
        for task in ended.awaited_by:
            self.wake(task)

    def _enter(self, task: Task, wakes: float) -> None:
        task.turn = next(self._numbers)
        heapq.heappush(self._order, (max(wakes, self._now), task.turn, task))


class LocalClock:
    """The clock of several tasks that take turns, e.g. at one journal: it never goes back.

    A task that has spent time is ahead of the others until it sleeps. On a real machine they
    would have waited for it.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._latest = 0.0

    def utc(self) -> float:
        """Return UTC seconds."""
        return self._timeline.start_utc + self.monotonic()

    def monotonic(self) -> float:
        """Return seconds since virtual time began."""
        self._latest = max(self._latest, self._timeline.monotonic())
        return self._latest

    def sleep(self, seconds: float) -> None:
        """Let others run until so many seconds have passed."""
        self._timeline.sleep(seconds)

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Sleep, unless it is over."""
        self._timeline.wait(seconds, over)


AT_ONCE: Final = 0.0


@dataclass(frozen=True, slots=True)
class Queue:
    """A machine on which others compute, too: its nodes become free one by one.

    When a node is freed and for how long one is left alone are exponentially distributed, as where
    what frees them knows nothing of the run.
    """

    mean_wait_seconds: float = AT_ONCE
    """Until a node is free for the run, from when the run is submitted."""
    gang: bool = False
    """Whether all are given together, once as many are free as are asked for at the start."""
    preemptions_per_hour: float = 0.0
    """How often a node is taken away."""
    away_seconds: float = 60.0
    """Until a node that was taken away is given back."""
    seed: int = 0

    def waits(self, nodes: int) -> list[float]:
        """Return the seconds until each of so many nodes is given, the first to be free first."""
        rng = np.random.default_rng(self.seed)
        freed = np.sort(rng.exponential(self.mean_wait_seconds, nodes)).tolist()
        return [freed[-1]] * nodes if self.gang else freed

    def left_alone(self, node: int, life: int) -> float:
        """Return the seconds until a node is taken away after it was given for the n-th time."""
        if not self.preemptions_per_hour:
            return math.inf
        rng = np.random.default_rng((self.seed, node, life))
        return float(rng.exponential(3600.0 / self.preemptions_per_hour))
