"""Reader of AIPerf run directories, each of which is an entry.

A run that trains one network repeatedly (``search.method: fixed``) is an entry with several
training runs. A search is one training run of all replicas together, with its timed interval,
executed samples and best quality over time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from aiperf_hpc.analysis.readers.run_records import (
    best_stored,
    executed_of,
    init_of,
    load_predictions,
    read_peaks,
    staging_of,
    trainings,
)
from aiperf_hpc.analysis.training_log import (
    Entry,
    Evaluation,
    Interval,
    Quality,
    Rates,
    ReadResult,
    SearchTimeline,
    System,
    Throughput,
    TrainingLog,
)
from aiperf_hpc.errors import AIPerfError, RunDirectoryError, reason_of
from aiperf_hpc.formatting import counted
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.run_catalog import RunSummary
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.validity.replicas import hosts_of
from aiperf_hpc.rules.validity.result import MOST_ERROR
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.workloads.registry import workload_of

MOST_WINDOWS = 1024
"""Maximum number of windows of a run's time."""


def read_run(path: Path) -> ReadResult:
    """Read the directory of a completed or incomplete run, with or without a report.

    Damage is listed in the entry's problems. A run that cannot be read at all, or has not started,
    is unreadable.
    """
    try:
        view = RunView.read(RunPaths(path))
        if view.history.start_utc is None:
            return ReadResult.failed(path, "the run has not started: it has no records")
        return ReadResult(entries=(_entry(view),))
    except (AIPerfError, OSError) as error:
        return ReadResult.failed(path, reason_of(error))


def _entry(view: RunView) -> Entry:
    manifest = view.manifest
    searches = manifest.config.search.searches
    logs, problems = _searched(view) if searches else trainings(view, _base(view))
    return Entry(
        name=manifest.title,
        format="aiperf",
        benchmark=_benchmark(view),
        scenario="weak" if manifest.replicas > 1 and not searches else "strong",
        round=manifest.versions.get("aiperf-hpc"),
        division=_division(view),
        system=_system(view),
        path=str(view.paths.root),
        logs=logs,
        problems=(*_problems(view), *problems),
        figures={} if view.history.end_utc is None else RunSummary.of(view).figures,
    )


def _division(view: RunView) -> str | None:
    """Return the division: AIPerf's or, for an MLPerf HPC workload, MLPerf's."""
    workload = workload_of(view.manifest.config)
    return view.judgement().division if workload.logged is None else view.mlperf_division()


def _benchmark(view: RunView) -> str:
    """Return the benchmark: ``automl on imagenet``, ``automl on digits, without search``."""
    config = view.manifest.config
    workload, dataset = workload_of(config), config.dataset.name
    name = f"{workload.name} {workload.edition(config)}".rstrip()
    named = name if workload.name == dataset else f"{name} on {dataset}"
    odd = workload.searchable and not config.search.searches
    return f"{named}, without search" if odd else named


def _system(view: RunView) -> System:
    manifest = view.manifest
    known = [r.started for r in view.history.replicas.values() if r.started is not None]
    machines = [started.machine for started in known]
    first = machines[0] if machines else None
    resources = view.resources()
    version = first.versions.get(known[0].engine) if first else None
    engine = known[0].engine if known else manifest.config.engine.name
    return System(
        name=_system_name(view, resources),
        nodes=resources.hosts,
        accelerators=resources.accelerator_count,
        accelerator=", ".join(resources.accelerators or resources.processors) or None,
        resources=resources,
        framework=f"{engine} {version}" if version else engine,
    )


def _system_name(view: RunView, resources: Resources) -> str:
    """Return the system's configured name or else the names of its hosts."""
    site = view.machine.summary().site
    if site is not None and site.system_name:
        return site.system_name
    hosts = {host for each in view.history.replicas.values() for host in hosts_of(each)}
    return next(iter(hosts)) if len(hosts) == 1 else counted(resources.hosts, "host")


def _problems(view: RunView) -> Iterator[str]:
    """Yield problems of the run's records and its end."""
    history, root = view.history, view.paths.root
    for problem in history.problems:
        yield f"{problem.path.relative_to(root)}, line {problem.line}: {problem.what}"
    yield from history.file_problems
    if history.primary_failure is not None:
        yield f"the primary failed: {history.primary_failure}"
    if history.end_utc is None:
        yield "the run has no end: it is still running, or was cut off"
        return
    yield from (
        f"{path.relative_to(root)} ends in an unfinished line" for path in sorted(history.torn)
    )
    yield from (
        f"{replica.id} ended with status {replica.exit_status}"
        for replica in history.replicas.values()
        if replica.exit_status
    )


def _base(view: RunView) -> TrainingLog:
    """Return the fields common to all training runs of an AIPerf run."""
    config, metric = view.manifest.config, view.quality_metric
    weight = workload_of(config).valid_flops_on(config.dataset.name)
    # The dataset read by the replicas or, if they have read none yet, the planned one.
    read = (r.dataset for r in view.history.replicas.values() if r.dataset is not None)
    dataset = next(read, view.manifest.dataset)
    return TrainingLog(
        source=str(view.paths.root),
        run=None,
        succeeded=None,
        quality=Quality(
            name=metric.name,
            higher_is_better=metric.goal == "maximize",
            target=config.training.target,
            weighted_by=None if weight is None else weight.target,
        ),
        train_samples=dataset.train_samples if dataset else None,
        eval_samples=dataset.validation_samples if dataset else None,
        settings=_settings(view),
    )


