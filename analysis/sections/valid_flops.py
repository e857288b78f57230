"""Ranking of entries by Valid FLOPS, with their time to quality and declared changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, repeat
from operator import attrgetter
from statistics import fmean, stdev
from typing import NamedTuple

from aiperf_hpc.analysis.declaration import LAYERS, Declaration, Layer
from aiperf_hpc.analysis.metric import NotMeasuredError, measured_each, plus_minus, required
from aiperf_hpc.analysis.metrics.score import operations_per_second
from aiperf_hpc.analysis.metrics.time_to_accuracy import NO_TARGET, time_to_quality
from aiperf_hpc.analysis.metrics.time_to_solution import throughput_of_all
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry, Quality, TrainingLog
from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import duration, few, si
from aiperf_hpc.grouping import grouped
from aiperf_hpc.ops_counter import score
from aiperf_hpc.results.table import Table, optional, reasons
from aiperf_hpc.trial import Value

EXPONENTS = {
    "resnet": 5, "imagenet": 5, "cifar10": 5, "digits": 5, "deepcam": 10, "extreme-weather": 10
}  # fmt: skip
"""Exponent n by part of a benchmark's name: 5 for image classification, 10 for extreme weather
analytics [HPC AI500 V2.0, Valid FLOPS]. AIPerf assigns CIFAR-10 and digits to the former and
DeepCAM to the latter; HPC AI500's own networks are ResNet-50 and Faster R-CNN."""
DEFAULT_EXPONENT = 5
"""Exponent n of benchmarks without one in HPC AI500: the lower weight."""


class KnownCount(NamedTuple):
    """Operations of one training sample, forward and backward, of a published network.

    A multiply-accumulate is 2 operations. Only convolutions and matrix products count, without the
    gradient of the input but with products of padding. Direct convolution is assumed; a framework
    with a faster algorithm (Winograd, FFT) executes fewer operations.
    """

    benchmark: str
    train_samples: int | None
    """Size of the dataset in the rounds with this network; None for all rounds."""
    operations: int
    source: str


KNOWN_COUNTS = (
    KnownCount(
        "cosmoflow", 262_144, 56_933_533_184,
        "MLPerf HPC v0.7, 4×128³, kernels of 2: 5,597,604 parameters",
    ),
    KnownCount(
        "cosmoflow", 524_288, 192_090_785_280,
        "MLPerf HPC v1.0 on, 4×128³, kernels of 3: 8,907,556 parameters",
    ),
    KnownCount(
        "deepcam", None, 1_963_974_567_936,
        "MLPerf HPC, 16×768×1152, depthwise weight gradients by group: 56,454,720 parameters",
    ),
    KnownCount(
        "resnet", None, 24_299_077_632,
        "MLPerf Training, ResNet-50 v1.5, 3×224², 1000 classes: 25,557,032 parameters",
    ),
)  # fmt: skip


def valid_flops(flops: float, quality: Quality, achieved: float, exponent: int) -> float:
    """Return VFLOPS = FLOPS · ratio^n, operations per second.

    The ratio is the achieved quality as a fraction of the target; above 1 is better.

    Raises:
        NotMeasuredError: a quality is not positive, so their ratio is undefined; or the result
            overflows or underflows.
    """
    target = _target(quality)
    ratio = score.quality_ratio(achieved, target, higher_is_better=quality.higher_is_better)
    missing = f"quality {achieved:g} with target {target:g}: their ratio is meaningless"
    ratio = required(ratio, missing)
    missing = f"FLOPS times {ratio:g} to the power of {exponent} is not a number"
    return required(score.weighted(flops, ratio, exponent), missing)


def achieved_quality(log: TrainingLog) -> float:
    """Return the quality of the last evaluation, which is that of the final network.

    Raises:
        NotMeasuredError: there is no evaluation, or the last one has no number.
    """
    if not log.evaluations:
        raise NotMeasuredError("no evaluation is logged")
    missing = "the last evaluation has no numeric quality"
    return required(log.evaluations[-1].quality, missing)


