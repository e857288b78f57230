"""Progress of a run: a live block, and a line for each trial that ends."""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TextIO

from rich.console import Group, RenderableType
from rich.text import Text

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import duration, quality, roughly
from aiperf_hpc.host.processes import Interrupts, in_background
from aiperf_hpc.results.terminal.screen import Fitted, Screen, bar_line, one_line
from aiperf_hpc.results.terminal.status_line import (
    fitted,
    short_trial_line,
    status_line,
    status_parts,
    trial_line,
)
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.replica_status import record_problems
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView
from aiperf_hpc.results.views.trials import epochs_trained
from aiperf_hpc.run.history import PRIMARY, Trial
from aiperf_hpc.run.storage import BackoffRetry, Wait
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import TrialState

LINE_SECONDS = 1.0
"""Minimum seconds between two lines, or between two updates of the live block."""
LOG_SECONDS = 15.0
"""Seconds between two status lines if the output is not a terminal."""
ALERT_SECONDS = 0.1
"""Seconds between two checks for interrupts and storage waits."""
MOST_QUEUED = 60
"""Maximum number of queued lines; the oldest of more are omitted."""
LAST_LINES = 10
"""Maximum number of trials that are printed at the end."""


MOST_TRIALS = 8
"""Maximum number of trials, one line each."""
LEAST_LINES = 4
"""Minimum height of a window for a block of several lines."""
STYLES = {"note": "yellow", "ops": "bold", "best": "cyan"}
"""Styles of parts of the status, if the terminal has colors."""
TROUBLE_STYLE = "reverse"
"""Style of the replicas if one is in trouble: no color, because some people cannot see red."""
TIME_LINE = ("note", "time")
"""Parts of the status in the first line."""
TROUBLED = ("silent", "failed", "lost", "unknown", "requeued")
"""Prefixes of replica states that need attention."""


class TrialUnderWay(NamedTuple):
    """A trial that has not ended."""

    id: str
    share: float
    """Fraction of its epochs that it has trained."""
    state: str
    result: str
    """Formatted best quality that an evaluation observed, and the batch size."""


class LiveContent(NamedTuple):
    """Content of the live block."""

    status: RunStatus
    trials: tuple[TrialUnderWay, ...]


def live_content(view: RunView) -> LiveContent:
    """Return the content of a run's live block."""
    status = view.status()
    lasts = status.state is not RunState.ENDED
    return LiveContent(status, tuple(_under_way(view, t) for t in view.history.under_way if lasts))


def _under_way(view: RunView, trial: Trial) -> TrialUnderWay:
    epochs = epochs_trained(trial, view.history.replicas[trial.replica].dataset).total
    limit = trial.started.epoch_limit
    state = f"epoch {min(limit, int(epochs) + 1)} of {limit}"
    if trial.state is TrialState.COMPILING:
        state = f"building, {limit} epochs"
    best = "" if trial.best is None else quality(trial.best.quality, view.quality_metric.name)
    result = f"{best:>6}  batch {trial.started.hyperparameters.batch_size}"
    return TrialUnderWay(trial.id, epochs / limit, state, result)


def block(content: LiveContent, columns: int, lines: int) -> RenderableType:
    """Return the lines of the block for a window of the given size."""
    status = content.status
    if lines < LEAST_LINES:
        return one_line(status_line(status, columns))
    room = min(MOST_TRIALS, lines - LEAST_LINES)
    trials = list(_trial_lines(content.trials[:room], columns))
    if more := len(content.trials) - room:
        trials += [one_line(f"and {more:,} more trials in progress")] if more > 0 else []
    return Group(_time_line(status, columns), _score_line(status, columns), *trials)


