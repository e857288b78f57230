"""Showing a run while it lasts: one line that changes, and a line for every trial that ends."""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.objective import MEASURES
from aiperf_hpc.primary.formatting import duration, few, in_words, quality, si
from aiperf_hpc.primary.monitor.cached_view import CachedView
from aiperf_hpc.primary.monitor.consistency import clock_problems, disagreements, rejections
from aiperf_hpc.primary.monitor.run_view import RunState, RunStatus, RunView
from aiperf_hpc.primary.monitor.screen import Screen
from aiperf_hpc.run.history import PRIMARY, Trial
from aiperf_hpc.run.records import StorageWaited
from aiperf_hpc.run.storage import BackoffRetry, Wait
from aiperf_hpc.signals import Interrupts
from aiperf_hpc.streams import width

TERMINAL_SECONDS = 1.0
LOG_SECONDS = 15.0
ALERT_SECONDS = 0.1
"""The time between two looks at whether the user has asked for the end, or storage is waited
for."""
NAMED = 4
"""Replicas that are named in one line."""
OVER = ("ended", "done", "failed")
"""How the state of a replica begins that will do no more."""


class ProgressDisplay:
    """Prints a run's progress to a terminal, or to a file as plain lines.

    A look at a run must not end it: what goes wrong here is said, once, and tried again.
    """

    def __init__(self, live: CachedView, output: TextIO) -> None:
        self._live = live
        self._screen = Screen(output)
        self._every = TERMINAL_SECONDS if self._screen.is_terminal else LOG_SECONDS
        self._next = time.monotonic() + self._every
        self._shown: set[str] = set()
        self._complained: set[str] = set()
        self._waiting: set[str] = set()
        """What replicas wait for, as far as that was said."""
        self._rebuilt = self._trials_read = self._failures_read = self._waits_read = 0

    def tick(self) -> None:
        """Show what is new, if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        self._try(self._show)

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._try(lambda: self._screen.line(text))

    @contextmanager
    def alert(self, interrupts: Interrupts, retry: BackoffRetry) -> Iterator[None]:
        """Say at once what the controller cannot in the block, while it is busy or waits."""
        over = threading.Event()
        alerts = _Alerts(self, self._screen, interrupts, retry)

        def watch() -> None:
            while not over.wait(ALERT_SECONDS):
                self._try(alerts.look)

        thread = threading.Thread(target=watch, name="alert", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def end(self) -> None:
        """Show what is new, the last time, and leave the terminal as it was found."""
        self._try(self._show)
        self._try(self._screen.clear)

    def _try(self, show: Callable[[], None]) -> None:
        if self._next == math.inf:
            return
        try:
            show()
        except OSError:
            # Nobody reads our output any more, e.g. `| head`: the run goes on all the same.
            self._next = math.inf
        except Exception as error:  # noqa: BLE001 -- said; the run computes, and goes on
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        what = f"unexpected {type(error).__name__}: {error}"
        if what in self._complained:
            return
        self._complained.add(what)
        with suppress(OSError, ValueError):  # Where even that cannot be written.
            traceback.print_exception(error, file=sys.stderr)
            sys.stderr.write(f"aiperf: progress cannot be shown: {what}; the run goes on\n")
            sys.stderr.flush()

    def _show(self) -> None:
        try:
            status = self._live.ask(RunView.status)
        except AIPerfError as error:
            # Said once, and tried again.
            line = f"progress cannot be shown: {error}"
            self._show_line(line, lambda columns: line)
        else:
            self._show_line(status_line(status), lambda columns: status_line(status, columns))

    def _show_line(self, whole: str, fitted: Callable[[int], str]) -> None:
        for text in self._live.uncached(self._news):
            self._screen.line(text)
        if self._screen.is_terminal:
            self._screen.change(fitted)
        else:
            self._screen.line(whole)

    def _news(self, view: RunView) -> list[str]:
        """Return a line for what is new: trials that ended, failed searches, problems."""
        history = view.history
        if history.rebuilt != self._rebuilt:
            self._rebuilt = history.rebuilt
            self._trials_read = self._failures_read = self._waits_read = 0
        ended = [t for t in history.ended[self._trials_read :] if t.id not in self._shown]
        failed = history.search_failures[self._failures_read :]
        waits = history.storage_waits[self._waits_read :]
        self._trials_read = len(history.ended)
        self._failures_read = len(history.search_failures)
        self._waits_read = len(history.storage_waits)
        self._shown.update(trial.id for trial in ended)
        new = [text for text in dict.fromkeys(failed) if text not in self._complained]
        problems = [
            text
            for text in (
                *disagreements(history),
                *clock_problems(history),
                *history.file_problems,
                *rejections(history),
            )
            if text not in self._complained
        ]
        self._complained.update(new, problems)
        return [
            *map(trial_line, ended),
            *(f"  search of {failure}" for failure in new),
            *(f"  problem: {problem}" for problem in problems),
            *self._new_waiting(view),
            # The primary's own were said when they were.
            *(f"  {wait_line(who, wait)}" for who, wait in waits if who != PRIMARY),
        ]

    def _new_waiting(self, view: RunView) -> list[str]:
        """Return a line for every replica that has begun to wait for storage."""
        replicas = view.history.replicas.values()
        now = {
            f"{r.id} waits for storage: {r.storage_waiting}" for r in replicas if r.storage_waiting
        }
        new = sorted(now - self._waiting)
        self._waiting = now
        return [f"  {text}" for text in new]


class _Alerts:
    """What is said at once: the user's interrupts, and that the primary waits for storage."""

    def __init__(
        self, progress: ProgressDisplay, screen: Screen, interrupts: Interrupts, retry: BackoffRetry
    ) -> None:
        self._progress = progress
        self._screen = screen
        self._interrupts = interrupts
        self._retry = retry
        self._said = 0
        self._wait: Wait | None = None
        self._next = 0.0

    def look(self) -> None:
        """Say what is new."""
        count = self._interrupts.count
        if count > 0 and self._said == 0:
            self._screen.line(
                "stopping: current steps end, then comes the score; "
                f"{self._interrupts.how} again stops at once"
            )
        if count > 1 and self._said < 2:
            self._screen.line("stopping at once: the replicas are killed")
        self._said = count
        before = self._wait
        self._wait = self._retry.waiting
        if self._wait is not None:
            self._tell(self._wait, new=before is None)
        elif before is not None:
            self._screen.line(f"storage answers again, after {duration(before.seconds)}")

    def _tell(self, wait: Wait, *, new: bool) -> None:
        if new:
            self._screen.line(f"waiting for storage: {wait.why}")
        elif time.monotonic() < self._next:
            return
        every = TERMINAL_SECONDS if self._screen.is_terminal else LOG_SECONDS
        self._next = time.monotonic() + every
        text = f"waiting for storage for {duration(wait.seconds)}"
        if self._screen.is_terminal:
            self._screen.change(lambda columns: text)
        elif not new:
            self._screen.line(f"{text}: {wait.why}")