def _target(quality: Quality | None) -> float:
    """Return the target that weights a quality. Raises NotMeasuredError if there is none."""
    target = None
    if quality is not None:
        target = quality.target if quality.weighted_by is None else quality.weighted_by
    return required(target, NO_TARGET)


def known_count(benchmark: str, train_samples: int | None) -> KnownCount:
    """Return the operation count of a published benchmark's network.

    CosmoFlow's network changed with its dataset, so the dataset's size identifies the network.

    Raises:
        NotMeasuredError: there is none.
    """
    rows = [row for row in KNOWN_COUNTS if row.benchmark == benchmark]
    if not rows:
        raise NotMeasuredError(f"no count of operations per sample is known for {benchmark}")
    for row in rows:
        if row.train_samples in (None, train_samples):
            return row
    sizes = " or ".join(f"{row.train_samples:,}" for row in rows)
    stated = "no size" if train_samples is None else f"{train_samples:,} samples"
    raise NotMeasuredError(f"{benchmark}'s network is known by a dataset of {sizes}, not {stated}")


def exponent_of(benchmark: str, chosen: int | None) -> tuple[int, str]:
    """Return n and its source: the user, HPC AI500's kind of problem, or the default."""
    if chosen is not None:
        return chosen, "chosen"
    for word, exponent in EXPONENTS.items():
        if word in benchmark.lower():
            return exponent, "HPC AI500"
    return DEFAULT_EXPONENT, f"HPC AI500 has none for {benchmark}; that of image classification"


PROBLEMS: dict[str, tuple[float, tuple[int, ...]]] = {
    "cosmoflow": (0.124, (262_144, 524_288)),
    "deepcam": (0.82, (121_266,)),
}
"""Layer 9 of the benchmarks: target quality, and number of training samples.

Targets: [training_policies, hpc_training_rules.adoc, Benchmarks]. Samples of DeepCAM:
[mlcommons/logging, compliance_checker, hpc_1.0.0/closed_deepcam.yaml, train_samples]; of CosmoFlow
in v0.7: [mlcommons/hpc, cosmoflow/README.md, Datasets]; in later rounds: the rounds' logs.
"""


class ValidFlops(Value):
    """One entry's figures over all its training runs that have them.

    The fastest and the slowest are included, because omitting them is MLPerf's rule. HPC AI500 V2.0
    requires at least four repetitions, reports their coefficient of variation, and omits none; the
    use of their mean is AIPerf's interpretation (docs/decisions/valid_flops.md).

    Figures of sequential training runs (strong scaling) are means. FLOPS and VFLOPS of concurrent
    ones (weak scaling) are sums, since they share the machine; for AIPerf runs, all operations over
    the time of all, since a replica may train several models sequentially.
    """

    entry: str
    benchmark: str
    flops: float
    flops_source: str
    quality: float
    """Mean quality of the last evaluations."""
    target: float
    higher_is_better: bool
    exponent: int
    exponent_source: str
    vflops: float
    deviation: float | None
    """Sample standard deviation of VFLOPS; None for one training run or for a sum."""
    trainings: int
    """Number of training runs with all these values."""
    unmeasured: dict[str, str]
    """Reason why each of the other training runs lacks them, by source."""
    reached: int
    """Training runs that reached the target at some evaluation."""
    seconds_to_quality: float | None
    """Mean time of the training runs that reached the target; None if none did."""


class Declared(Value):
    """Declaration of an entry, and contradictions in its logs."""

    entry: str
    declaration: Declaration
    contradicted: tuple[str, ...]


class ValidFlopsTable(Value):
    """All entries, highest VFLOPS of each benchmark first."""

    rows: tuple[ValidFlops, ...]
    declared: tuple[Declared, ...]
    missing: dict[str, str]
    """Reason why each of the other entries has no VFLOPS."""


class _Training(NamedTuple):
    log: TrainingLog
    target: float
    higher_is_better: bool
    achieved: float
    flops: float
    flops_source: str
    vflops: float


