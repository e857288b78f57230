"""Weak scaling: number of models per minute that a machine trains concurrently.

[training_policies, hpc_training_rules.adoc, Benchmark results; mlcommons/logging,
result_summarizer, _compute_weak_score_standalone]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from aiperf_hpc.analysis.metric import NotMeasuredError, measured
from aiperf_hpc.analysis.metrics.mlperf_rules import required_runs
from aiperf_hpc.analysis.metrics.time_to_solution import MINUTE, reached_target
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry, Interval, TrainingLog, any_of, plural
from aiperf_hpc.results.table import Table, number, optional, reasons
from aiperf_hpc.trial import Value


def trained_interval(log: TrainingLog) -> Interval | None:
    """Return the interval in which a model reached its target; None if it did not or has no end."""
    reached, _ = measured(lambda: reached_target(log))
    return log.run if reached and log.run is not None and log.run.ended is not None else None


def time_to_train_all(runs: Sequence[Interval]) -> float:
    """Return the minutes from the first start to the last end of several training runs.

    Raises:
        NotMeasuredError: there are no training runs, or the elapsed time is zero.
    """
    ends = [run.ended for run in runs if run.ended is not None]
    if not runs or len(ends) < len(runs):
        raise NotMeasuredError("no models, or one without an end")
    minutes = (max(ends) - min(run.started for run in runs)) / MINUTE
    if minutes <= 0:
        raise NotMeasuredError("no time passed by the logs' clocks")
    return minutes


class WeakScaling(Value):
    """One weak-scaling entry."""

    entry: str
    instances: int
    """Number of models whose training started, including failed and omitted ones."""
    failed: int
    pruned: int
    """Number of models omitted by the submitter, which the rules permit."""
    accelerators_per_instance: int | None
    device: str
    """Counted device: ``accelerator``; ``rank`` for runs without accelerators."""
    minutes: float | None
    """Minutes from the first start to the last end of the models that reached their target."""
    models_per_minute: float | None
    missing: str | None
    """Reason why there is no time."""
    problems: tuple[str, ...]


class WeakScalings(Value):
    """All weak-scaling entries."""

    entries: tuple[WeakScaling, ...]


def weak_scaling(entries: Sequence[Entry], options: Options) -> WeakScalings:
    """Measure all weak-scaling entries."""
    weak = tuple(_weak(entry) for entry in entries if entry.scenario == "weak")
    if not weak:
        raise NotMeasuredError("no entry trains several models concurrently (weak scaling)")
    return WeakScalings(entries=weak)


def _weak(entry: Entry) -> WeakScaling:
    runs = [run for log in entry.logs if (run := trained_interval(log)) is not None]
    sizes = {log.accelerators for log in entry.logs}
    minutes, missing = measured(lambda: time_to_train_all(runs))
    return WeakScaling(
        entry=entry.name,
        instances=len(entry.logs) + entry.lost + entry.pruned,
        failed=len(entry.logs) - len(runs) + entry.lost,
        pruned=entry.pruned,
        accelerators_per_instance=sizes.pop() if len(sizes) == 1 else None,
        device=entry.system.device,
        minutes=minutes,
        models_per_minute=None if minutes is None else len(runs) / minutes,
        missing=missing or None,
        problems=tuple(_problems(entry, len(runs))),
    )


def _problems(entry: Entry, trained: int) -> Iterator[str]:
    counts = Counter(str(log.settings["seed"]) for log in entry.logs if "seed" in log.settings)
    if seeds := sorted(seed for seed, count in counts.items() if count > 1):
        yield f"equal seeds, which the rules forbid: {', '.join(seeds[:5])}"
    if len({log.accelerators for log in entry.logs}) > 1:
        yield f"its models are trained on different numbers of {plural(entry.system.device)}"
    wanted = required_runs(entry.benchmark, entry.round)
    if wanted is not None and trained < wanted:
        yield f"{trained} models reached their target; the rules require {wanted}"


def tables(found: WeakScalings) -> Iterator[Table]:
    """Yield models per minute, and the problems of the entries."""
    each = plural(any_of(entry.device for entry in found.entries))
    columns = (
        "entry", "models", "failed", "pruned", f"{each} each", "minutes", "models/min",
    )  # fmt: skip
    rows = tuple(
        (
            e.entry, str(e.instances), str(e.failed), str(e.pruned),
            optional("{:,}".format, e.accelerators_per_instance), optional(number, e.minutes),
            optional("{:,.4f}".format, e.models_per_minute),
        )
        for e in found.entries
    )  # fmt: skip
    yield Table(
        columns,
        rows,
        notes=tuple(f"{e.entry}: {problem}" for e in found.entries for problem in e.problems),
        missing=tuple(reasons({e.entry: e.missing for e in found.entries if e.missing})),
    )
