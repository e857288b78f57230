"""Training runs that repeat each other, and the causes of the variance of their scores."""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from aiperf_hpc.analysis.metric import NotMeasuredError, measured, required
from aiperf_hpc.analysis.metrics.score import operations_per_second
from aiperf_hpc.analysis.metrics.statistics import (
    coefficient_of_variation,
    integrated_autocorrelation,
    jaccard,
    length_for,
    log_shares,
)
from aiperf_hpc.analysis.training_log import Entry, SearchTimeline, TrainingLog
from aiperf_hpc.formatting import duration, few
from aiperf_hpc.grouping import grouped
from aiperf_hpc.trial import Value

WHOLE = 0.95
"""Minimum fraction of its configured length that a run must last to be compared with others."""
DIFFERS = "differing settings: "


class Repeated(NamedTuple):
    """Training runs of one configuration."""

    entries: tuple[Entry, ...]
    logs: tuple[TrainingLog, ...]
    """Logs of the scored training runs."""
    searches: bool
    """Whether each training run is a complete AIPerf search run."""
    excluded: dict[str, str]
    """Reason why each of the other training runs is not scored, by source."""

    @property
    def name(self) -> str:
        """Names of the entries."""
        return few([entry.name for entry in self.entries])


def repetitions(entries: Sequence[Entry]) -> Iterator[Repeated]:
    """Yield the training runs of each configuration.

    Training runs of a public entry form a group, as do AIPerf runs with equal nodes, length and
    configuration except for the seed.
    """
    for found in grouped((_condition(entry), entry) for entry in entries).values():
        logs = [log for entry in found for log in entry.logs]
        searches = any(log.timeline is not None for log in logs)
        excluded = {log.source: why for log in logs if searches and (why := _unfinished(log))}
        counting = tuple(log for log in logs if log.source not in excluded)
        yield Repeated(tuple(found), counting, searches, excluded)


def _condition(entry: Entry) -> str:
    """Return a text that is equal for all repetitions of an entry."""
    settings = entry.logs[0].settings if entry.logs else {}
    if entry.format != "aiperf" or "config" not in settings:
        return f"{entry.path} {entry.name}"
    config = {key: value for key, value in settings["config"].items() if key != "seed"}
    return json.dumps([settings["nodes"], settings["hours"], config], sort_keys=True)


def _unfinished(log: TrainingLog) -> str:
    """Return the reason why a run is shorter than configured, or an empty text if it is not."""
    seconds = None if log.run is None else log.run.seconds
    if seconds is None:
        return "it has no end"
    wanted = float(log.settings["hours"]) * 3600.0
    if seconds >= WHOLE * wanted:
        return ""
    return f"it ended after {duration(seconds)} of {duration(wanted)}"