def _settings(view: RunView) -> dict[str, Any]:
    manifest = view.manifest
    return {
        "run_id": manifest.run_id,
        "seed": manifest.config.seed,
        "nodes": manifest.nodes,
        "hours": manifest.hours,
        "simulated": manifest.simulated or manifest.config.engine.name == "simulated",
        "versions": dict(manifest.versions),
        "commit": manifest.commit,
        "config": manifest.config.model_dump(mode="json"),
        "violations": [each.model_dump(mode="json") for each in view.violations()],
    }


def _searched(view: RunView) -> tuple[tuple[TrainingLog, ...], list[str]]:
    """Return a search as one training run of all its replicas, and its problems."""
    best, unread = load_predictions(best_stored(view.history.trials.values()), view.paths)
    problems = [unread] if unread else []
    peaks: tuple[Rates, ...] = ()
    try:
        precision = view.manifest.config.training.precision
        around = (view.paths.peaks, view.paths.peaks_after)
        peaks = tuple(each for path in around for each in read_peaks(path, precision))
    except RunDirectoryError as error:
        problems.append(str(error))
    log = _search(view, peaks).model_copy(update={"predictions": best})
    return (log,), problems


def _search(view: RunView, peaks: tuple[Rates, ...]) -> TrainingLog:
    history, manifest = view.history, view.manifest
    replicas, base = list(history.replicas.values()), _base(view)
    quality = base.quality
    if quality is not None:  # If the run has no target, AIPerf's rule on the error applies.
        share = None if view.quality_metric.error is None else 1.0 - MOST_ERROR
        target = share if quality.target is None else quality.target
        quality = quality.model_copy(update={"target": target, "weighted_by": None})
    batches = {trial.started.hyperparameters.batch_size for trial in history.trials.values()}
    return base.model_copy(
        update={
            "run": Interval(started=history.origin_utc or 0.0, ended=history.end_utc),
            "quality": quality,
            "succeeded": False if history.primary_failure is not None else None,
            "init": init_of(history, replicas),
            "staging": tuple(staging_of(replicas)),
            "evaluations": tuple(_rise(view)),
            "global_batch_size": batches.pop() if len(batches) == 1 else None,
            "nodes": manifest.nodes,
            "accelerators": manifest.replicas * manifest.config.replica.ranks,
            "operations": view.final().operations,
            "timeline": _timeline(view, peaks),
        }
    )


def _rise(view: RunView) -> Iterator[Evaluation]:
    """Yield the evaluations that improved on all previous ones, and the time of the last."""
    until, best = view.until, None
    last: float | None = None
    for evaluation in view.history.evaluations:
        if evaluation.utc > until:
            break
        last = evaluation.utc
        if evaluation.beats(best):
            best, last = evaluation, None
            yield Evaluation(
                epoch=None, started=None, ended=evaluation.utc, quality=evaluation.quality
            )
    if best is not None and last is not None:
        yield Evaluation(epoch=None, started=None, ended=last, quality=best.quality)


def _timeline(view: RunView, peaks: tuple[Rates, ...]) -> SearchTimeline:
    manifest, elapsed = view.manifest, view.final().elapsed_seconds
    window = max(manifest.config.journal.progress_interval_seconds, elapsed / MOST_WINDOWS)
    points = view.series.points(window / 3600.0)
    done = [0, *(point.operations for point in points[: int(elapsed / window + 1e-9)])]
    busy, throughputs = _executed(view)
    return SearchTimeline(
        window_seconds=window,
        operations=tuple(after - before for before, after in pairwise(done)),
        busy_seconds=busy,
        replicas=manifest.replicas,
        throughputs=throughputs,
        on_accelerators=any(
            replica.started.machine.accelerators
            for replica in view.history.replicas.values()
            if replica.started is not None
        ),
        peaks=peaks,
    )


def _executed(view: RunView) -> tuple[float, tuple[Throughput, ...]]:
    """Return the seconds in which samples were executed, and the initial network's throughputs.

    There is one throughput per batch size.
    """
    busy = 0.0
    samples: Counter[tuple[str, int]] = Counter()
    seconds: defaultdict[tuple[str, int], float] = defaultdict(float)
    for trial, span in executed_of(view.history, view.until):
        busy += span.seconds
        if trial.started.parent is None and span.train_samples:
            kind = trial.started.graph, trial.started.hyperparameters.batch_size
            samples[kind] += span.train_samples
            seconds[kind] += span.seconds
    return busy, tuple(
        Throughput(network=graph, batch_size=size, samples=count, seconds=seconds[graph, size])
        for (graph, size), count in sorted(samples.items())
        if seconds[graph, size] > 0.0
    )
