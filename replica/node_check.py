"""Checks that a node matches the node that started the run, before its replica trains.

Every replica compares itself with ``run.yaml``. Replicas that match it match each other, so none
has to wait for another.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Final

from aiperf_hpc import __version__
from aiperf_hpc.clock import Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.datasets import load_dataset_manifest
from aiperf_hpc.errors import DatasetError, EngineError, PreflightError, restated
from aiperf_hpc.formatting import size
from aiperf_hpc.host.machine import BOUND, available_bytes
from aiperf_hpc.host.schedulers import SCHEDULERS, node_name
from aiperf_hpc.integrity.imports import find_imports
from aiperf_hpc.integrity.release import FILES, current_package_digest, package_digest
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.base import Dataset
from aiperf_hpc.replica.data.local_copy import LocalCopy, local_copy
from aiperf_hpc.replica.engines import engine_for
from aiperf_hpc.replica.engines.base import RankEngine
from aiperf_hpc.replica.runtime.kernel_caches import PREFIX
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import ModulesImported
from aiperf_hpc.streams import warn
from aiperf_hpc.system.accelerators import computing_on_bus
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.registry import missing


@contextmanager
def _refused_by_this_node() -> Iterator[None]:
    """Raise errors as PreflightErrors that name this node."""
    refused = (DatasetError, EngineError, PreflightError)
    with restated(f"node {node_name()}", PreflightError, caught=refused):
        yield


@_refused_by_this_node()
def check_node(manifest: RunManifest) -> None:
    """Require the versions, packages and dataset of the run before anything slow is loaded.

    Raises:
        PreflightError: the node differs.
    """
    here = package_versions()
    for name, expected in manifest.versions.items():
        found = here.get(name) or _installed(name)
        if found != expected:
            raise PreflightError(
                f"{name} is {found} here, the run was started with {expected}; install the same "
                "environment on all nodes"
            )
    if lacking := missing(manifest.config):
        raise PreflightError(lacking[0])
    dataset = manifest.config.dataset
    if dataset.path is not None:
        check_dataset(manifest, load_dataset_manifest(dataset.path, dataset.name))


@_refused_by_this_node()
def checked_engine(manifest: RunManifest, cores: int, clock: Clock, device: int) -> RankEngine:
    """Load the run's engine.

    Raises:
        PreflightError: the device or a package is missing, or the engine does not see an
            accelerator: the one that this rank is bound to, or any on the node's bus.
    """
    engine = engine_for(manifest.config, cores, clock=clock, device=device)
    bound = os.environ.get(BOUND)
    if bound is not None and not engine.accelerators:
        raise PreflightError(
            f"engine '{engine.name}' does not see the accelerator that it was allocated ({bound}): "
            "it would train on the CPU; install the engine's build for it, or set engine.device=cpu"
        )
    settings = manifest.config.engine
    if settings.uses_accelerators and settings.name != "simulated" and not engine.accelerators:
        _require_none_on_bus(engine.name)
    return engine


def _require_none_on_bus(engine: str) -> None:
    """Reject training on the CPU of a node with accelerators, unless it is requested."""
    if there := computing_on_bus():
        settings = " or ".join(each.accelerators for each in SCHEDULERS)
        counted = ", ".join(f"{count} of {vendor}" for vendor, count in there.items())
        raise PreflightError(
            f"it has accelerators ({counted}) that engine '{engine}' does not see: it would train "
            f"on the CPU; ask the scheduler for them ({settings}), install the engine's build for "
            "them, or set engine.device=cpu"
        )


@_refused_by_this_node()
def checked_dataset(manifest: RunManifest, cores: int) -> tuple[Dataset, LocalCopy]:
    """Copy the run's dataset to its cache, if one is configured; return it and the copy's cost.

    Raises:
        PreflightError: the node has no dataset, or a different one.
    """
    config = manifest.config
    _require_room_for_decoded(config)
    copy = local_copy(config.dataset, cores)
    dataset = load_dataset(copy.config, cores, config.engine.name)
    check_dataset(manifest, dataset.info)
    return dataset, copy


def _require_room_for_decoded(config: RunConfig) -> None:
    """Require memory for the decoded images of a node's ranks. Raises PreflightError."""
    ranks = config.replica.settled().ranks_per_node
    wanted, free = config.dataset.decoded_cache_gib * int(ranks) * 2**30, available_bytes()
    if wanted > free:
        raise PreflightError(
            f"dataset.decoded_cache_gib {config.dataset.decoded_cache_gib:g} for each of {ranks} "
            f"ranks is {size(wanted)}, {size(free)} are free; lower it"
        )


def check_dataset(manifest: RunManifest, found: DatasetInfo) -> None:
    """Require the dataset that the run was started on. Raises PreflightError."""
    expected = manifest.dataset
    if expected is not None and _content(found) != _content(expected):
        raise PreflightError(
            f"dataset '{found.name}' has SHA-256 {found.sha256[:12]}, "
            f"{found.train_samples} + {found.validation_samples} samples here, where the run was "
            f"started {expected.sha256[:12]}, {expected.train_samples} + "
            f"{expected.validation_samples}; let all nodes see the same dataset.path"
        )


def _content(info: DatasetInfo) -> tuple[str, int, int]:
    """Return the properties that must match; the configuration gives the sample shape."""
    return info.sha256, info.train_samples, info.validation_samples


def package_versions() -> dict[str, str]:
    """Return the package versions that results may depend on, except the engine's."""
    return {
        "aiperf-hpc": __version__,  # A checkout on PYTHONPATH has no package metadata.
        FILES: package_digest(),
        "python": platform.python_version(),
        **{name: _installed(name) for name in ("numpy", "optuna", "scipy")},
    }


_GENERATED: Final = (PREFIX, "__autograph_generated_file")
"""Prefixes of files in TMPDIR with modules that PyTorch and TensorFlow generate and import."""


def imported_modules(rank: int) -> ModulesImported:
    """Return the record of this process's imported modules."""
    folder = tempfile.gettempdir()
    found = find_imports(sys.modules, tuple(os.path.join(folder, each) for each in _GENERATED))
    try:
        package = current_package_digest()
    except OSError as error:
        warn(f"rank {rank}: cannot hash the installed package: {error}")
        package = ""
    return ModulesImported(
        rank=rank,
        package_sha256=package,
        foreign=dict(found.foreign),
        modified=found.modified,
    )


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
