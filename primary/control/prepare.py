"""Everything that is checked and made before a run starts: nothing is started if it fails."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.config import DatasetConfig, RunConfig
from aiperf_hpc.errors import (
    DatasetError,
    GraphError,
    RunDirectoryError,
    UsageError,
    reason_of,
)
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
from aiperf_hpc.rules.registry import CLOCK_START, PLANNED_NODES, Plan
from aiperf_hpc.rules.rule import Division, violations_of
from aiperf_hpc.rules.validity.software import Code
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.storage import free_bytes, require_writable
from aiperf_hpc.system.software import recorded_variables
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
    """Resolve what a run will be.

    Args:
        config: what it does.
        nodes: how many; a replica spans ``replica.nodes`` of them.
        hours: for how long.
        launcher: the one that was asked for (``RequestedLauncher``).
        dry: whether a launcher that is named need not be able to start it.
        nodes_max: how many it takes as the scheduler gives them; no more when not given.

    Raises:
        UsageError: the number of nodes or hours makes no run, the launcher is not there or
            lacks what is asked for, or a package is not installed.
    """
    workload_of(config)
    require_nodes(nodes, config)
    most = nodes if nodes_max is None else nodes_max
    require_nodes(most, config)
    if most < nodes:
        raise UsageError(f"--nodes {nodes}-{most}: MAX is below MIN; give MIN-MAX, e.g. 2-4")
    if not 0 < hours <= 24 * 365:
        raise UsageError(f"--hours {hours:g}: a run lasts more than 0 and at most 8760 hours")
    replicas = most // config.replica.nodes
    choice = choose_launcher(Request(launcher, config, nodes, most, hours, dry))
    chosen = choice.launcher
    settled = Settled(config.settled()) if chosen == "simulated" else choice.settle()
    for remark in settled.remarks:
        sys.stderr.write(f"aiperf: {remark}\n")
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

    Nodes that run this very Python lack what is missing here. Others find out before they train.

    Raises:
        UsageError: some are not installed.
    """
    here = backend_of(launcher).runs_this_python(config, launcher)
    if here and (lacking := missing(config)):
        raise UsageError("; ".join(lacking))


def require_eligible(
    manifest: RunManifest,
    dataset: DatasetInfo | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Require that a run may become official in the requested division, if any.

    Args:
        manifest: what is to run.
        dataset: what is there; None before that has been looked at.
        environment: the variables that replicas may inherit.

    Raises:
        UsageError: it cannot, with a line for each reason.
    """
    if manifest.division is None:
        return
    plan = Plan(
        manifest.config,
        manifest.hours,
        Code(manifest.versions, manifest.release_changes),
        recorded_variables(environment),
        dataset,
    )
    results = [
        PLANNED_NODES.check(manifest),
        CLOCK_START.check(manifest.start_when),
        *check_plan(plan, Division(manifest.division)),
    ]
    if violations := violations_of(results):
        lines = "\n".join(f"  {each}" for each in violations)
        raise UsageError(
            f"not started: it could not become official in the {manifest.division} division:\n"
            f"{lines}"
        )


def describe_dataset(config: DatasetConfig) -> DatasetInfo:
    """Ask the replica's side for the description of the dataset.

    Raises:
        DatasetError: it is missing, unreadable or damaged.
    """
    described = output_for(["aiperf_hpc.replica.data", "describe"], config, DatasetError)
    return DatasetInfo.model_validate_json(described)


def make_run_directory(manifest: RunManifest, folder: Path, dataset: DatasetInfo) -> RunPaths:
    """Make the run directory and write ``run.yaml`` into it.

    Raises:
        RunDirectoryError: it exists with something in it, cannot be written, or its file
            system has no room for what the run keeps.
    """
    require_writable(folder)
    _check_room(manifest, folder, dataset)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunDirectoryError(f"the run directory {folder} is not empty; name a new one")
        # Absolute, so that a replica finds it from any working directory.
        paths = RunPaths(folder.resolve())
        paths.candidates.mkdir()  # Of two that start at once in one folder, one fails here.
        try:
            update = {"dataset": dataset, "name": _name(manifest, paths)}
            manifest.model_copy(update=update).save(paths)
            paths.replicas.mkdir()
        except BaseException:
            remove_run_directory(paths)
            raise
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write the run directory {folder}: {reason_of(error)}; "
            "name another one with --run-dir"
        ) from None
    return paths


def _name(manifest: RunManifest, paths: RunPaths) -> str:
    """Return a run's name, by its folder; empty where that is its identifier."""
    name = run_name(paths.root)
    return "" if name == manifest.run_id else name


def remove_run_directory(paths: RunPaths) -> None:
    """Remove what was made for a run that has not started, and nothing else."""
    for folder in (paths.candidates, paths.replicas, paths.primary_journal.parent):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # Its file system may be what is wrong; or it is someone's mount point.
        paths.manifest.unlink(missing_ok=True)
        paths.root.rmdir()


def _check_room(manifest: RunManifest, folder: Path, dataset: DatasetInfo) -> None:
    """Require room for the weights of every replica's stock and kept trials.

    Raises:
        ConfigError: the dataset has fewer samples than the run needs.
        DatasetError: there is no network for its samples.
        RunDirectoryError: there is no room.
    """
    config = manifest.config
    require_samples(config, dataset)
    try:
        initial = initial_graph(config, dataset)
    except GraphError as error:
        raise DatasetError(f"dataset '{dataset.name}': {error}") from None
    files = manifest.most_replicas * (config.search.stock + config.search.keep_checkpoints + 2)
    needed = 4 * initial.parameter_count * files + 64 * 2**20
    free = free_bytes(folder)
    if free < needed:
        raise RunDirectoryError(
            f"the file system of {folder} has {size(free)} free, the run needs at "
            f"least {size(needed)}; name another one with --run-dir or lower "
            "search.keep_checkpoints"
        )
