"""The sections of an analysis as tables of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiperf_hpc.primary.analyze.layout import number, reasons
from aiperf_hpc.primary.analyze.measures.communication import CommunicationPart
from aiperf_hpc.primary.analyze.measures.scaling import Estimate, PowerLaw
from aiperf_hpc.primary.analyze.page.table import Table
from aiperf_hpc.primary.analyze.sections.communication import Communication, SpeedUp
from aiperf_hpc.primary.analyze.sections.cost import Costs, CostToAccuracy
from aiperf_hpc.primary.analyze.sections.inference import Servings
from aiperf_hpc.primary.analyze.sections.reference_convergence import ReferenceConvergence
from aiperf_hpc.primary.analyze.sections.repeatability import Repeatability, Repetition
from aiperf_hpc.primary.analyze.sections.roofline import Rooflines, RunRoofline
from aiperf_hpc.primary.analyze.sections.scaling_study import (
    EqualWork,
    ScalingStudies,
    ScalingStudy,
    Spread,
)
from aiperf_hpc.primary.analyze.sections.thresholds import Sensitivities, Sensitivity, by_rank
from aiperf_hpc.primary.analyze.sections.valid_flops import Declared, ValidFlopsTable
from aiperf_hpc.primary.analyze.sections.weak_scaling import WeakScalings
from aiperf_hpc.primary.formatting import duration, few, percent, si

MOST_THRESHOLDS = 12
"""Columns that have room; the drawing has all thresholds."""


def optional(say: Callable[[float], str], value: float | None) -> str:
    """Return a value as it is said, or nothing where there is none."""
    return "" if value is None else say(value)


def without(what: str, missing: Mapping[str, str]) -> tuple[str, ...]:
    """Return why figures are missing, a line for each reason."""
    return tuple(f"{what} of {said}" for said in reasons(missing))


def weak_scaling(found: WeakScalings) -> Iterator[Table]:
    """Yield models per minute."""
    columns = (
        "entry", "models", "failed", "left out", "accelerators each", "minutes", "models/min",
    )  # fmt: skip
    rows = tuple(
        (
            e.entry, str(e.instances), str(e.failed), str(e.pruned),
            optional("{:,.0f}".format, e.accelerators_per_instance),
            optional(number, e.minutes), optional("{:.4g}".format, e.models_per_minute),
        )
        for e in found.entries
    )  # fmt: skip
    notes = without("no time", {e.entry: e.missing for e in found.entries if e.missing})
    problems = tuple(f"{e.entry}: {problem}" for e in found.entries for problem in e.problems)
    yield Table(columns, rows, notes=(*notes, *problems))


def reference_convergence(found: ReferenceConvergence) -> Iterator[Table]:
    """Yield how fast entries converge beside the reference."""
    columns = (
        "entry", "batch", "to converge", "reference", "least by chance", "time ×",
        "scaling.json", "verdict",
    )  # fmt: skip
    rows = tuple(
        (
            row.entry, f"{row.batch_size:,}", number(row.mean), number(row.reference),
            number(row.least), f"{row.factor:.4f}", optional("{:.4f}".format, row.submitted),
            str(row.verdict),
        )
        for row in found.rows
    )  # fmt: skip
    yield Table(columns, rows, notes=without("no comparison", found.missing))


def scaling_study(found: ScalingStudies) -> Iterator[Table]:
    """Yield throughput, epochs and time at each scale, and what they predict of others."""
    for study in found.studies:
        yield _study(study)
        yield from (_predictions(study.subject, work) for work in study.equal_work)
    if found.left_out:
        yield Table((), (), notes=without("no scaling", found.left_out))


def _study(study: ScalingStudy) -> Table:
    columns = (
        "entry", "accelerators", "batch", "samples/s", "epochs", "minutes", "speed-up", "ideal",
        "efficiency", "… of time",
    )  # fmt: skip
    rows = tuple(
        (
            p.entry, f"{p.accelerators:,}", optional("{:,.0f}".format, p.global_batch_size),
            number(p.throughput.mean), _mean(p.epochs), _mean(p.minutes), f"{p.speedup:.3g}",
            f"{p.ideal_speedup:.3g}", percent(p.efficiency, 1),
            "" if p.time_efficiency is None else percent(p.time_efficiency, 1),
        )
        for p in study.points
    )  # fmt: skip
    notes = [*study.notes]
    if study.epochs_by_batch is not None:
        notes.append(f"epochs grow as batch size to the power {_exponent(study.epochs_by_batch)}")
    if study.component is not None and study.component.exponent is not None:
        notes.append(
            f"principal component of ln(throughput) and ln(epochs): "
            f"{percent(study.component.explained, 1)} of the variance, epochs as throughput to "
            f"the power {study.component.exponent:.3g}"
        )
    missing = tuple(f"no {what}: {why}" for what, why in study.missing.items())
    return Table(columns, rows, study.subject, (*notes, *missing))


def _mean(spread: Spread | None) -> str:
    if spread is None:
        return ""
    deviation = "" if spread.deviation is None else f" ± {number(spread.deviation)}"
    return number(spread.mean) + deviation


def _exponent(law: PowerLaw) -> str:
    margin = "" if law.exponent_margin is None else f" ± {law.exponent_margin:.2g}"
    return f"{law.exponent:.3g}{margin}"


def _predictions(subject: str, work: EqualWork) -> Table:
    columns = ("accelerators", "batch", "samples/s", "epochs", "minutes")
    rows = tuple(
        (
            f"{p.accelerators:,}", f"{p.global_batch_size:,.0f}", _estimate(p.throughput),
            _estimate(p.epochs), _estimate(p.minutes),
        )
        for p in work.predictions
    )  # fmt: skip
    title = f"{subject}: predicted at {work.local_batch_size:g} samples per accelerator and step"
    notes = (f"from {few(work.entries)}; in brackets where one more entry would lie, 95 %",)
    return Table(columns, rows, title, notes)


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)} to {number(estimate.high)}]"


def valid_flops(found: ValidFlopsTable) -> Iterator[Table]:
    """Yield Valid FLOPS of each entry, and what entries declare to have changed."""
    columns = (
        "entry", "FLOPS", "quality", "target", "n", "Valid FLOPS", "reached the target",
        "time to it",
    )  # fmt: skip
    rows = tuple(
        (
            row.entry, si(row.flops, "FLOPS"), f"{row.quality:.4g}", f"{row.target:g}",
            str(row.exponent), si(row.vflops, "FLOPS"), f"{row.reached} of {row.trainings}",
            optional(duration, row.seconds_to_quality),
        )
        for row in found.rows
    )  # fmt: skip
    sources = dict.fromkeys(f"FLOPS: {row.flops_source}" for row in found.rows)
    yield Table(columns, rows, notes=(*sources, *without("no Valid FLOPS", found.missing)))
    for declared in found.declared:
        yield _declaration(declared)


def _declaration(declared: Declared) -> Table:
    said = declared.declaration
    rows = tuple(
        (name.replace("_", " "), "changed" if layer.changed else "", layer.what or "")
        for name, layer in said.layers.items()
    )
    contradicted = tuple(f"contradicted by its logs: {line}" for line in declared.contradicted)
    title = f"{declared.entry} declares the {said.level} level"
    return Table(("layer", "", "what"), rows, title, contradicted)


def thresholds(found: Sensitivities) -> Iterator[Table]:
    """Yield the time of each entry to each threshold, with its rank."""
    for contest in found.contests:
        yield _sensitivity(contest)


def _sensitivity(contest: Sensitivity) -> Table:
    shown = contest.thresholds
    if len(shown) > MOST_THRESHOLDS:
        step = (len(shown) - 1) / (MOST_THRESHOLDS - 1)
        shown = tuple(shown[round(place * step)] for place in range(MOST_THRESHOLDS))
    columns = ("entry", *(f"{row.threshold:g}" for row in shown))
    names = by_rank(contest)
    cells = [{standing.entry: standing for standing in row.standings} for row in shown]
    rows = tuple(
        (
            name,
            *(
                "–" if row[name].seconds is None
                else f"{_seconds(row[name].seconds)} ({row[name].rank})"
                for row in cells
            ),
        )
        for name in names
    )  # fmt: skip
    changes = [
        f"at {row.threshold:g}: {change.ahead} is now "
        f"{'faster' if change.by == 'time' else 'cheaper'} than {change.behind}"
        for row in contest.thresholds
        for change in row.changes
    ]
    notes = (*contest.notes, *without("no time", contest.unmeasured), *changes)
    return Table(columns, rows, f"{contest.title}: time to each threshold, and rank", notes)


def _seconds(seconds: float | None) -> str:
    assert seconds is not None  # noqa: S101 -- asked before
    return f"{seconds:,.0f} s" if seconds >= 1000.0 else f"{seconds:.4g} s"


def cost(found: CostToAccuracy) -> Iterator[Table]:
    """Yield cost to accuracy."""
    for contest in found.contests:
        yield _costs(contest)


def _costs(contest: Costs) -> Table:
    columns = (
        "entry", "min", contest.currency, f"{contest.currency} per hour", "price index",
        "on the front",
    )  # fmt: skip
    rows = tuple(
        (
            paid.entry, number(paid.seconds / 60.0), f"{paid.cost:,.3g}",
            f"{paid.price_per_hour:,.5g}", optional("{:.3g}".format, paid.price_index),
            "yes" if paid.on_front else "",
        )
        for paid in contest.priced
    )  # fmt: skip
    against = (
        (f"price index: price increase / performance increase, against {contest.base}",)
        if contest.base and len(rows) > 1
        else ()
    )
    missing = without("no cost", contest.missing)
    return Table(columns, rows, contest.title, (*against, *contest.notes, *missing))


def inference(found: Servings) -> Iterator[Table]:
    """Yield latency and cost of inference."""
    for serving in found.benchmarks:
        rows = tuple(
            (
                served.entry, f"{served.quality:.6g}",
                optional(lambda s: f"{1e3 * s:.4g} ms", served.latency),
                optional("{:.3g}".format, served.cost),
            )
            for served in serving.served
        )  # fmt: skip
        notes = tuple(f"left out {name}: {why}" for name, why in serving.excluded.items())
        yield Table(("entry", "quality", "latency", "USD"), rows, serving.benchmark, notes)


def repeatability(found: Repeatability) -> Iterator[Table]:
    """Yield how much measures vary over repeated runs."""
    for repetition in found.repetitions:
        yield _repetition(repetition, found.precision)


def _repetition(of: Repetition, precision: float) -> Table:
    columns = (
        "measure", "mean", "deviation", "CoV", "interval", f"runs for ±{percent(precision, 1)}",
    )  # fmt: skip
    rows = []
    for each in of.variations:
        interval = each.interval
        high = "" if interval is None else optional(percent, interval.high)
        known = each.no_interval if interval is None else f"{percent(interval.low)} to {high}"
        needed = optional("{:,.0f}".format, each.runs_needed) or "over a million"
        title = f"{each.title}, {each.unit}" if each.unit else each.title
        rows.append(
            (title, f"{each.mean:.6g}", f"{each.deviation:.3g}", percent(each.variation), known,
             needed)
        )  # fmt: skip
    return Table(columns, tuple(rows), f"{of.name}: {len(of.runs)} runs", tuple(_said(of)))


def _said(of: Repetition) -> Iterator[str]:
    yield from of.notes
    yield from (f"left out: {left}" for left in of.left_out)
    for verdict in of.verdicts:
        yield (
            f"{verdict.measure}: CoV {percent(verdict.variation)}, the limit is "
            f"{percent(verdict.limit)}: {verdict.verdict}"
        )
    if of.target is not None:
        yield f"the target was reached in {of.target.reached} of {of.target.runs} runs"
    if of.similarity is not None:
        yield f"Jaccard similarity of predictions: {of.similarity.mean:.4f} on average"
    if of.noise is not None:
        for factor in of.noise.factors:
            yield f"{factor.name}: {percent(factor.share, 0)} of the variance of ln(OPS)"
    if of.length is not None and of.length.within_seconds is not None:
        bound = "" if of.length.steady else "at least "
        yield (
            f"a run of {bound}{duration(of.length.within_seconds)} gives its OPS to "
            f"±{percent(of.length.precision, 1)}"
        )


def communication(found: Communication) -> Iterator[Table]:
    """Yield what communication takes, and what more ranks bring."""
    parts = [str(part) for part in CommunicationPart]
    columns = ("run", "ranks", "step", "compute", "communication", "share", "ratio", *parts)
    rows = tuple(
        (
            b.entry, str(b.ranks), _ms(b.step), _ms(b.compute), _ms(b.communication),
            percent(b.share, 1), optional("{:.3g}".format, b.ratio),
            *(optional(_ms, b.parts.get(part)) for part in CommunicationPart),
        )
        for b in found.breakdowns
    )  # fmt: skip
    if rows:
        yield Table(columns, rows, "A training step")
    yield from (_speed_up(each) for each in found.speed_ups)
    if found.missing:
        yield Table((), (), notes=found.missing)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _speed_up(found: SpeedUp) -> Table:
    columns = (
        "ranks", "batch", "rate", "speed-up", "efficiency", "… without communication",
        "efficiency",
    )  # fmt: skip
    rows = tuple(
        (
            f"{p.ranks:,}", optional("{:,.0f}".format, p.batch_size), si(p.rate, "OP/s"),
            f"{p.speed_up:.3g}", percent(p.efficiency, 1),
            optional("{:.3g}".format, p.compute_speed_up),
            "" if p.compute_efficiency is None else percent(p.compute_efficiency, 1),
        )
        for p in found.points
    )  # fmt: skip
    return Table(
        columns,
        rows,
        f"{found.subject}, {found.scaling} scaling",
        (found.missing,) * bool(found.missing),
    )


def rooflines(found: Rooflines) -> Iterator[Table]:
    """Yield every network beside what its machine could attain, and what each worker moves."""
    for run in found.runs:
        yield _roofline(run)
    if found.runs:
        yield _characterisation(found.runs)
    if found.missing:
        yield Table((), (), notes=without("no roofline", found.missing))


def _roofline(run: RunRoofline) -> Table:
    columns = (
        "network", "precision", "operations/B", "achieved", "attainable", "of it", "of the peak",
        "bound by",
    )  # fmt: skip
    rows = tuple(
        (
            a.graph[:8], a.precision, f"{a.separate.intensity:.3g}", si(a.achieved, "OPS"),
            optional(lambda ops: si(ops, "OPS"), a.separate.attainable),
            optional(lambda share: percent(share, 1), a.separate.efficiency),
            optional(lambda share: percent(share, 1), a.of_peak), a.separate.bound or "",
        )
        for a in run.architectures
    )  # fmt: skip
    more = (f"and {run.omitted:,} more networks",) if run.omitted else ()
    return Table(columns, rows, f"{run.entry}, per worker", (*more, *run.notes))


def _characterisation(runs: Sequence[RunRoofline]) -> Table:
    columns = ("run", "memory", "… if fused", "network", "input", "of")
    rows = tuple(
        (
            run.entry, si(run.worker.memory, "B/s"), si(run.worker.memory_fused, "B/s"),
            optional(lambda rate: si(rate, "B/s"), run.worker.network),
            optional(lambda rate: si(rate, "B/s"), run.worker.io), run.worker.io_of or "",
        )
        for run in runs
    )  # fmt: skip
    return Table(columns, rows, "What one worker moves, as MLPerf HPC characterises benchmarks")


TABLES: Mapping[str, Callable[[Any], Iterable[Table]]] = {
    "weak_scaling": weak_scaling,
    "reference_convergence": reference_convergence,
    "scaling_study": scaling_study,
    "valid_flops": valid_flops,
    "threshold_sensitivity": thresholds,
    "cost_to_accuracy": cost,
    "inference": inference,
    "repeatability": repeatability,
    "communication": communication,
    "roofline": rooflines,
}
"""By the name of the section."""
