"""Machine card: one page with a machine's figures for five benchmarks, from its own runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from aiperf_hpc.analysis.analysis import Analysis
from aiperf_hpc.analysis.layout import WIDTH, tables_as_lines, wrapped
from aiperf_hpc.analysis.metric import Metric
from aiperf_hpc.analysis.metrics import METRICS
from aiperf_hpc.analysis.sections.communication import Communication
from aiperf_hpc.analysis.sections.cost import CostToAccuracy
from aiperf_hpc.analysis.sections.repeatability import Repeatability
from aiperf_hpc.analysis.sections.roofline import Rooflines
from aiperf_hpc.analysis.sections.valid_flops import ValidFlopsTable
from aiperf_hpc.analysis.sections.weak_scaling import WeakScalings
from aiperf_hpc.analysis.training_log import Entry, any_of
from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import duration, few, percent, si
from aiperf_hpc.results.table import Table, number, reasons
from aiperf_hpc.results.views.quantities import Quantity, View, quantities_in
from aiperf_hpc.results.views.resources import Resources, counted
from aiperf_hpc.rules.rule import Violation
from aiperf_hpc.trial import Value

SECONDS = {"s": 1.0, "min": 60.0}
"""Seconds per unit of time."""


class Figure(Value):
    """One figure of a benchmark: the best of the runs of one workload."""

    name: str
    value: str
    """Formatted value; empty if it was not measured."""
    workload: str
    """Workload of the figure, which is comparable only within a workload; empty without a value."""
    detail: str
    """Names of the measured runs, or the reason why there is no value."""


class BenchmarkFigures(Value):
    """The figures of one benchmark, for every workload with such a figure."""

    benchmark: str
    figures: tuple[Figure, ...]


class Card(Value):
    """The card of a machine."""

    machine: str
    resources: Resources | None
    """Replicas, hosts and accelerators of the largest run."""
    framework: tuple[str, ...]
    runs: tuple[str, ...]
    violations: tuple[Violation, ...]
    """Reasons why runs are not official AIPerf results, one line per reason."""
    benchmarks: tuple[BenchmarkFigures, ...]

    @property
    def unofficial(self) -> str:
        """Text that lists the rules violated by its runs; empty if there are none."""
        rules = dict.fromkeys(each.rule for each in self.violations)
        return f"{counted(len(rules), 'rule')} violated ({', '.join(rules)})" if rules else ""


class _Runs(NamedTuple):
    """The runs of one workload."""

    workload: str
    names: frozenset[str]


class _Candidate(NamedTuple):
    """A figure of one or several runs of a workload."""

    order: float
    """Sort key: the card shows the candidate with the highest order, or the first of equals."""
    value: str
    detail: str


class _Source(NamedTuple):
    """Sources of the figures."""

    analysis: Analysis
    workloads: tuple[_Runs, ...]


def make_card(analysis: Analysis) -> Card:
    """Return the card of a machine from the figures of its runs.

    Raises:
        UsageError: the analysis contains no run, or runs of several machines.
    """
    entries = [entry for entry in analysis.entries if entry.format == "aiperf"]
    if not entries:
        reasons = "; ".join(f"{one.path}: {one.reason}" for one in analysis.unreadable)
        raise UsageError(f"there is no run to make a card of{': ' if reasons else ''}{reasons}")
    accelerators = dict.fromkeys(entry.system.accelerator for entry in entries)
    if len(accelerators) > 1:
        raise UsageError(
            f"a card is of one machine; these runs are of {few([str(a) for a in accelerators])}"
        )
    largest = max(entries, key=_size)
    source = _Source(analysis, tuple(_workloads(entries)))
    return Card(
        machine=largest.system.name,
        resources=largest.system.resources,
        framework=tuple(dict.fromkeys(e.system.framework for e in entries if e.system.framework)),
        runs=tuple(entry.name for entry in entries),
        violations=tuple(dict.fromkeys(_violations(entries))),
        benchmarks=tuple(
            BenchmarkFigures(benchmark=name, figures=tuple(figures(source)))
            for name, figures in BENCHMARKS.items()
        ),
    )


def _size(entry: Entry) -> tuple[int, int]:
    resources = entry.system.resources or Resources(replicas=0)
    return resources.accelerator_count, resources.replicas


def _workloads(entries: Sequence[Entry]) -> Iterator[_Runs]:
    for workload in dict.fromkeys(entry.benchmark for entry in entries):
        yield _Runs(workload, frozenset(e.name for e in entries if e.benchmark == workload))


def _violations(entries: Iterable[Entry]) -> Iterator[Violation]:
    for entry in entries:
        for log in entry.logs:
            yield from map(Violation.model_validate, log.settings.get("violations", ()))


def _aiperf(source: _Source) -> Iterator[Figure]:
    metrics = {metric.name for metric in METRICS}
    for heading, quantity in quantities_in(View.CARD).items():
        best = min if quantity.better == "lower" else max
        if quantity.name in metrics:
            yield from _best_of(source, quantity.name, best)
        else:
            yield from _best_figure(source, heading, quantity, best)
    yield from _from(source, "roofline", "share of the attainable rate", _attained)


def _mlperf_hpc(source: _Source) -> Iterator[Figure]:
    yield from _best_of(source, "time_to_solution", min)
    yield from _best_of(source, "staging", min)
    yield from _best_of(source, "epochs", min)
    yield from _best_of(source, "train_throughput", max)
    yield from _from(source, "weak_scaling", "models per minute", _models)


def _hpc_ai500(source: _Source) -> Iterator[Figure]:
    yield from _from(source, "valid_flops", "Valid FLOPS", _vflops)
    yield from _from(source, "valid_flops", "time to quality", _time_to_quality)
    name = "variation over runs (CoV)"
    yield from _from(source, "repeatability", name, _variation)
    yield from _from(source, "communication", "communication in a step", _share)


def _dawnbench(source: _Source) -> Iterator[Figure]:
    yield from _best_of(source, "time_to_accuracy", min)
    yield from _from(source, "cost_to_accuracy", "cost to accuracy", _cost)


def _mlbench(source: _Source) -> Iterator[Figure]:
    for name, of in (
        ("speed-up", partial(_speed_up, "speed_up")),
        ("… without communication", partial(_speed_up, "compute_speed_up")),
        ("compute / communication", _ratio),
    ):
        yield from _from(source, "communication", name, of)
    yield from _from(source, "cost_to_accuracy", "price index", _price_index)


BENCHMARKS: Mapping[str, Callable[[_Source], Iterator[Figure]]] = {
    "AIPerf": _aiperf,
    "MLPerf HPC": _mlperf_hpc,
    "HPC AI500": _hpc_ai500,
    "DAWNBench": _dawnbench,
    "MLBench": _mlbench,
}


def _best_of(source: _Source, name: str, best: Callable[..., str]) -> Iterator[Figure]:
    """Yield the best run's value of a metric per workload, or the reason why there is none."""
    runs = frozenset[str]().union(*(each.names for each in source.workloads))
    of_runs = any_of(e.system.device for e in source.analysis.entries if e.name in runs)
    (metric,) = (each.counted_by(of_runs) for each in METRICS if each.name == name)
    measured = [of for of in source.analysis.metrics if of.entry in runs]
    known = {of.entry: of.metrics[name].mean for of in measured if name in of.metrics}
    missing = next((of.missing[name] for of in measured if name in of.missing), "")
    text: Callable[[float], str] = percent if name == "error" else partial(_with_unit, metric)
    yield from _best(source.workloads, metric.title, known, best, text, missing)