def valid_flops_table(entries: Sequence[Entry], options: Options) -> ValidFlopsTable:
    """Return the Valid FLOPS of all entries.

    Raises:
        UsageError: a declaration matches no entry, or two match the same entry.
        NotMeasuredError: no entry has Valid FLOPS, and none declares anything.
    """
    declared = _declared(entries, options.declarations)
    rows, missing = measured_each(entries, lambda entry: _row(entry, options.vflops_exponent))
    if not rows and not declared:
        raise NotMeasuredError("; ".join(reasons(missing)) or "there is no entry")
    rows.sort(key=lambda row: (row.benchmark, -row.vflops, row.entry))
    return ValidFlopsTable(rows=tuple(rows), declared=declared, missing=missing)


def _row(entry: Entry, chosen: int | None) -> ValidFlops:
    exponent, why = exponent_of(entry.benchmark, chosen)
    trainings, unmeasured = measured_each(
        entry.logs,
        lambda log: _training(entry.benchmark, log, exponent),
        attrgetter("source"),
        none="the entry has no training runs",
    )
    at_once = entry.scenario == "weak"
    combined = sum if at_once else fmean
    shares = _shares([training.log for training in trainings]) if at_once else repeat(1.0)
    trainings = [
        each._replace(flops=each.flops * share, vflops=each.vflops * share)
        for each, share in zip(trainings, shares, strict=False)
    ]
    vflops = [training.vflops for training in trainings]
    first = trainings[0]
    times, _ = measured_each(  # `reached` states how many training runs have a time.
        trainings, lambda t: time_to_quality(t.log, t.target), lambda t: t.log.source
    )
    return ValidFlops(
        entry=entry.name,
        benchmark=entry.benchmark,
        flops=combined(training.flops for training in trainings),
        flops_source=first.flops_source,
        quality=fmean(training.achieved for training in trainings),
        target=first.target,
        higher_is_better=first.higher_is_better,
        exponent=exponent,
        exponent_source=why,
        vflops=combined(vflops),
        deviation=None if at_once or len(vflops) < 2 else stdev(vflops),
        trainings=len(trainings),
        unmeasured=unmeasured,
        reached=len(times),
        seconds_to_quality=fmean(times) if times else None,
    )


def _shares(logs: Sequence[TrainingLog]) -> Iterator[float]:
    """Yield each training run's fraction of the total time, for training runs with counted
    operations.

    A replica may train several models sequentially, so their rates do not add up.
    """
    runs = [log.run for log in logs if log.operations is not None and log.run is not None]
    ends = [run.ended for run in runs if run.ended is not None]
    counted = len(ends) == len(logs)
    whole = max(ends) - min(run.started for run in runs) if counted else 0.0
    for log in logs:
        own = None if log.run is None else log.run.seconds
        yield own / whole if counted and whole > 0.0 and own is not None else 1.0


def _training(benchmark: str, log: TrainingLog, exponent: int) -> _Training:
    target, achieved = _target(log.quality), achieved_quality(log)
    assert log.quality is not None  # noqa: S101 -- it has a target
    flops, source = _flops(benchmark, log)
    vflops = valid_flops(flops, log.quality, achieved, exponent)
    return _Training(log, target, log.quality.higher_is_better, achieved, flops, source, vflops)


def _flops(benchmark: str, log: TrainingLog) -> tuple[float, str]:
    """Return operations per second and their source: counted, or published per sample."""
    if log.operations is not None:
        return operations_per_second(log), "operations counted by the run, divided by its duration"
    count = known_count(benchmark, log.train_samples)
    return count.operations * throughput_of_all(log), (
        f"{count.operations:,} operations per sample × training throughput ({count.source})"
    )


