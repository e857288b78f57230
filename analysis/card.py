"""Machine card: one page with a machine's figures for five benchmarks, from its own runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from aiperf_hpc.formatting import counted, duration, few, percent, si
from aiperf_hpc.results.table import Table, number, reasons
from aiperf_hpc.results.views.quantities import Quantity, View, quantities_in
from aiperf_hpc.results.views.resources import Resources
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


class _Candidate(NamedTuple):
    """A figure of one or several runs of a workload."""

    run: str
    """Name of the run, or of one of them."""
    order: float
    """Sort key: the card shows the candidate with the highest order, or the first of equals."""
    value: str
    detail: str


class _Source(NamedTuple):
    """Sources of the figures."""

    analysis: Analysis
    workloads: Mapping[str, str]
    """Workload of each run, by the run's name."""


def make_card(analysis: Analysis) -> Card:
    """Return the card of a machine from the figures of its runs.

    Raises:
        UsageError: the analysis contains no run, or runs of several machines.
    """
    entries = [entry for entry in analysis.entries if entry.format == "aiperf"]
    if not entries:
        reasons = "; ".join(f"{one.path}: {one.reason}" for one in analysis.unreadable)
        raise UsageError(f"no run to summarize{': ' if reasons else ''}{reasons}")
    accelerators = dict.fromkeys(entry.system.accelerator for entry in entries)
    if len(accelerators) > 1:
        raise UsageError(
            "a card summarizes one machine; these runs are from "
            f"{few([str(a) for a in accelerators])}"
        )
    largest = max(entries, key=_size)
    source = _Source(analysis, {entry.name: entry.benchmark for entry in entries})
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


def _violations(entries: Iterable[Entry]) -> Iterator[Violation]:
    for entry in entries:
        for log in entry.logs:
            yield from map(Violation.model_validate, log.settings.get("violations", ()))


def _aiperf(source: _Source) -> Iterator[Figure]:
    metrics = {metric.name for metric in METRICS}
    for heading, quantity in quantities_in(View.CARD).items():
        lower = quantity.better == "lower"
        if quantity.name in metrics:
            yield from _of_metric(source, quantity.name, lower=lower)
        else:
            yield from _of_quantity(source, heading, quantity, lower=lower)
    yield from _from(source, "roofline", "fraction of the attainable rate", _attained)


def _mlperf_hpc(source: _Source) -> Iterator[Figure]:
    yield from _of_metric(source, "time_to_solution", lower=True)
    yield from _of_metric(source, "staging", lower=True)
    yield from _of_metric(source, "epochs", lower=True)
    yield from _of_metric(source, "train_throughput", lower=False)
    yield from _from(source, "weak_scaling", "models per minute", _models)


def _hpc_ai500(source: _Source) -> Iterator[Figure]:
    yield from _from(source, "valid_flops", "Valid FLOPS", _vflops)
    yield from _from(source, "valid_flops", "time to quality", _time_to_quality)
    name = "variation over runs (CoV)"
    yield from _from(source, "repeatability", name, partial(_variation, source))
    yield from _from(source, "communication", "communication in a step", _share)


def _dawnbench(source: _Source) -> Iterator[Figure]:
    yield from _of_metric(source, "time_to_accuracy", lower=True)
    yield from _from(source, "cost_to_accuracy", "cost to accuracy", _cost)


def _mlbench(source: _Source) -> Iterator[Figure]:
    for name, of in (
        ("speed-up", partial(_speed_up, "speed_up")),
        ("… without communication", partial(_speed_up, "compute_speed_up")),
        ("compute / communication", _ratio),
    ):
        yield from _from(source, "communication", name, of)
    yield from _from(source, "cost_to_accuracy", "price index", partial(_price_index, source))


BENCHMARKS: Mapping[str, Callable[[_Source], Iterator[Figure]]] = {
    "AIPerf": _aiperf,
    "MLPerf HPC": _mlperf_hpc,
    "HPC AI500": _hpc_ai500,
    "DAWNBench": _dawnbench,
    "MLBench": _mlbench,
}


def _of_metric(source: _Source, name: str, *, lower: bool) -> Iterator[Figure]:
    """Yield the best run's value of a metric per workload, or the reason why there is none."""
    devices = (e.system.device for e in source.analysis.entries if e.name in source.workloads)
    of_runs = any_of(devices)
    (metric,) = (each.counted_by(of_runs) for each in METRICS if each.name == name)
    measured = [of for of in source.analysis.metrics if of.entry in source.workloads]
    known = {of.entry: of.metrics[name].mean for of in measured if name in of.metrics}
    missing = next((of.missing[name] for of in measured if name in of.missing), "")
    text: Callable[[float], str] = percent if name == "error" else partial(_with_unit, metric)
    yield from _best(source, metric.title, _candidates(known, text, lower=lower), missing)


def _of_quantity(
    source: _Source, title: str, quantity: Quantity, *, lower: bool
) -> Iterator[Figure]:
    """Yield the best run's headline figure per workload, or a line that no run has it."""
    figures = ((entry.name, entry.figures.get(quantity.name)) for entry in source.analysis.entries)
    known = {run: value for run, value in figures if value is not None}
    candidates = _candidates(known, quantity.text, lower=lower)
    yield from _best(source, title, candidates, "no finished run has it")