def _best_figure(
    source: _Source, title: str, quantity: Quantity, best: Callable[..., str]
) -> Iterator[Figure]:
    """Yield the best run's headline figure per workload, or a line that no run has it."""
    figures = ((entry.name, entry.figures.get(quantity.name)) for entry in source.analysis.entries)
    known = {run: value for run, value in figures if value is not None}
    missing = "no run that has ended has it"
    yield from _best(source.workloads, title, known, best, quantity.text, missing)


def _best(
    workloads: Sequence[_Runs],
    title: str,
    known: Mapping[str, float],
    best: Callable[..., str],
    text: Callable[[float], str],
    missing: str,
) -> Iterator[Figure]:
    """Yield the best value of the runs per workload, or the reason why there is none."""
    for workload, names in workloads:
        if own := [run for run in known if run in names]:
            run = best(own, key=known.__getitem__)
            yield Figure(name=title, value=text(known[run]), workload=workload, detail=run)
    if not known:
        yield Figure(name=title, value="", workload="", detail=missing)


def _with_unit(metric: Metric, value: float) -> str:
    if metric.unit in SECONDS:
        return duration(SECONDS[metric.unit] * value)
    return metric.formatted(value) + metric.suffix


def _from(
    source: _Source,
    section: str,
    name: str,
    candidates: Callable[[Any, _Runs], Iterator[_Candidate]],
) -> Iterator[Figure]:
    """Yield a section's best figure per workload, or the reason why there is none."""
    value = source.analysis.sections.get(section)
    found = {
        runs.workload: best
        for runs in (() if value is None else source.workloads)
        if (best := max(candidates(value, runs), key=lambda each: each.order, default=None))
    }
    for workload, best in found.items():
        yield Figure(name=name, value=best.value, workload=workload, detail=best.detail)
    if not found:
        missing = source.analysis.missing[section] if value is None else _why_not(value)
        yield Figure(name=name, value="", workload="", detail=missing)


