"""Timeline of a report: the trials and phases of each replica over the elapsed time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiperf_hpc import formatting
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.results.views.time_split import PHASES
from aiperf_hpc.trial import TimePhase, TrialState

LEAST_BAR = 0.5
"""Percent of the elapsed time below which neighboring trials are merged: three pixels on the
narrowest timeline, of which the edge uses one or two."""

BARS = {
    "building": "building",
    "completed": "completed",
    "stopped-early": "stopped early",
    "failed": "failed",
    "training": "not ended",
    "several": "several trials",
}
"""Meaning of the timeline's bars, by their CSS classes."""

PHASE_ORDER = (
    str(TimePhase.TRAIN),
    str(TimePhase.EVALUATE),
    *(p for p in PHASES if p not in (TimePhase.TRAIN, TimePhase.EVALUATE)),
)
"""Phases in the page's order, productive ones first; the last one is unrecorded time."""


class Bar(NamedTuple):
    """A bar of the timeline for one or several trials, in percent of the elapsed time."""

    start: float
    width: float
    kind: str
    """CSS class, one of ``BARS``."""
    words: str
    trials: int = 1
    """Number of trials that it represents."""


class RoundMark(NamedTuple):
    """Start of a round in percent of the elapsed time."""

    place: float
    label: str
    """Number of the round; empty if there is no room for it."""


class Lane(NamedTuple):
    """Trials of one replica on the timeline."""

    replica: str
    bars: list[Bar]
    edges: list[float]
    """Start of a bar, in percent of the elapsed time."""
    rounds: list[RoundMark]
    phases: Mapping[str, str]
    """Bars of each drawn phase as an SVG path, 1000 units wide and 10 high."""
    words: str

    @property
    def together(self) -> int:
        """Number of trials that are merged with others."""
        return sum(bar.trials for bar in self.bars if bar.trials > 1)


def lane(name: str, document: Report) -> Lane:
    """Return the timeline of a replica."""
    own = [trial for trial in document.trials if trial.replica == name]
    elapsed = document.score.elapsed_seconds
    if elapsed <= 0:
        return Lane(name, [], [], [], {}, f"no trials of replica {name}")
    together = _groups(own, elapsed)
    groups = [_bars(group, elapsed) for group in together]
    return Lane(
        replica=name,
        bars=[bar for bars in groups for bar in bars],
        edges=[bars[0].start for bars in groups],
        rounds=_round_marks(own, elapsed),
        phases=_phase_bars(together, elapsed),
        words=f"{len(own)} trials of replica {name}: {_states(own)}",
    )


PREPARATION = (TimePhase.START, TimePhase.SEARCH_WAIT, TimePhase.BUILD)
"""Phases that precede the first step of a trial, in order."""
TRAINING = tuple(TimePhase(p) for p in PHASE_ORDER if p in set(TimePhase) - set(PREPARATION))
"""Phases after it, productive ones first."""
LEAST_PHASE = 1.0
"""Thousandths of the elapsed time below which a phase of a trial is not drawn: one pixel."""


def _phase_bars(groups: Sequence[Sequence[TrialReport]], elapsed: float) -> dict[str, str]:
    """Return the paths of the phases: preparations until the first step, then the others.

    Training and evaluation alternate each epoch, but only their sums are recorded for each trial.
    """
    paths: defaultdict[str, str] = defaultdict(str)
    for group in groups:
        spent = {p: sum(t.phase_seconds.get(p, 0.0) for t in group) for p in TimePhase}
        first, trial = group[0].training_started_seconds, group[0]
        step = first if first is not None else trial.started_seconds + trial.seconds
        begin = step - sum(trial.phase_seconds.get(phase, 0.0) for phase in PREPARATION)
        for phase in (*PREPARATION, *TRAINING):
            left = 1000.0 * max(0.0, begin) / elapsed
            width = 1000.0 * (begin + spent[phase]) / elapsed - left
            if width >= LEAST_PHASE:
                paths[phase] += f"M{left:.1f} 0h{width:.1f}v10h-{width:.1f}z"
            begin += spent[phase]
    return {phase: paths[phase] for phase in PHASE_ORDER if phase in paths}


