"""Export of an AIPerf run's training runs as MLPerf HPC result logs, which MLPerf's checker
accepts.

A log describes one training run: its start, each epoch with its evaluation, and whether the target
was reached. ``cache_clear`` is false because caches are not cleared. A training run that the end of
the AIPerf run interrupted has no log.
[mlcommons/logging: mlperf_logging/mllog, compliance_checker/hpc_3.0.0]
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from aiperf_hpc.analysis.readers.run_directory import read_run
from aiperf_hpc.analysis.training_log import Interval, TrainingLog
from aiperf_hpc.errors import RunDirectoryError, UsageError, restated
from aiperf_hpc.results.report.mllog import END, POINT, START, event_line, quality_key, submission
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.system.description import SiteDescription
from aiperf_hpc.trial import Hyperparameters
from aiperf_hpc.workloads.base import Workload
from aiperf_hpc.workloads.registry import workload_of


def write_logs(run: Path, folder: Path) -> list[Path]:
    """Write ``result_0.txt`` and so on, one log per training, in the order of their starts.

    Args:
        run: path of a run directory.
        folder: path of a new or empty folder.

    Raises:
        UsageError: MLPerf HPC does not have the run's workload, no training has ended, or
            the folder is not empty.
        RunDirectoryError: ``run`` is not a run directory, or the folder cannot be written.
    """
    view = RunView.read(RunPaths(run))
    texts = list(_texts(view, run))
    with restated(f"cannot write the logs to {folder}", RunDirectoryError, caught=OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--mlperf {folder}: it is not empty; name a new folder")
        paths = [folder / f"result_{number}.txt" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            write_whole(path, text)
    return paths


def _texts(view: RunView, run: Path) -> Iterator[str]:
    workload = workload_of(view.manifest.config)
    if workload.logged is None:
        raise UsageError(f"--mlperf: the workload '{workload.name}' is not in MLPerf HPC")
    logs = [log for entry in read_run(run).entries for log in entry.logs]
    whole = [log for log in logs if log.succeeded is not None and log.run is not None]
    if not whole:
        raise UsageError(f"--mlperf: no training of {run} has ended")
    for log in whole:
        yield "".join(_lines(view, workload, log))


def _lines(view: RunView, workload: Workload, log: TrainingLog) -> Iterator[str]:
    """Yield the lines of a log by time; a later attempt of the replica stages within the run."""
    for event in sorted(_events(view, workload, log), key=itemgetter(0)):
        yield event_line(*event)


Event = tuple[float, str, str, object, dict[str, object] | None]
"""Time of an event in UTC seconds, and the kind, key, value and metadata of its line."""


def _events(view: RunView, workload: Workload, log: TrainingLog) -> Iterator[Event]:
    run = log.run
    assert run is not None  # noqa: S101 -- logs without a run are left out
    init = log.init or Interval(started=run.started, ended=None)
    for key, value in _settings(view, workload, log):
        yield init.started, POINT, key, value, None
    yield init.started, POINT, "cache_clear", False, None
    yield init.started, START, "init_start", None, None
    for staged in log.staging:
        yield staged.started, START, "staging_start", None, None
        if staged.ended is not None:
            yield staged.ended, END, "staging_stop", None, None
    yield init.ended or init.started, END, "init_stop", None, None
    yield run.started, START, "run_start", None, None
    quality = quality_key(workload.objective.quality)
    evaluations = {each.epoch: each for each in log.evaluations}
    for epoch in log.epochs:
        at: dict[str, object] = {"epoch_num": epoch.number}
        yield epoch.started, START, "epoch_start", None, at
        found = evaluations[epoch.number]
        if found.started is not None:
            yield found.started, START, "eval_start", None, at
        yield found.ended, POINT, quality, found.quality, at
        if found.started is not None:
            yield found.ended, END, "eval_stop", None, at
        yield epoch.ended or found.ended, END, "epoch_stop", None, at
    status = "success" if log.succeeded else "aborted"
    yield run.ended or run.started, END, "run_stop", None, {"status": status}


def _settings(view: RunView, workload: Workload, log: TrainingLog) -> Iterator[tuple[str, object]]:
    config = view.manifest.config
    site = view.manifest.site or SiteDescription()
    yield from submission(workload.name, site, view.mlperf_division())
    yield "number_of_nodes", log.nodes or 1
    yield "number_of_ranks", log.accelerators or 1
    yield "accelerators_per_node", _accelerators(view)
    yield "seed", log.settings["seed"]
    yield "global_batch_size", log.global_batch_size or 0
    yield "train_samples", log.train_samples or 0
    yield "eval_samples", log.eval_samples or 0
    used = {k: v for k, v in log.settings.items() if k in Hyperparameters.model_fields}
    if workload.logged is not None:
        yield from workload.logged(config, Hyperparameters.model_validate(used)).items()


def _accelerators(view: RunView) -> int:
    """Return the number of accelerators of the first described node."""
    started = (replica.started for replica in view.history.replicas.values())
    return next((len(each.machine.accelerators) for each in started if each is not None), 0)
