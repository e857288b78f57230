"""One machine on one sheet: the figures of five benchmarks, from its own runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.analyze.analysis import MEASURES, Analysis
from aiperf_hpc.primary.analyze.layout import WIDTH, tables_as_lines, wrapped
from aiperf_hpc.primary.analyze.sections.communication import Communication, SpeedUp
from aiperf_hpc.primary.analyze.sections.cost import CostToAccuracy
from aiperf_hpc.primary.analyze.sections.repeatability import Repeatability
from aiperf_hpc.primary.analyze.sections.roofline import Rooflines
from aiperf_hpc.primary.analyze.sections.valid_flops import ValidFlopsTable
from aiperf_hpc.primary.analyze.sections.weak_scaling import WeakScalings
from aiperf_hpc.primary.analyze.table import Table, number, reasons
from aiperf_hpc.primary.analyze.training_log import Entry
from aiperf_hpc.primary.formatting import duration, few, percent, si
from aiperf_hpc.trial import Value

S = TypeVar("S", bound=Value)


class Figure(Value):
    """One figure of a benchmark."""

    name: str
    value: str
    """As people read it; empty where it was not measured."""
    detail: str
    """Of which run or runs it is; or why it was not measured."""


class BenchmarkFigures(Value):
    """The figures of one benchmark."""

    benchmark: str
    figures: tuple[Figure, ...]


class Card(Value):
    """The sheet."""

    machine: str
    accelerator: str | None
    framework: tuple[str, ...]
    runs: tuple[str, ...]
    invalid: tuple[str, ...]
    """Why runs are no official results of AIPerf, a line for each reason."""
    benchmarks: tuple[BenchmarkFigures, ...]


def make_card(analysis: Analysis) -> Card:
    """Put the figures of a machine's runs on one sheet.

    Raises:
        UsageError: there is no run among what was analysed, or the runs are of several machines.
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
    largest = max(entries, key=lambda entry: entry.system.accelerators or 0)
    return Card(
        machine=largest.system.name,
        accelerator=largest.system.accelerator,
        framework=tuple(dict.fromkeys(e.system.framework for e in entries if e.system.framework)),
        runs=tuple(entry.name for entry in entries),
        invalid=tuple(dict.fromkeys(_invalid(entries))),
        benchmarks=(
            BenchmarkFigures(benchmark="AIPerf", figures=tuple(_aiperf(analysis))),
            BenchmarkFigures(benchmark="MLPerf HPC", figures=tuple(_mlperf_hpc(analysis))),
            BenchmarkFigures(benchmark="HPC AI500", figures=tuple(_hpc_ai500(analysis))),
            BenchmarkFigures(benchmark="DAWNBench", figures=tuple(_dawnbench(analysis))),
            BenchmarkFigures(benchmark="MLBench", figures=tuple(_mlbench(analysis))),
        ),
    )


