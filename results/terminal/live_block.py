"""Live block of a run on a terminal: its time, its score and its running trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from aiperf_hpc.formatting import quality, roughly
from aiperf_hpc.results.terminal.screen import bar_line, one_line
from aiperf_hpc.results.terminal.status_line import fitted, status_line, status_parts
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView
from aiperf_hpc.results.views.trial_status import epochs_trained
from aiperf_hpc.run.history import Trial
from aiperf_hpc.trial import TrialState

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
    building: bool
    """Whether it has not executed its first step yet."""
    epochs: float
    """Number of trained epochs: 2.5 in the middle of the third."""
    epoch_limit: int
    best: str
    """Formatted best quality that an evaluation observed."""
    batch_size: int


class Shown(NamedTuple):
    """Content of the live block."""

    status: RunStatus
    trials: tuple[TrialUnderWay, ...]


def shown(view: RunView) -> Shown:
    """Return the content of a run's live block."""
    status = view.status()
    lasts = status.state is not RunState.ENDED
    return Shown(status, tuple(_under_way(view, t) for t in view.history.under_way if lasts))


def _under_way(view: RunView, trial: Trial) -> TrialUnderWay:
    return TrialUnderWay(
        id=trial.id,
        building=trial.state is TrialState.COMPILING,
        epochs=epochs_trained(trial, view.history.replicas[trial.replica].dataset).total,
        epoch_limit=trial.started.epoch_limit,
        best="" if trial.best is None else quality(trial.best.quality, view.quality_metric.name),
        batch_size=trial.started.hyperparameters.batch_size,
    )


def block(shown: Shown, columns: int, lines: int) -> RenderableType:
    """Return the lines of the block for a window of the given size."""
    status = shown.status
    if lines < LEAST_LINES:
        return one_line(status_line(status, columns))
    room = min(MOST_TRIALS, lines - LEAST_LINES)
    trials = list(_trial_lines(shown.trials[:room], columns))
    if more := len(shown.trials) - room:
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
    names = [trial.id for trial in trials]
    reached = [_reached(trial) for trial in trials]
    wide, most = max(map(len, names), default=0), max(map(len, reached), default=0)
    return [
        bar_line(
            Text(name.ljust(wide)),
            trial.epochs / trial.epoch_limit,
            Text(f"{what.ljust(most)}  {trial.best:>6}  batch {trial.batch_size}"),
            columns,
        )
        for trial, name, what in zip(trials, names, reached, strict=True)
    ]


def _reached(trial: TrialUnderWay) -> str:
    if trial.building:
        return f"building, {trial.epoch_limit} epochs"
    epoch = min(trial.epoch_limit, int(trial.epochs) + 1)
    return f"epoch {epoch} of {trial.epoch_limit}"
