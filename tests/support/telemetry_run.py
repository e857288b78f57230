"""Runs with telemetry, written record by record, their figures in round numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.run_manifest import run_manifest
from tests.support.run_writer import MACHINE, RunWriter, replica_started, run_ended, run_started
from tests.support.telemetry import ACCELERATORS, PACKAGE, equipment, sample

from aiperf_hpc.config import DatasetConfig, RunConfig
from aiperf_hpc.config.run import TelemetryConfig
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import ReplicaStarted, TelemetrySampled, TelemetryStarted

SAMPLES = 10
SECONDS = 30.0 * SAMPLES


def manifest(seconds: float = 30.0, launcher: str = "local") -> RunManifest:
    """Return that of a run of two nodes."""
    telemetry = TelemetryConfig(interval_seconds=seconds)
    config = RunConfig(dataset=DatasetConfig(name="digits"), telemetry=telemetry)
    return run_manifest(config, nodes=2, hours=SECONDS / 3600.0, launcher=launcher)


def started(name: str, host: str, accelerators: tuple[str, ...] = ()) -> ReplicaStarted:
    """Return the start of a replica on a host."""
    machine = MACHINE.model_copy(update={"host": host, "accelerators": accelerators})
    return replica_started(name).model_copy(update={"machine": machine})


def write_telemetry(
    root: Path, hosts: Sequence[str] = ("n", "m"), *, rapl: bool = True
) -> RunWriter:
    """Write five minutes of a replica a host: 900 W of accelerators and 200 W of processors each.

    Args:
        root: the run's directory.
        hosts: the nodes.
        rapl: whether the processors' energy may be read.
    """
    run = RunWriter(root)
    run.primary(0.0, run_started(hours=SECONDS / 3600.0))
    meters = (*ACCELERATORS, PACKAGE) if rapl else ACCELERATORS
    refused = {} if rapl else {"RAPL": "energy_uj: Permission denied"}
    each = sample((12_000.0, 15_000.0, 6_000.0)[: len(meters)])
    for number, host in enumerate(hosts):
        name = f"r{number}"
        own = TelemetryStarted(equipment=equipment(host, meters, **refused))
        run.replica(0.0, started(name, host), own, name=name)
        for count in range(SAMPLES):
            run.replica(30.0 * (count + 1), TelemetrySampled(sample=each), name=name)
    run.primary(SECONDS, run_ended())
    return run