def _candidates(
    known: Mapping[str, float], text: Callable[[float], str], *, lower: bool
) -> Iterator[_Candidate]:
    for run, value in known.items():
        yield _Candidate(run, -value if lower else value, text(value), run)


def _best(
    source: _Source, name: str, candidates: Iterable[_Candidate], missing: str
) -> Iterator[Figure]:
    """Yield the best candidate of each workload, or the reason why there is none."""
    found: dict[str, list[_Candidate]] = {each: [] for each in source.workloads.values()}
    for each in candidates:
        if each.run in source.workloads:
            found[source.workloads[each.run]].append(each)
    for workload, of_it in found.items():
        if of_it:
            best = max(of_it, key=lambda each: each.order)
            yield Figure(name=name, value=best.value, workload=workload, detail=best.detail)
    if not any(found.values()):
        yield Figure(name=name, value="", workload="", detail=missing)


def _with_unit(metric: Metric, value: float) -> str:
    if metric.unit in SECONDS:
        return duration(SECONDS[metric.unit] * value)
    return metric.formatted(value) + metric.suffix


def _from(
    source: _Source, section: str, name: str, candidates: Callable[[Any], Iterable[_Candidate]]
) -> Iterator[Figure]:
    """Yield a section's best figure per workload, or the reason why there is none."""
    value = source.analysis.sections.get(section)
    if value is None:
        yield from _best(source, name, (), source.analysis.missing[section])
    else:
        yield from _best(source, name, candidates(value), _why_not(value))


def _why_not(value: Value) -> str:
    missing = getattr(value, "missing", {})
    text = list(missing.values()) if isinstance(missing, dict) else list(missing)
    if isinstance(value, Rooflines):
        text += [note for run in value.runs for note in run.notes if "peaks" in note]
    if isinstance(value, ValidFlopsTable) and value.rows:
        text.append("no training reached its target")
    return str(text[0]) if text else "no run has it"


def _attained(found: Rooflines) -> Iterator[_Candidate]:
    for run in found.runs:
        for one in run.architectures[:1]:
            share, bound = one.separate.efficiency, one.separate.bound
            if share is not None:
                detail = f"{run.entry}, network {one.graph[:8]}, bound by {bound}"
                yield _Candidate(run.entry, share, percent(share, 1), detail)


def _models(found: WeakScalings) -> Iterator[_Candidate]:
    for each in found.entries:
        rate = each.models_per_minute
        if rate is not None:
            detail = f"{each.entry}, {each.instances} models"
            yield _Candidate(each.entry, rate, f"{rate:.4g}", detail)


def _vflops(found: ValidFlopsTable) -> Iterator[_Candidate]:
    for row in found.rows:
        detail = f"{row.entry}, n = {row.exponent}"
        yield _Candidate(row.entry, row.vflops, si(row.vflops, "FLOPS"), detail)


def _time_to_quality(found: ValidFlopsTable) -> Iterator[_Candidate]:
    for row in found.rows:
        seconds = row.seconds_to_quality
        if seconds is not None:
            detail = f"{row.entry}, target {row.target:g}"
            yield _Candidate(row.entry, -seconds, duration(seconds), detail)


def _variation(source: _Source, found: Repeatability) -> Iterator[_Candidate]:
    names = {log.source: entry.name for entry in source.analysis.entries for log in entry.logs}
    for of in found.repetitions:
        for each in of.variations:
            if each.metric in ("ops", "time_to_solution"):
                detail = f"{each.title} over {len(each.values)} runs of {of.name}"
                yield _Candidate(names[of.runs[0]], 0.0, percent(each.variation), detail)


def _share(found: Communication) -> Iterator[_Candidate]:
    for each in found.breakdowns:
        detail = f"{each.entry}, {each.ranks} ranks, {each.collective}"
        yield _Candidate(each.entry, each.ranks, percent(each.fraction, 1), detail)


def _ratio(found: Communication) -> Iterator[_Candidate]:
    for each in found.breakdowns:
        if each.ratio is not None:
            detail = f"{each.entry}, {each.ranks} ranks"
            yield _Candidate(each.entry, each.ranks, f"{each.ratio:.3g}", detail)


def _speed_up(field: str, found: Communication) -> Iterator[_Candidate]:
    """Yield the speed-up from the smallest to the largest scale of each comparison."""
    for each in found.speed_ups:
        base, most = each.points[0], each.points[-1]
        value = getattr(most, field)
        if value is not None:
            detail = f"{most.ranks} ranks against {base.ranks}"
            yield _Candidate(base.entries[0], most.ranks, f"{value:.3g}", detail)


def _cost(found: CostToAccuracy) -> Iterator[_Candidate]:
    for contest in found.contests:
        for paid in contest.priced:
            value = f"{paid.cost:.3g} {contest.currency}"
            yield _Candidate(paid.entry, -paid.cost, value, f"{paid.entry}, {contest.title}")


def _price_index(source: _Source, found: CostToAccuracy) -> Iterator[_Candidate]:
    """Yield the median over the runs of each workload."""
    known: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for contest in found.contests:
        for paid in contest.priced:
            if paid.entry in source.workloads and paid.price_index is not None:
                known[source.workloads[paid.entry]][paid.entry] = paid.price_index
    for indices in known.values():
        if len(indices) > 1:
            median = number(statistics.median(indices.values()))
            yield _Candidate(next(iter(indices)), 0.0, median, f"median of {len(indices)} runs")


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
