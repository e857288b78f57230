"""Preparation of a run: all checks and files before its start; a failure starts nothing."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.config import DatasetConfig, RunConfig
from aiperf_hpc.errors import DatasetError, GraphError, RunDirectoryError, UsageError, restated
from aiperf_hpc.formatting import size
from aiperf_hpc.integrity.commit import source_commit
from aiperf_hpc.integrity.release import FILES, changes, package_digest
from aiperf_hpc.primary.control.elasticity import require_nodes
from aiperf_hpc.primary.launchers.backend import Request, backend_of, choose_launcher
from aiperf_hpc.primary.launchers.base import divide_cores
from aiperf_hpc.primary.launchers.ranks import Settled
from aiperf_hpc.primary.programs import output_for
from aiperf_hpc.results.views.run_catalog import run_name
from aiperf_hpc.rules.judgement import check_plan
from aiperf_hpc.rules.rule import Division, violations_of
from aiperf_hpc.run.annotations import Annotations, write_annotations
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import free_bytes, require_writable
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.registry import initial_graph, missing, require_samples, workload_of


def make_manifest(
    config: RunConfig,
    nodes: int,
    hours: float,
    launcher: str,
    *,
    dry: bool = False,
    nodes_max: int | None = None,
) -> RunManifest:
    """Resolve the manifest of a new run.

    Args:
        config: configuration of the run.
        nodes: number of nodes; a replica spans ``replica.nodes`` of them.
        hours: duration of the run in hours.
        launcher: requested launcher (``RequestedLauncher``).
        dry: accept a named launcher that cannot start the run.
        nodes_max: maximum number of nodes as the scheduler grants them; ``nodes`` by default.

    Raises:
        UsageError: the number of nodes or hours is invalid, the launcher is unavailable or lacks
            the requested resources, or a package is not installed.
    """
    workload_of(config)
    require_nodes(nodes, config)
    most = nodes if nodes_max is None else nodes_max
    require_nodes(most, config)
    if most < nodes:
        raise UsageError(f"--nodes {nodes}-{most}: MAX is below MIN; give MIN-MAX, e.g. 2-4")
    if not 0 < hours <= 24 * 365:
        raise UsageError(f"--hours {hours:g}: the duration must be above 0 h and at most 8760 h")
    replicas = most // config.replica.nodes
    choice = choose_launcher(Request(launcher, config, nodes, most, hours, dry))
    chosen = choice.launcher
    settled = Settled(config.settled()) if chosen == "simulated" else choice.settle()
    for remark in settled.remarks:
        warn(remark)
    if chosen == "local" or not dry:
        require_packages(settled.config, chosen)
    created = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return RunManifest(
        run_id=f"{created}-{config.preset}-{secrets.token_hex(2)}",
        nodes=nodes,
        nodes_max=most if most > nodes else None,
        hours=hours,
        launcher=chosen,
        cores=divide_cores(sorted(os.sched_getaffinity(0)), replicas) if chosen == "local" else (),
        versions={
            "aiperf-hpc": __version__,
            FILES: package_digest(),
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "optuna", "pydantic")},
        },
        commit=source_commit(),
        release_changes=tuple(changes()),
        rules=RULES,
        config=settled.config,
        devices=settled.devices,
    )


def require_packages(config: RunConfig, launcher: str) -> None:
    """Require the packages of the engine and of the collective.

    Nodes that run this Python installation lack the same packages. Other nodes check before they
    train.

    Raises:
        UsageError: a package is not installed.
    """
    here = backend_of(launcher).runs_this_python(config, launcher)
    if here and (lacking := missing(config)):
        raise UsageError("; ".join(lacking))


def require_eligible(manifest: RunManifest, dataset: DatasetInfo | None = None) -> None:
    """Require that a run can become official in the requested division, if any.

    Args:
        manifest: manifest of the run.
        dataset: description of the dataset; None before it has been read.

    Raises:
        UsageError: the run cannot become official; the message has one line per reason.
    """
    if manifest.division is None:
        return
    plan = manifest.model_copy(update={"dataset": dataset})
    if violations := violations_of(check_plan(plan, Division(manifest.division))):
        lines = "\n".join(f"  {each}" for each in violations)
        raise UsageError(
            f"not started: it cannot be official in the {manifest.division} division:\n{lines}"
        )


def describe_dataset(config: DatasetConfig) -> DatasetInfo:
    """Return the description of the dataset, read by a program of the replica side.

    Raises:
        UsageError: the dataset is missing, unreadable or damaged.
    """
    described = output_for(["aiperf_hpc.replica.data", "describe"], config)
    return DatasetInfo.model_validate_json(described)


def make_run_directory(
    manifest: RunManifest,
    folder: Path,
    dataset: DatasetInfo,
    annotations: Annotations | None = None,
) -> RunPaths:
    """Create the run directory and write ``run.yaml`` and any tags and note into it.

    Raises:
        RunDirectoryError: the directory is not empty or not writable, or its file system has not
            enough space for the run.
    """
    require_writable(folder)
    _check_room(manifest, folder, dataset)
    cannot = f"cannot write the run directory {folder}"
    with restated(cannot, RunDirectoryError, "; name another one with --run-dir", caught=OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunDirectoryError(f"the run directory {folder} is not empty; name a new one")
        # Absolute, because replicas have other working directories.
        paths = RunPaths(folder.resolve())
        paths.candidates.mkdir()  # Of two concurrent starts in one folder, one fails here.
        try:
            name = run_name(paths.root)
            update = {"dataset": dataset, "name": "" if name == manifest.run_id else name}
            manifest.model_copy(update=update).save(paths)
            if annotations is not None:
                write_annotations(paths, annotations)
            paths.replicas.mkdir()
        except BaseException:
            remove_run_directory(paths)
            raise
    return paths


def remove_run_directory(paths: RunPaths) -> None:
    """Remove only the files that were created for a run that has not started."""
    for folder in (paths.candidates, paths.replicas, paths.primary_journal.parent):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # The file system may be faulty, or the folder may be a mount point.
        paths.annotations.unlink(missing_ok=True)
        paths.manifest.unlink(missing_ok=True)
        paths.root.rmdir()


def _check_room(manifest: RunManifest, folder: Path, dataset: DatasetInfo) -> None:
    """Require space for the weights of every replica's queued candidates and kept trials.

    Raises:
        ConfigError: the dataset has fewer samples than the run needs.
        DatasetError: there is no network for its samples.
        RunDirectoryError: there is not enough space.
    """
    config = manifest.config
    require_samples(config, dataset)
    with restated(f"dataset '{dataset.name}'", DatasetError, caught=GraphError):
        initial = initial_graph(config, dataset)
    files = manifest.most_replicas * (
        config.search.queue_depth + config.search.keep_checkpoints + 2
    )
    needed = 4 * initial.parameter_count * files + 64 * 2**20
    free = free_bytes(folder)
    if free < needed:
        raise RunDirectoryError(
            f"the file system of {folder} has {size(free)} free, the run needs at "
            f"least {size(needed)}; name another one with --run-dir or lower "
            "search.keep_checkpoints"
        )
