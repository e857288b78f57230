"""Report as a self-contained HTML page without other files, network access and scripts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml
from jinja2 import Environment

from aiperf_hpc import formatting
from aiperf_hpc.config import differences, preset_of
from aiperf_hpc.objective import MEASURES, Measure
from aiperf_hpc.results.report import ancestry
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.results.report.plots.figure import quality_colour
from aiperf_hpc.results.report.plots.over_time import (
    every,
    interval_ops,
    nodes_plot,
    score_plots,
    telemetry_plots,
)
from aiperf_hpc.results.report.plots.scaling import scaling_plots
from aiperf_hpc.results.report.plots.search import (
    hyperparameters_plot,
    learning_plot,
    prediction_plot,
)
from aiperf_hpc.results.report.system import system_box
from aiperf_hpc.results.report.templates import page_templates
from aiperf_hpc.results.views.clock import clock_lines
from aiperf_hpc.results.views.quantities import View, quantities_in
from aiperf_hpc.results.views.score import ScoreStatus
from aiperf_hpc.results.views.time_split import PHASES
from aiperf_hpc.results.views.trainings import model_lines
from aiperf_hpc.results.views.witnesses import witness_line
from aiperf_hpc.trial import Machine, TimePhase, TrialState

MOST_REPLICAS = 48
MOST_ROWS = 1000
MOST_POINTS = 60
MOST_CANDIDATES = 200
MOST_JOURNALS = 100
"""Maximum numbers of replicas, rows, points, candidates and journal links on the page;
``report.json`` has all of them, except the links."""

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

TIME_ORDER = (
    str(TimePhase.TRAIN),
    str(TimePhase.EVALUATE),
    *(p for p in PHASES if p not in (TimePhase.TRAIN, TimePhase.EVALUATE)),
)
"""Phases in the page's order, productive ones first."""