def _time_line(status: RunStatus, columns: int) -> RenderableType:
    parts = {name: forms for name, forms in status_parts(status).items() if name in TIME_LINE}
    before = _styled(fitted(parts, columns))
    share = status.elapsed_seconds / (3600.0 * status.hours)
    if status.state is RunState.ENDED:
        return one_line(before)
    left = Text(f"{roughly(status.remaining_seconds)} left" if status.remaining_seconds else "")
    return bar_line(before, share, left, columns)


def _score_line(status: RunStatus, columns: int) -> RenderableType:
    others = {name: each for name, each in status_parts(status).items() if name not in TIME_LINE}
    parts = fitted(others, columns)
    line = _styled(parts)
    if any(replica.state.startswith(TROUBLED) for replica in status.replicas):
        line.stylize(TROUBLE_STYLE, len(line) - len(parts.get("replicas", "")))
    return one_line(line)


def _styled(parts: dict[str, str]) -> Text:
    return Text("  ").join(Text(text, STYLES.get(name, "")) for name, text in parts.items())


def _trial_lines(trials: Sequence[TrialUnderWay], columns: int) -> list[RenderableType]:
    """Return a line for each trial, aligned in columns."""
    wide = max((len(trial.id) for trial in trials), default=0)
    most = max((len(trial.state) for trial in trials), default=0)
    return [
        bar_line(
            Text(trial.id.ljust(wide)),
            trial.share,
            Text(f"{trial.state.ljust(most)}  {trial.result}"),
            columns,
        )
        for trial in trials
    ]