def status_line(status: RunStatus, columns: int | None = None) -> str:
    """Return a run's state in one line.

    Args:
        status: what it says.
        columns: that it should take at most. What matters least is said shorter, or not at all;
            time and score are kept however few there are.
    """
    parts = _parts(status)
    chosen = dict.fromkeys(parts, 0)
    line = _joined(parts, chosen)
    for name, form in _SHORTER:
        if columns is None or width(line) <= columns:
            break
        chosen[name] = min(form, len(parts[name]) - 1)
        line = _joined(parts, chosen)
    return line


_SHORTER = (
    ("best", 1),
    ("regulated", 1),
    *(("replicas", form) for form in range(1, NAMED + 1)),
    ("trials", 1),
    ("note", 1),
    ("time", 1),
    ("regulated", 2),
    ("replicas", NAMED + 1),
    ("best", 2),
    ("note", 2),
)
"""The parts of the line, in the order in which they are said shorter."""


def _joined(parts: dict[str, Sequence[str]], chosen: dict[str, int]) -> str:
    return "  ".join(text for name, forms in parts.items() if (text := forms[chosen[name]]))


def _parts(status: RunStatus) -> dict[str, Sequence[str]]:
    """Return the parts of the line in order, each from its long form to its shortest."""
    score = status.score
    now, end = _clock(status.elapsed_seconds), _clock(status.hours * 3600)
    regulated = "–" if score.regulated is None else si(score.regulated, "OPS")
    label = MEASURES[status.measure].label
    best = quality(status.best_quality, status.measure)
    ended = sum(n for s, n in status.trials_by_state.items() if s in ("completed", "stopped early"))
    return {
        "note": _note(status),
        "time": (f"{now} of {end}", now),
        "score": (si(score.ops, "OPS"),),
        "regulated": (f"regulated {regulated}", f"reg. {regulated}", ""),
        "best": (f"best {label} {best}", f"best {best}", ""),
        "trials": (f"trials {ended}", ""),
        "replicas": (*(_named(status, most) for most in range(NAMED, 0, -1)), _counted(status), ""),
    }


def _note(status: RunStatus) -> Sequence[str]:
    """Return what comes first, because something is waited for."""
    if status.state is RunState.STOPPING:
        waiting = going_on(status)
        if not waiting:
            return "stopping", "stopping", "stopping"
        return f"stopping, waiting for {few(waiting)}", f"stopping, {len(waiting)} left", "stopping"
    waiting = [r.id for r in status.replicas if r.storage_waiting]
    if waiting:
        return f"{few(waiting)}: waiting for storage", "waiting for storage", "storage!"
    return "", "", ""


def going_on(status: RunStatus) -> list[str]:
    """Return the replicas that have not ended."""
    return [r.id for r in status.replicas if not r.state.startswith(OVER)]


def _named(status: RunStatus, most: int) -> str:
    replicas = " ".join(f"{r.id} {r.state}" for r in status.replicas[:most])
    more = f" +{len(status.replicas) - most}" if len(status.replicas) > most else ""
    return replicas + more


def _counted(status: RunStatus) -> str:
    states = Counter(replica.state for replica in status.replicas)
    return ", ".join(f"{number} {state}" for state, number in states.most_common())


def wait_line(who: str, wait: StorageWaited) -> str:
    """Return a wait for storage that is over in one line."""
    return f"{who} waited {duration(wait.seconds)} for storage: {wait.why}"


def trial_line(trial: Trial) -> str:
    """Return an ended trial in one line."""
    started, best = trial.started, trial.best
    what = in_words(started.morphisms) or "initial network"
    reached = "–" if best is None else quality(best.quality, best.measure.name)
    reason = f" ({trial.reason})" if trial.reason else ""
    parent = f"{started.parent} + " if started.parent else ""
    batch = f"batch {started.hyperparameters.batch_size}"
    return (
        f"  {trial.id}  round {started.round} {started.phase}  {trial.state}{reason}  "
        f"{reached} after {len(trial.evaluations)} epochs, {batch}  {parent}{what}"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