def _why_not(value: Value) -> str:
    missing = getattr(value, "missing", {})
    text = list(missing.values()) if isinstance(missing, dict) else list(missing)
    if isinstance(value, Rooflines):
        text += [note for run in value.runs for note in run.notes if "peaks" in note]
    if isinstance(value, ValidFlopsTable) and value.rows:
        text.append("no training reached its target")
    return str(text[0]) if text else "no run carries it"


def _attained(found: Rooflines, runs: _Runs) -> Iterator[_Candidate]:
    for run in found.runs:
        for one in run.architectures[:1] if run.entry in runs.names else ():
            share, bound = one.separate.efficiency, one.separate.bound
            if share is not None:
                detail = f"{run.entry}, network {one.graph[:8]}, bound by {bound}"
                yield _Candidate(share, percent(share, 1), detail)


def _models(found: WeakScalings, runs: _Runs) -> Iterator[_Candidate]:
    for each in found.entries:
        rate = each.models_per_minute
        if each.entry in runs.names and rate is not None:
            yield _Candidate(rate, f"{rate:.4g}", f"{each.entry}, {each.instances} models")


def _vflops(found: ValidFlopsTable, runs: _Runs) -> Iterator[_Candidate]:
    for row in found.rows:
        if row.entry in runs.names:
            detail = f"{row.entry}, n = {row.exponent}"
            yield _Candidate(row.vflops, si(row.vflops, "FLOPS"), detail)


def _time_to_quality(found: ValidFlopsTable, runs: _Runs) -> Iterator[_Candidate]:
    for row in found.rows:
        seconds = row.seconds_to_quality
        if row.entry in runs.names and seconds is not None:
            yield _Candidate(-seconds, duration(seconds), f"{row.entry}, target {row.target:g}")


def _variation(found: Repeatability, runs: _Runs) -> Iterator[_Candidate]:
    for of in found.repetitions:
        for each in of.variations if of.benchmark == runs.workload else ():
            if each.metric in ("ops", "time_to_solution"):
                detail = f"{each.title} over {len(each.values)} runs of {of.name}"
                yield _Candidate(0.0, percent(each.variation), detail)


def _share(found: Communication, runs: _Runs) -> Iterator[_Candidate]:
    for each in found.breakdowns:
        if each.entry in runs.names:
            detail = f"{each.entry}, {each.ranks} ranks, {each.collective}"
            yield _Candidate(each.ranks, percent(each.fraction, 1), detail)


def _ratio(found: Communication, runs: _Runs) -> Iterator[_Candidate]:
    for each in found.breakdowns:
        if each.entry in runs.names and each.ratio is not None:
            detail = f"{each.entry}, {each.ranks} ranks"
            yield _Candidate(each.ranks, f"{each.ratio:.3g}", detail)


def _speed_up(field: str, found: Communication, runs: _Runs) -> Iterator[_Candidate]:
    """Yield the speed-up from the smallest to the largest scale of each comparison."""
    for each in found.speed_ups:
        base, most = each.points[0], each.points[-1]
        value = getattr(most, field)
        if runs.names.issuperset(base.entries) and value is not None:
            detail = f"{most.ranks} ranks against {base.ranks}"
            yield _Candidate(most.ranks, f"{value:.3g}", detail)


def _cost(found: CostToAccuracy, runs: _Runs) -> Iterator[_Candidate]:
    for contest in found.contests:
        for paid in contest.priced:
            if paid.entry in runs.names:
                value = f"{paid.cost:.3g} {contest.currency}"
                yield _Candidate(-paid.cost, value, f"{paid.entry}, {contest.title}")


def _price_index(found: CostToAccuracy, runs: _Runs) -> Iterator[_Candidate]:
    known = [
        paid.price_index for contest in found.contests for paid in contest.priced
        if paid.entry in runs.names and paid.price_index is not None
    ]  # fmt: skip
    if len(known) > 1:
        yield _Candidate(0.0, number(statistics.median(known)), f"median of {len(known)} runs")


def lines(card: Card, columns: int = WIDTH) -> Iterator[str]:
    """Yield the card as lines of text."""
    yield card.machine
    size = "" if card.resources is None else card.resources.summary
    facts = (size, *card.framework, counted(len(card.runs), "run"))
    yield from wrapped(", ".join(fact for fact in facts if fact), columns)
    for benchmark in card.benchmarks:
        yield ""
        yield benchmark.benchmark
        yield from tables_as_lines([_table(benchmark)], columns)
    if card.violations:
        yield ""
        where = "`aiperf report RUN` lists the reasons"
        official = f"Not an official AIPerf result: {card.unofficial}; {where}"
        yield from wrapped(official, columns, indent=0)


def _table(benchmark: BenchmarkFigures) -> Table:
    rows = tuple((f.name, f.value, f.workload, f.detail) for f in benchmark.figures if f.value)
    missing = {f.name: f.detail for f in benchmark.figures if not f.value}
    return Table(("", "", "", ""), rows, missing=tuple(reasons(missing)), words=(1, 2, 3))
