"""Showing a run while it lasts: one line that changes, and a line for every trial that ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TextIO

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.history import Trial
from aiperf_hpc.primary.agreement import clock_problems, disagreements, rejections
from aiperf_hpc.primary.live import LiveRun
from aiperf_hpc.primary.view import RunStatus, RunView
from aiperf_hpc.primary.words import in_words, percent, si

TERMINAL_SECONDS = 1.0
LOG_SECONDS = 15.0


class Progress:
    """Prints a run's progress to a terminal, or to a file as plain lines."""

    def __init__(self, live: LiveRun, output: TextIO) -> None:
        self._live, self._output = live, output
        self._terminal = output.isatty()
        self._every = TERMINAL_SECONDS if self._terminal else LOG_SECONDS
        self._next = time.monotonic() + self._every
        self._shown: set[str] = set()
        self._complained: set[str] = set()
        self._rebuilt = self._trials_read = self._failures_read = 0

    def tick(self) -> None:
        """Show what is new, if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        self._try(self._show)

    def end(self) -> None:
        """Show what is new, the last time, and leave the terminal as it was found."""
        if self._next < math.inf:
            self._try(self._show)
            self._try(self._clear)

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except OSError:
            # Nobody reads our output any more, e.g. `| head`: the run goes on all the same.
            self._next = math.inf

    def _show(self) -> None:
        try:
            line = status_line(self._live.ask(RunView.status))
        except AIPerfError as error:
            # A look at a run must not end it: said once, and tried again.
            line = f"progress cannot be shown: {error}"
        for text in self._live.uncached(self._news):
            self._line(text)
        if self._terminal:
            self._output.write(f"\r\033[K{line}")
        else:
            self._output.write(f"{line}\n")
        self._output.flush()

    def _news(self, view: RunView) -> list[str]:
        """Return a line for what is new: trials that ended, failed searches, problems."""
        history = view.history
        if history.rebuilt != self._rebuilt:
            self._rebuilt, self._trials_read, self._failures_read = history.rebuilt, 0, 0
        ended = [t for t in history.ended[self._trials_read :] if t.id not in self._shown]
        failed = history.search_failures[self._failures_read :]
        self._trials_read = len(history.ended)
        self._failures_read = len(history.search_failures)
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
        ]

    def _clear(self) -> None:
        if self._terminal:
            self._output.write("\r\033[K")
            self._output.flush()

    def _line(self, text: str) -> None:
        self._output.write(f"\r\033[K{text}\n" if self._terminal else f"{text}\n")


def status_line(status: RunStatus) -> str:
    """Return a run's state in one line."""
    score = status.score
    regulated = "–" if score.regulated is None else si(score.regulated, "OPS")
    replicas = " ".join(f"{r.id} {r.state}" for r in status.replicas[:4])
    more = f" +{len(status.replicas) - 4}" if len(status.replicas) > 4 else ""
    ended = sum(n for s, n in status.trials_by_state.items() if s in ("completed", "stopped early"))
    return (
        f"{_clock(status.elapsed_seconds)} of {_clock(status.hours * 3600)}  "
        f"{si(score.ops, 'OPS')}  regulated {regulated}  "
        f"best accuracy {percent(status.best_accuracy)}  trials {ended}  {replicas}{more}"
    )


def trial_line(trial: Trial) -> str:
    """Return an ended trial in one line."""
    started, best = trial.started, trial.best
    what = in_words(started.morphisms) or "initial network"
    accuracy = percent(None if best is None else best.accuracy)
    reason = f" ({trial.reason})" if trial.reason else ""
    parent = f"{started.parent} + " if started.parent else ""
    batch = f"batch {started.hyperparameters.batch_size}"
    return (
        f"  {trial.id}  round {started.round} {started.phase}  {trial.state}{reason}  "
        f"{accuracy} after {len(trial.evaluations)} epochs, {batch}  {parent}{what}"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