def _invalid(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        for log in entry.logs:
            yield from (str(reason) for reason in log.settings.get("invalid", ()))


def _aiperf(analysis: Analysis) -> Iterator[Figure]:
    yield _best_of(analysis, "ops", max)
    yield _best_of(analysis, "regulated", max)
    yield _best_of(analysis, "error", min)
    yield _from(analysis, "roofline", Rooflines, "share of the attainable rate", _attained)


def _mlperf_hpc(analysis: Analysis) -> Iterator[Figure]:
    yield _best_of(analysis, "time_to_solution", min)
    yield _best_of(analysis, "staging", min)
    yield _best_of(analysis, "epochs", min)
    yield _best_of(analysis, "train_throughput", max)
    yield _from(analysis, "weak_scaling", WeakScalings, "models per minute", _models)


def _hpc_ai500(analysis: Analysis) -> Iterator[Figure]:
    yield _from(analysis, "valid_flops", ValidFlopsTable, "Valid FLOPS", _vflops)
    yield _from(analysis, "valid_flops", ValidFlopsTable, "time to quality", _time_to_quality)
    yield _from(analysis, "repeatability", Repeatability, "variation over runs (CoV)", _variation)
    yield _from(analysis, "communication", Communication, "communication in a step", _share)


def _dawnbench(analysis: Analysis) -> Iterator[Figure]:
    yield _best_of(analysis, "time_to_accuracy", min)
    yield _from(analysis, "cost_to_accuracy", CostToAccuracy, "cost to accuracy", _cost)


def _mlbench(analysis: Analysis) -> Iterator[Figure]:
    yield _from(analysis, "communication", Communication, "speed-up", _speed_up)
    yield _from(
        analysis, "communication", Communication, "… without communication", _compute_speed_up
    )
    yield _from(analysis, "communication", Communication, "compute / communication", _ratio)
    yield _from(analysis, "cost_to_accuracy", CostToAccuracy, "price index", _price_index)


def _best_of(analysis: Analysis, name: str, best: Callable[[Iterable[float]], float]) -> Figure:
    """Return the best run's value of a measure."""
    (measure,) = (each for each in MEASURES if each.name == name)
    found = {of.entry: of.measures[name].mean for of in analysis.measures if name in of.measures}
    if not found:
        missing = next((of.missing[name] for of in analysis.measures if name in of.missing), "")
        return Figure(name=measure.title, value="", detail=missing)
    value = best(found.values())
    run = next(entry for entry, each in found.items() if each == value)
    unit = f" {measure.unit}" if measure.unit and not measure.si else ""
    said = percent(value) if name == "error" else f"{measure.said(value)}{unit}"
    benchmark = next(entry.benchmark for entry in analysis.entries if entry.name == run)
    return Figure(name=measure.title, value=said, detail=f"{run}, {benchmark}")


def _from(
    analysis: Analysis, section: str, kind: type[S], name: str, of: Callable[[S], Figure | None]
) -> Figure:
    """Return a figure of a section, or why there is none."""
    value = analysis.sections.get(section)
    if value is None:
        return Figure(name=name, value="", detail=analysis.missing[section])
    assert isinstance(value, kind)  # noqa: S101 -- a section makes one kind
    found = of(value)
    if found is None:
        return Figure(name=name, value="", detail=_why_not(value))
    return found.model_copy(update={"name": name})


def _why_not(value: Value) -> str:
    missing = getattr(value, "missing", {})
    said = list(missing.values()) if isinstance(missing, dict) else list(missing)
    if isinstance(value, Rooflines):
        said += [note for run in value.runs for note in run.notes if "peaks" in note]
    if isinstance(value, ValidFlopsTable) and value.rows:
        said.append("no training reached its target")
    return str(said[0]) if said else "no run carries it"


def _figure(value: str, detail: str) -> Figure:
    return Figure(name="", value=value, detail=detail)


def _attained(found: Rooflines) -> Figure | None:
    known = [
        (one.separate.efficiency, run.entry, one.graph, one.separate.bound)
        for run in found.runs
        for one in run.architectures[:1]
        if one.separate.efficiency is not None
    ]
    if not known:
        return None
    share, run, graph, bound = max(known)
    return _figure(percent(share, 1), f"{run}, network {graph[:8]}, bound by {bound}")


def _models(found: WeakScalings) -> Figure | None:
    known = [e for e in found.entries if e.models_per_minute is not None]
    if not known:
        return None
    best = max(known, key=lambda e: e.models_per_minute or 0.0)
    return _figure(f"{best.models_per_minute:.4g}", f"{best.entry}, {best.instances} models")


def _vflops(found: ValidFlopsTable) -> Figure | None:
    if not found.rows:
        return None
    best = max(found.rows, key=lambda row: row.vflops)
    return _figure(si(best.vflops, "FLOPS"), f"{best.entry}, n = {best.exponent}")


def _time_to_quality(found: ValidFlopsTable) -> Figure | None:
    known = [row for row in found.rows if row.seconds_to_quality is not None]
    if not known:
        return None
    best = min(known, key=lambda row: row.seconds_to_quality or 0.0)
    return _figure(
        duration(best.seconds_to_quality or 0.0), f"{best.entry}, target {best.target:g}"
    )


def _variation(found: Repeatability) -> Figure | None:
    known = [
        (each, of) for of in found.repetitions for each in of.variations
        if each.measure in ("ops", "time_to_solution")
    ]  # fmt: skip
    if not known:
        return None
    each, of = known[0]
    return _figure(percent(each.variation), f"{each.title} over {len(of.runs)} runs of {of.name}")


def _share(found: Communication) -> Figure | None:
    if not found.breakdowns:
        return None
    most = max(found.breakdowns, key=lambda b: b.ranks)
    return _figure(percent(most.share, 1), f"{most.entry}, {most.ranks} ranks, {most.collective}")


def _ratio(found: Communication) -> Figure | None:
    known = [b for b in found.breakdowns if b.ratio is not None]
    if not known:
        return None
    most = max(known, key=lambda b: b.ranks)
    return _figure(f"{most.ratio:.3g}", f"{most.entry}, {most.ranks} ranks")


def _furthest(found: Communication) -> SpeedUp | None:
    return max(found.speed_ups, key=lambda one: one.points[-1].ranks, default=None)


def _speed_up(found: Communication) -> Figure | None:
    one = _furthest(found)
    if one is None:
        return None
    last, first = one.points[-1], one.points[0]
    return _figure(f"{last.speed_up:.3g}", f"{last.ranks} ranks against {first.ranks}")


def _compute_speed_up(found: Communication) -> Figure | None:
    one = _furthest(found)
    if one is None or one.points[-1].compute_speed_up is None:
        return None
    last, first = one.points[-1], one.points[0]
    return _figure(f"{last.compute_speed_up:.3g}", f"{last.ranks} ranks against {first.ranks}")


def _cost(found: CostToAccuracy) -> Figure | None:
    known = [(paid, contest) for contest in found.contests for paid in contest.priced]
    if not known:
        return None
    paid, contest = min(known, key=lambda pair: pair[0].cost)
    return _figure(f"{paid.cost:.3g} {contest.currency}", f"{paid.entry}, {contest.title}")


def _price_index(found: CostToAccuracy) -> Figure | None:
    known = [
        paid.price_index for contest in found.contests for paid in contest.priced
        if paid.price_index is not None
    ]  # fmt: skip
    if len(known) < 2:
        return None
    return _figure(number(statistics.median(known)), f"median of {len(known)} runs")


def lines(card: Card, columns: int = WIDTH) -> Iterator[str]:
    """Yield the sheet as lines of text."""
    yield card.machine
    runs = f"{len(card.runs)} run{'s' * (len(card.runs) != 1)}"
    facts = (card.accelerator or "", *card.framework, runs)
    yield from wrapped(", ".join(fact for fact in facts if fact), columns)
    for benchmark in card.benchmarks:
        yield ""
        yield benchmark.benchmark
        yield from tables_as_lines([_table(benchmark)], columns)
    if card.invalid:
        yield ""
        official = f"No official result of AIPerf: {'; '.join(card.invalid)}"
        yield from wrapped(official, columns, indent=0)


def _table(benchmark: BenchmarkFigures) -> Table:
    rows = tuple((f.name, f.value, f.detail) for f in benchmark.figures if f.value)
    missing = {f.name: f.detail for f in benchmark.figures if not f.value}
    return Table(("", "", ""), rows, missing=tuple(reasons(missing)), words=(1, 2))