def _declared(
    entries: Sequence[Entry], declarations: Sequence[Declaration]
) -> tuple[Declared, ...]:
    names = [entry.name for entry in entries]
    for declaration in declarations:
        if declaration.entry is not None and declaration.entry not in names:
            known = ", ".join(names) or "none"
            raise UsageError(f"a declaration names '{declaration.entry}'; the entries are: {known}")
    found: list[Declared] = []
    for entry in entries:
        own = [one for one in declarations if one.entry in (None, entry.name)]
        if len(own) > 1:
            raise UsageError(
                f"{len(own)} declarations are of {entry.name}: give each its own `entry`"
            )
        found += [
            Declared(entry=entry.name, declaration=one, contradicted=tuple(_contradicted(entry)))
            for one in own
        ]
    return tuple(found)


def _contradicted(entry: Entry) -> Iterator[str]:
    """Yield deviations of logs from the benchmark's problem: no level permits changing layer 9."""
    if entry.benchmark not in PROBLEMS:
        return
    target, sizes = PROBLEMS[entry.benchmark]
    targets = {log.quality.stated for log in entry.logs if log.quality}
    for other in sorted(one for one in targets if one not in (None, target)):
        yield f"problem_domain: the target is {other:g}; {entry.benchmark}'s is {target:g}"
    for size in sorted({log.train_samples for log in entry.logs if log.train_samples}):
        if size not in sizes:
            known = " or ".join(f"{one:,}" for one in sizes)
            yield f"problem_domain: {size:,} training samples; {entry.benchmark} has {known}"


def tables(found: ValidFlopsTable) -> Iterator[Table]:
    """Yield the Valid FLOPS and the declared changes of each entry."""
    columns = (
        "entry", "benchmark", "FLOPS", "quality", "target", "n", "Valid FLOPS",
        "reached the target", "time to it, mean",
    )  # fmt: skip
    vflops = partial(si, unit="VFLOPS")
    rows = tuple(
        (
            row.entry, row.benchmark, si(row.flops, "FLOPS"), f"{row.quality:.4g}",
            f"{'≥' if row.higher_is_better else '≤'} {row.target:g}", str(row.exponent),
            plus_minus(row.vflops, row.deviation, vflops), f"{row.reached} of {row.trainings}",
            optional(duration, row.seconds_to_quality),
        )
        for row in found.rows
    )  # fmt: skip
    yield Table(
        columns,
        rows,
        notes=tuple(_notes(found.rows)),
        missing=tuple(reasons(found.missing)),
        words=(1,),
    )
    for declaration, group in groupby(found.declared, key=lambda one: one.declaration):
        yield _declaration(declaration, list(group))


def _notes(rows: Sequence[ValidFlops]) -> Iterator[str]:
    """Yield the sources of FLOPS and n, and the training runs that lack data."""
    for source, names in grouped((row.flops_source, row.entry) for row in rows).items():
        yield f"FLOPS of {few(names)}: {source}"
    exponents = {row.benchmark: f"n = {row.exponent} ({row.exponent_source})" for row in rows}
    for exponent, benchmarks in grouped((n, name) for name, n in exponents.items()).items():
        yield f"{exponent}: {', '.join(benchmarks)}"
    for row in rows:
        for reason in reasons(row.unmeasured):
            yield f"{row.entry}: without {reason}"


def _declaration(declaration: Declaration, group: Sequence[Declared]) -> Table:
    contradicted = (
        f"contradicted by logs of {one.entry}: {line}" for one in group for line in one.contradicted
    )
    return Table(
        ("layer", "declared", "description"),
        tuple(_layer(n, name, declaration.layers[name]) for n, name in enumerate(LAYERS, 1)),
        title=f"{declaration.level} level, declared of {few([one.entry for one in group])}",
        notes=tuple(contradicted),
        words=(1, 2),
    )


def _layer(number: int, name: str, layer: Layer) -> tuple[str, str, str]:
    parts = f" ({', '.join(layer.parts)})" if layer.parts else ""
    declared = f"changed{parts}" if layer.changed else "as the benchmark has it"
    return f"{number} {name.replace('_', ' ')}", declared, layer.description or ""