class ProgressDisplay:
    """Prints a run's progress to a terminal, or to a file as plain lines.

    Displaying a run must not end it: an error is reported once, and the display is retried.
    """

    def __init__(self, live: CachedView, output: TextIO) -> None:
        self._live = live
        self._screen = Screen(output)
        self._next = time.monotonic() + LINE_SECONDS
        self._status_due = time.monotonic()
        self._urgent = deque[str]()
        self._ended = deque[Trial]()
        """Ended trials to print, one per second."""
        self._status_last = False
        """Whether the last line was the status."""
        self._left_out = 0
        self._shown: set[str] = set()
        self._complained: set[str] = set()
        self._waiting: set[str] = set()
        """Reported storage waits of replicas."""
        self._rebuilt = self._trials_read = self._failures_read = self._waits_read = 0

    def tick(self) -> None:
        """Update the display if it is due."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_SECONDS
        self._try(self._show)

    def skip_news(self) -> None:
        """Omit everything that has happened so far."""
        self._live.uncached(self._read_news)
        self._urgent.clear()
        self._ended.clear()

    def say(self, text: str) -> None:
        """Print a separate line."""
        self._try(lambda: self._screen.line(text))

    @contextmanager
    def alert(self, interrupts: Interrupts, retry: BackoffRetry) -> Iterator[None]:
        """Report interrupts and storage waits immediately while the block executes."""
        alerts = _Alerts(self._screen, interrupts, retry)

        def watch(over: threading.Event) -> None:
            while not over.wait(ALERT_SECONDS):
                self._try(alerts.look)

        with in_background(watch, "alert"):
            yield

    def end(self) -> None:
        """Update the display a last time, and restore the terminal."""
        self._try(self._show)
        self._try(self._say_the_rest)
        self._try(self._screen.clear)

    def _try(self, show: Callable[[], None]) -> None:
        if self._next == math.inf:
            return
        try:
            show()
        except OSError:
            # The reader has exited, e.g. `| head`; the run continues.
            self._next = math.inf
        except Exception as error:  # noqa: BLE001 -- reported; the run continues
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        what = f"unexpected {type(error).__name__}: {error}"
        if what in self._complained:
            return
        self._complained.add(what)
        with suppress(OSError, ValueError):  # Where even that cannot be written.
            traceback.print_exception(error, file=sys.stderr)
            warn(f"progress cannot be shown: {what}; the run continues")

    def _show(self) -> None:
        try:
            said = self._live.ask(live_content)
        except AIPerfError as error:
            # Reported once, and retried.
            line = f"progress cannot be shown: {error}"
            self._say(line, lambda columns, lines: one_line(line))
        else:
            whole = status_line(said.status)
            self._say(whole, lambda columns, lines: block(said, columns, lines))

    def _say(self, whole: str, fitted: Fitted) -> None:
        self._live.uncached(self._read_news)
        while len(self._ended) > MOST_QUEUED:
            self._ended.popleft()
            self._left_out += 1
        now = time.monotonic()
        if self._screen.is_terminal:
            self._say_news()
            self._screen.change(fitted)
        elif now >= self._status_due and not (self._status_last and self._has_news):
            self._status_due = now + LOG_SECONDS
            self._status_last = True
            self._screen.line(whole)
        else:
            self._status_last = False
            self._say_news()

    @property
    def _has_news(self) -> bool:
        return bool(self._urgent or self._ended or self._left_out)

    def _say_news(self) -> None:
        """Print one line of news."""
        if self._urgent:
            self._screen.line(self._urgent.popleft())
        elif self._left_out:
            self._screen.line(f"  {self._left_out:,} lines omitted: one per second is shown")
            self._left_out = 0
        elif self._ended:
            self._say_trial(self._ended.popleft())

    def _say_trial(self, trial: Trial) -> None:
        self._screen.line(trial_line(trial), short_trial_line(trial))

    def _say_the_rest(self) -> None:
        last = list(self._ended)[-LAST_LINES:]
        if left := self._left_out + len(self._ended) - len(last):
            self._screen.line(f"  {left:,} lines omitted")
        for trial in last:
            self._say_trial(trial)
        for text in self._urgent:
            self._screen.line(text)
        self._urgent.clear()
        self._ended.clear()
        self._left_out = 0

    def _read_news(self, view: RunView) -> None:
        """Queue lines of news: ended trials, failed searches and problems."""
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
        known = (*record_problems(history), *history.compiler_failures)
        problems = [text for text in known if text not in self._complained]
        self._complained.update(new, problems)
        self._ended.extend(ended)
        self._urgent += [
            *(f"  search of {failure}" for failure in new),
            *(f"  problem: {problem}" for problem in problems),
            *self._new_waiting(view),
            # The primary's own waits were reported immediately.
            *(
                f"  {who} waited {duration(wait.seconds)} for storage: {wait.reason}"
                for who, wait in waits
                if who != PRIMARY
            ),
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
    """Immediate reports of the user's interrupts and of the primary's waits for storage."""

    def __init__(self, screen: Screen, interrupts: Interrupts, retry: BackoffRetry) -> None:
        self._screen = screen
        self._interrupts = interrupts
        self._retry = retry
        self._said = 0
        self._wait: Wait | None = None
        self._next = 0.0

    def look(self) -> None:
        """Report what is new."""
        count = self._interrupts.count
        if count > 0 and self._said == 0:
            self._screen.line(
                "stopping: finishing the steps, then scoring; "
                f"{self._interrupts.how} again stops immediately"
            )
        if count > 1 and self._said < 2:
            self._screen.line("stopping immediately: the replicas are killed")
        self._said = count
        before = self._wait
        self._wait = self._retry.waiting
        if self._wait is not None:
            self._tell(self._wait, new=before is None)
        elif before is not None:
            self._screen.line(f"storage is available again after {duration(before.seconds)}")

    def _tell(self, wait: Wait, *, new: bool) -> None:
        if new:
            self._screen.line(f"waiting for storage: {wait.reason}")
        elif time.monotonic() < self._next:
            return
        every = LINE_SECONDS if self._screen.is_terminal else LOG_SECONDS
        self._next = time.monotonic() + every
        text = f"waiting for storage for {duration(wait.seconds)}"
        if self._screen.is_terminal:
            self._screen.change(lambda columns, lines: one_line(text))
        elif not new:
            self._screen.line(f"{text}: {wait.reason}")