def differences(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the unexpected differences between the runs."""
    systems = {(entry.system.name, entry.system.accelerator) for entry in entries}
    if len(systems) > 1:
        yield DIFFERS + "the machine"
    settings = [entry.logs[0].settings for entry in entries if entry.logs]
    for name in sorted({name for each in settings for name in _versions(each)}):
        if len({_versions(each).get(name) for each in settings}) > 1:
            yield DIFFERS + name


def _versions(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**settings.get("versions", {}), "the commit": settings.get("commit")}


MOST_RUNS = 64
"""Maximum number of runs compared pairwise, to limit the number of pairs."""


class Similarity(Value):
    """The Jaccard similarity of predictions, over all pairs of runs."""

    runs: tuple[str, ...]
    """Trials with stored predictions, by run."""
    pairs: int
    mean: float
    min: float
    max: float


def similarity_of(logs: Sequence[TrainingLog]) -> Similarity | None:
    """Compare the predictions of all runs that stored them; None if fewer than two did.

    Raises:
        NotMeasuredError: the runs predict different numbers of samples.
    """
    predicting = [(log, log.predictions) for log in logs if log.predictions is not None][:MOST_RUNS]
    if len(predicting) < 2:
        return None
    if len({predicted.samples for _, predicted in predicting}) > 1:
        raise NotMeasuredError("the stored predictions are of different numbers of samples")
    classes = [np.frombuffer(predicted.classes, "<u4") for _, predicted in predicting]
    found = [jaccard(one, other) for one, other in itertools.combinations(classes, 2)]
    return Similarity(
        runs=tuple(f"{log.source}: {predicted.trial}" for log, predicted in predicting),
        pairs=len(found),
        mean=statistics.fmean(found),
        min=min(found),
        max=max(found),
    )


WINDOWS_FOR_TAU = 50
"""Minimum length of a series in autocorrelation times for a reliable estimate (Sokal 1997)."""
PEAKS = "the rates measured with each run (peaks.json)"
_CPU, _ACCELERATOR = re.compile(r"\bcpu\b"), re.compile(r"\b(cuda|gpu|npu)\b")
"""Patterns of the device in a kind of work, as in ``torch cuda:0 matrix product bf16``."""
INITIAL = "the training of the initial network, in the same batches, in each run"


class Factor(Value):
    """One factor of the operations per second."""

    name: str
    deviation: float
    """Standard deviation of its logarithm over the runs, about its coefficient of variation."""
    fraction: float
    """Fraction of the variance of ln(OPS). Fractions add up to one; one that compensates others is
    negative."""


class Noise(Value):
    """Causes of the variance of the runs' operations per second."""

    machine_rate_source: str
    """Source of the machine's rate."""
    factors: tuple[Factor, ...]


class RunLength(Value):
    """Run length for a requested standard error of the operations per second."""

    precision: float
    within_seconds: float | None
    """Length from the variation of the rate within the runs."""
    within_unavailable_reason: str
    """Reason why ``within_seconds`` is unknown; empty if it is known."""
    steady: bool
    """Whether the runs were long enough for an estimate instead of a lower bound."""
    between_seconds: float | None
    """Length from the variation between the runs; None for one run."""


def noise_of(logs: Sequence[TrainingLog]) -> Noise:
    """Attribute the variance of ln(OPS) over runs to the machine, the networks and the time.

    OPS = M x (R / M) x B: the machine's rate M at fixed work; the rate R while replicas executed
    samples, relative to M, which depends on the searched architectures and batches; and the
    fraction B of time in which they executed samples. ``log_shares`` divides the variance.

    Raises:
        NotMeasuredError: there is only one run, the runs do not differ, or the machine's rate is
            unknown.
    """
    if len(logs) < 2:
        count = "one run only" if logs else "there is no complete run"
        raise NotMeasuredError(f"{count}: nothing to compare")
    scores = [operations_per_second(log) for log in logs]
    timelines = [_timeline(log) for log in logs]
    machine, source = _machine_rates(timelines)
    work = [log.operations or 0 for log in logs]
    if not all(timeline.busy_seconds > 0.0 for timeline in timelines) or not all(work):
        raise NotMeasuredError("a run executed nothing")
    rates = [each / timeline.busy_seconds for each, timeline in zip(work, timelines, strict=True)]
    factors = {
        "machine": machine,
        "architectures and batches": [r / m for r, m in zip(rates, machine, strict=True)],
        "fraction of time at work": [s / r for s, r in zip(scores, rates, strict=True)],
    }
    fractions = log_shares(scores, list(factors.values()))
    return Noise(
        machine_rate_source=source,
        factors=tuple(
            Factor(name=name, deviation=statistics.stdev(map(math.log, values)), fraction=fraction)
            for (name, values), fraction in zip(factors.items(), fractions, strict=True)
        ),
    )


def _timeline(log: TrainingLog) -> SearchTimeline:
    return required(log.timeline, f"{log.source} does not record executed samples over time")


def _machine_rates(timelines: Sequence[SearchTimeline]) -> tuple[list[float], str]:
    """Return each run's rate at the same work and its source, preferring peaks to training runs."""
    for source, rates in ((PEAKS, _peak_rates), (INITIAL, _training_rates)):
        known = [rates(timeline) for timeline in timelines]
        if kinds := sorted(set(known[0]).intersection(*known[1:])):
            return [statistics.geometric_mean(run[kind] for kind in kinds) for run in known], source
    raise NotMeasuredError(
        "the machine's rate is unknown: no network was trained in all runs in the same "
        "batches, and no peaks were measured with them"
    )


def _peak_rates(timeline: SearchTimeline) -> dict[str, float]:
    """Return the mean of each rate, before and after the run, of the device that trained.

    A host's processors may be busy with other work while its accelerators are idle, so the rates of
    the two are unrelated.
    """
    other = _CPU if timeline.on_accelerators else _ACCELERATOR
    kinds = {kind for peak in timeline.peaks for kind in peak.rates if not other.search(kind)}
    return {
        kind: statistics.fmean(p.rates[kind] for p in timeline.peaks if kind in p.rates)
        for kind in kinds
    }


def _training_rates(timeline: SearchTimeline) -> dict[str, float]:
    return {
        f"{each.network} {each.batch_size}": each.samples / each.seconds
        for each in timeline.throughputs
        if each.samples
    }


def run_length(logs: Sequence[TrainingLog], precision: float) -> RunLength:
    """Return the run length for a requested standard error of the operations per second.

    One estimate applies ``length_for`` to the windows of each run from its first operations on, as
    the mean over the runs. The other is T (CoV / p)², from the runs' coefficient of variation over
    a mean time T. Both assume that the error decreases as 1 / √T. Early decisions of a search
    affect the whole run, so the second estimate may be longer, independent of the run length.

    Raises:
        NotMeasuredError: neither is known.
    """
    timelines = [_timeline(log) for log in logs]
    rates = [_windows(timeline) for timeline in timelines]
    steps = [timeline.window_seconds for timeline in timelines]
    lengths, why = measured(
        lambda: [length_for(r, s, precision) for r, s in zip(rates, steps, strict=True)]
    )
    within = statistics.fmean(lengths) if lengths else None
    steady = within is not None and all(
        len(r) >= WINDOWS_FOR_TAU * integrated_autocorrelation(r) for r in rates
    )
    between = _between(logs, precision)
    if within is None and between is None:
        raise NotMeasuredError(why or "there is no complete run")
    return RunLength(
        precision=precision,
        within_seconds=within,
        within_unavailable_reason=why,
        steady=steady,
        between_seconds=between,
    )


def _windows(timeline: SearchTimeline) -> list[float]:
    """Return the rate in each window from the first operations on."""
    first = next((n for n, done in enumerate(timeline.operations) if done), 0)
    return [done / timeline.window_seconds for done in timeline.operations[first:]]


def _between(logs: Sequence[TrainingLog], precision: float) -> float | None:
    seconds = [log.run.seconds for log in logs if log.run is not None]
    known = [each for each in seconds if each is not None]
    if len(logs) < 2 or len(known) < len(logs):
        return None
    variation = coefficient_of_variation([operations_per_second(log) for log in logs])
    return statistics.fmean(known) * (variation / precision) ** 2