def phase_legend(lanes: Sequence[Lane]) -> list[str]:
    """Return the phases that are drawn in any lane."""
    return [phase for phase in PHASE_ORDER if any(phase in lane.phases for lane in lanes)]


def legend(lanes: Sequence[Lane]) -> list[tuple[str, str]]:
    """Return the kinds of drawn bars with their meaning."""
    drawn = {bar.kind for lane in lanes for bar in lane.bars}
    return [(kind, meaning) for kind, meaning in BARS.items() if kind in drawn]


def _groups(trials: Sequence[TrialReport], elapsed: float) -> list[list[TrialReport]]:
    """Return consecutive trials, with those grouped that are too short to be distinguishable."""
    least = LEAST_BAR / 100.0 * elapsed
    groups: list[list[TrialReport]] = []
    for trial in trials:
        short = trial.seconds < least
        if short and groups and _is_short(groups[-1], least):
            groups[-1].append(trial)
        else:
            groups.append([trial])
    return groups


def _is_short(group: Sequence[TrialReport], least: float) -> bool:
    """Return whether all trials of a group are short, so that another may be merged with them."""
    return all(trial.seconds < least for trial in group) and (
        group[-1].started_seconds - group[0].started_seconds < least
    )


def _bars(group: Sequence[TrialReport], elapsed: float) -> list[Bar]:
    trial = group[0]
    begin, end = trial.started_seconds, group[-1].started_seconds + group[-1].seconds
    if len(group) > 1:
        what = f"{trial.id} to {group[-1].id}: {len(group)} trials, {_states(group)}"
        return [_bar(begin, end, elapsed, "several", what, len(group))]
    ready = trial.training_started_seconds
    about = f"{trial.id}, round {trial.round}"
    what = f"{about}: {trial.state}, {formatting.duration(trial.seconds)}"
    if trial.reason:
        what += f", {trial.reason}"
    cut = end if ready is None else ready
    if ready is None and trial.state == TrialState.FAILED:
        return [_bar(begin, end, elapsed, "failed", what)]
    building = f"{about}: building, {formatting.duration(cut - begin)}"
    parts = []
    if ready is None or ready > begin:
        parts.append(_bar(begin, cut, elapsed, "building", building))
    if ready is not None:
        parts.append(_bar(ready, end, elapsed, trial.state.replace(" ", "-"), what))
    return parts


def _states(trials: Sequence[TrialReport]) -> str:
    counted = Counter(trial.state for trial in trials)
    return ", ".join(f"{number} {state}" for state, number in counted.items())


def _round_marks(trials: Sequence[TrialReport], elapsed: float) -> list[RoundMark]:
    """Return the starts of rounds; a number without room before the next one is omitted."""
    first: dict[int, float] = {}
    for trial in trials:
        first.setdefault(trial.round, min(100.0, 100.0 * trial.started_seconds / elapsed))
    places = [*first.values(), 100.0]
    return [
        RoundMark(round(place, 3), str(number) if after - place >= _room(number) else "")
        for (number, place), after in zip(first.items(), places[1:], strict=True)
    ]


def _room(number: int) -> float:
    """Return the width of a round's number in percent of the timeline."""
    return 0.7 + 1.1 * len(str(number))


def _bar(start: float, stop: float, elapsed: float, kind: str, text: str, trials: int = 1) -> Bar:
    left = min(100.0, max(0.0, 100.0 * start / elapsed))
    right = min(100.0, max(left, 100.0 * stop / elapsed))
    return Bar(round(left, 3), round(right - left, 3), kind, text, trials)


def ticks(elapsed: float) -> list[tuple[float, str]]:
    """Return round times to mark on the timeline, with their position in percent."""
    if elapsed <= 0:
        return []
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400)
    step = next((s for s in steps if elapsed / s <= 8), 86_400 * max(1, int(elapsed / 691_200)))
    return [(100.0 * t / elapsed, _clock(t)) for t in range(0, int(elapsed * 0.97) + 1, step)]


def _clock(seconds: int) -> str:
    """Return whole seconds as an axis label: ``1:02:03``."""
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