def render(document: Report, fine: Sequence[ScoreStatus], journals: Sequence[str] = ()) -> str:
    """Return the page as one self-contained file without scripts.

    Args:
        document: report to show.
        fine: score at closely spaced times, for the curves.
        journals: paths of the run's journals, relative to its folder.
    """
    best = document.best.graph if document.best else None
    measure = MEASURES[document.metric]
    trials = _kept(document.trials, measure)
    scale = _Scale.of(document.trials, measure)
    shown = sorted(document.replicas, key=lambda r: r.time.train_evaluate_fraction)[:MOST_REPLICAS]
    names = {replica.id for replica in shown}
    lanes = [_lane(r.id, document) for r in document.replicas if r.id in names]
    return (
        _environment(measure)
        .get_template("report.html")
        .render(
            document=document,
            quantities=quantities_in(View.REPORT),
            measure=measure,
            plots=score_plots(fine, document.series),
            telemetry_plots=telemetry_plots(document.telemetry),
            queue=list(clock_lines(document.clock)),
            witness=witness_line(document.witnesses, ended=document.final),
            nodes_plot=nodes_plot(document.elasticity, document.score.elapsed_seconds),
            scaling_plots=scaling_plots(document.scaling.points) if document.scaling else [],
            models=model_lines(document.models, document.metric),
            learning=learning_plot(
                document.trials, document.best.trial if document.best else None, measure
            ),
            effects=hyperparameters_plot(document.trials, measure),
            journals=journals[:MOST_JOURNALS],
            more_journals=max(0, len(journals) - MOST_JOURNALS),
            preset=preset_of(document.config),
            differences=differences(document.config),
            prediction=prediction_plot(document.search.candidates),
            candidates=document.search.candidates[-MOST_CANDIDATES:],
            points=_points(document.series),
            time_order=TIME_ORDER,
            replicas=[replica for replica in document.replicas if replica.id in names],
            lanes=lanes,
            legend=_legend(lanes),
            ticks=_ticks(document.score.elapsed_seconds),
            trials=trials,
            numbers={trial.id: number for number, trial in enumerate(trials, 1)},
            tree=ancestry.rows(trials, best),
            scale=scale,
            machines=_machines(document),
            system=None if document.system is None else system_box(document.system),
            configuration=yaml.safe_dump(
                document.config.model_dump(mode="json"), sort_keys=False, width=88
            ),
        )
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Mapping of qualities to the color scale, which spans the qualities of the run's trials."""

    measure: Measure
    worst: float
    best: float

    @classmethod
    def of(cls, trials: Iterable[TrialReport], measure: Measure) -> _Scale:
        reached = [t.best_quality for t in trials if t.best_quality is not None]
        ordered = sorted(reached, key=measure.objective_value) or [0.0, 1.0]
        return cls(measure, ordered[0], ordered[-1])

    def colour(self, quality: float) -> str:
        span = self.best - self.worst
        return quality_colour((quality - self.worst) / span if span else 1.0)

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Colors of the legend, from the worst to the best, with their quality."""
        span = self.best - self.worst
        values = [self.worst + span * i / 4 for i in range(5)] if span else [self.best]
        return [(self.colour(value), self._words(value)) for value in values]

    def _words(self, value: float) -> str:
        if self.measure.error is not None:
            return formatting.percent(value, 1)
        return formatting.quality(value, self.measure.name)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the timeline for one or several trials, in percent of the elapsed time."""

    start: float
    width: float
    kind: str
    """CSS class, one of ``BARS``."""
    words: str
    trials: int = 1
    """Number of trials that it represents."""


@dataclass(frozen=True, slots=True)
class RoundMark:
    """Start of a round in percent of the elapsed time."""

    place: float
    label: str
    """Number of the round; empty if there is no room for it."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Trials of one replica on the timeline."""

    replica: str
    bars: list[Bar]
    edges: list[float]
    """Start of a bar, in percent of the elapsed time."""
    rounds: list[RoundMark]
    words: str

    @property
    def together(self) -> int:
        """Number of trials that are merged with others."""
        return sum(bar.trials for bar in self.bars if bar.trials > 1)


def _lane(name: str, document: Report) -> Lane:
    own = [trial for trial in document.trials if trial.replica == name]
    elapsed = document.score.elapsed_seconds
    if elapsed <= 0:
        return Lane(name, [], [], [], f"no trials of replica {name}")
    groups = [_bars(group, elapsed) for group in _groups(own, elapsed)]
    return Lane(
        replica=name,
        bars=[bar for bars in groups for bar in bars],
        edges=[bars[0].start for bars in groups],
        rounds=_round_marks(own, elapsed),
        words=f"{len(own)} trials of replica {name}: {_states(own)}",
    )


def _legend(lanes: Sequence[Lane]) -> list[tuple[str, str]]:
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


def _ticks(elapsed: float) -> list[tuple[float, str]]:
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


def _kept(trials: Sequence[TrialReport], measure: Measure) -> list[TrialReport]:
    """Return the trials that the page shows: all, or the best ones with their ancestors."""
    if len(trials) <= MOST_ROWS:
        return list(trials)

    def worth(trial: TrialReport) -> float:
        quality = trial.best_quality
        return -math.inf if quality is None else measure.objective_value(quality)

    by_id = {trial.id: trial for trial in trials}
    kept: set[str] = set()
    for trial in sorted(trials, key=worth, reverse=True):
        if len(kept) >= MOST_ROWS:
            break
        ancestor: str | None = trial.id
        while ancestor is not None and ancestor in by_id and ancestor not in kept:
            kept.add(ancestor)
            ancestor = by_id[ancestor].parent
    return [trial for trial in trials if trial.id in kept]


def _points(series: Sequence[ScoreStatus]) -> list[tuple[ScoreStatus, float]]:
    """Return evenly selected points of the score, including the last, each with the operations per
    second of its interval only."""
    step = max(1, -(-len(series) // MOST_POINTS))
    points = list(zip(series, interval_ops(series), strict=True))
    return every(points, step)


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Replicas on hosts that differ only in their name and the assigned cores."""

    machine: Machine
    cores: int
    replicas: list[str]
    hosts: list[str]


def _machines(document: Report) -> list[MachineGroup]:
    groups: defaultdict[str, list[tuple[str, Machine]]] = defaultdict(list)
    for replica in document.replicas:
        if replica.machine is not None:
            alike = replica.machine.model_copy(update={"host": "", "cores": ()})
            key = f"{len(replica.machine.cores)} {alike.model_dump_json()}"
            groups[key].append((replica.id, replica.machine))
    return [
        MachineGroup(
            members[0][1],
            len(members[0][1].cores),
            [name for name, _ in members],
            sorted({machine.host for _, machine in members}),
        )
        for members in groups.values()
    ]


def _environment(measure: Measure) -> Environment:
    """Return the templates with the filters of this page."""
    environment = page_templates()
    environment.filters |= {
        "si": formatting.si,
        "exact": formatting.exact,
        "percent": formatting.percent,
        "quality": lambda value: formatting.quality(value, measure.name),
        "duration": formatting.duration,
        "capital": lambda text: text[:1].upper() + text[1:],
        "size": formatting.size,
        "when": lambda text: text.replace("T", " ")[:19] + " UTC",
        "ranges": formatting.ranges,
        "shape": lambda sizes: " × ".join("any" if size is None else str(size) for size in sizes),
    }
    return environment
