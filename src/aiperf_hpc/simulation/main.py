"""A simulated run: ``aiperf simulate RUN_DIR --nodes 4096 --hours 1``.

The controller, replicas, search workers, journals, checkpoints, digest and report use the real
code. The engine, the clock, the start of replicas and the latency of the shared file system are
simulated.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.control.context import PrimaryContext, Timing
from aiperf_hpc.primary.control.controller import Controller
from aiperf_hpc.primary.control.prepare import make_manifest, make_run_directory
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.results.report.writer import RESULT_INDENT, summary_lines, write_report
from aiperf_hpc.results.views.cached_view import MOST_SECONDS
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.search_digest import DigestWriter
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.simulation.cluster import Cluster, SimulatedLauncher
from aiperf_hpc.simulation.timeline import Timeline
from aiperf_hpc.streams import folded

START_UTC = 1_767_225_600.0
"""Start of virtual time, 2026-01-01; it is fixed so that equal simulations have equal records."""
SHOW_SECONDS = 10.0
POLL_SECONDS = 1.0
"""Seconds between two polls of the launcher by the controller."""
FILES_EACH, FILES_BESIDES = 3, 256
"""Number of open files per replica, and of the process itself."""


def simulate_and_report(config: RunConfig, folder: Path, nodes: int, hours: float) -> None:
    """Simulate a run in a new folder, write its report, and print the score."""
    began = time.perf_counter()
    manifest = make_manifest(config, nodes, hours, "simulated", dry=True)
    dataset = load_dataset(_simulated(config).dataset, 1).info
    _allow_files(nodes)
    paths = make_run_directory(manifest, folder, dataset)
    view = simulate(manifest, paths, _Show(manifest))
    took = time.perf_counter() - began
    page = write_report(RunView(paths))
    whole = time.perf_counter() - began
    lines = (
        f"Simulated in     {took:.1f} s, with its report {whole:.1f} s",
        f"Report           {page}",
        *summary_lines(view),
    )
    for line in lines:
        sys.stdout.write(f"{folded(line, RESULT_INDENT)}\n")


def simulate(
    manifest: RunManifest,
    paths: RunPaths,
    show: Callable[[Timeline], None] = lambda timeline: None,
    launcher: Callable[[Cluster], SimulatedLauncher] = SimulatedLauncher,
) -> RunView:
    """Execute a run on a virtual clock and return its history.

    Args:
        manifest: manifest of the run.
        paths: paths of the run, with an existing ``run.yaml``.
        show: called frequently, e.g. to show progress.
        launcher: returns the launcher of a cluster's replicas.

    Raises:
        UsageError: the configured engine is not the simulated one.
    """
    config = _simulated(manifest.config)
    timeline = Timeline(START_UTC, charge=config.engine.simulation.charge_cpu)
    cluster = Cluster(timeline, manifest, paths)
    view = RunView(paths)

    def conduct() -> None:
        with (
            JournalWriter(
                paths.primary_journal, clock=timeline, sync=cluster.files.sync
            ) as journal,
            JournalWriter(paths.digest, clock=timeline, sync=cluster.files.sync) as digest,
        ):
            context = PrimaryContext(
                manifest=manifest,
                journal=journal,
                history=view.history,
                digest=DigestWriter(view.history, digest),
                clock=timeline,
                file_clock=lambda folder, clock: None,
                retry=BackoffRetry(lambda: True, clock=timeline),
            )
            timing = Timing(poll=POLL_SECONDS, look=MOST_SECONDS)
            Controller(context, launcher(cluster), timing=timing).run(lambda: show(timeline))

    # Objects live until the end: garbage collection among millions of records would dominate the
    # run time and would be charged to the task that happens to run.
    gc.collect()
    gc.disable()
    try:
        timeline.run(conduct)
    finally:
        gc.enable()
    view.refresh()
    return view


class _Show:
    """Prints the progress of the simulation periodically."""

    def __init__(self, manifest: RunManifest) -> None:
        self._end = manifest.hours * 3600.0
        self._next = time.monotonic() + SHOW_SECONDS

    def __call__(self, timeline: Timeline) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SHOW_SECONDS
            now = timeline.monotonic()
            sys.stdout.write(
                f"{now:.0f} of {self._end:.0f} simulated seconds, {timeline.switches:,} turns\n"
            )
            sys.stdout.flush()


def _simulated(config: RunConfig) -> RunConfig:
    if config.engine.name != "simulated":
        raise UsageError(
            f"the engine '{config.engine.name}' computes in real time; a simulation needs "
            "engine.name=simulated, e.g. --config simulated"
        )
    return config


def _allow_files(nodes: int) -> None:
    """Raise the limit of open files to the number that the replicas need."""
    needed = FILES_EACH * nodes + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard not in (resource.RLIM_INFINITY,) and hard < needed:
        raise UsageError(
            f"{nodes} simulated replicas need {needed} open files, this system allows {hard}; "
            "raise the limit with `ulimit -n`, or simulate fewer"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
