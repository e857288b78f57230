"""A machine, this one or a run's: as lines for people, and as MLPerf's file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc.errors import RunDirectoryError, UsageError, reason_of
from aiperf_hpc.results.report.system import process_rows, site_rows, title_of
from aiperf_hpc.results.site_file import read_site
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.system.mlperf import NEEDED, system_description, unknown
from aiperf_hpc.system.node import describe_rank
from aiperf_hpc.system.summary import (
    MachineSummary,
    NodeGroup,
    absences,
    group_title,
    node_rows,
    summarize,
)

_NAME_WIDTH = 22


def machine_of(run: Path | None, site_file: Path | None) -> MachineSummary:
    """Return the machine that a run had, or this one.

    Args:
        run: the run directory; this machine when not given.
        site_file: what people say of the system; a run's own when not given.

    Raises:
        UsageError: the file is not what it should be.
        RunDirectoryError: this is no run, or none that says what its machine was.
    """
    site = None if site_file is None else read_site(site_file)
    if run is None:
        return summarize([describe_rank({"run": Path.cwd()})], site=site)
    view = RunView(RunPaths(run))
    view.refresh()
    machine = view.machine.summary()
    if not machine.nodes and machine.primary is None:
        why = "it was simulated" if view.manifest.simulated else "its records are from before that"
        raise RunDirectoryError(f"{run} does not say what machine it had: {why}")
    return machine if site is None else machine.model_copy(update={"site": site})


def lines(machine: MachineSummary) -> Iterator[str]:
    """Yield the lines about a machine: its nodes, then its processes, then what is not known."""
    if title := title_of(machine.site):
        yield title
    for name, value in site_rows(machine.site):
        yield _row(name, value)
    for group in machine.nodes:
        yield from _group(group, group_title(group))
    if machine.primary is not None:
        yield from _group(machine.primary, f"primary: {', '.join(machine.primary.hosts)}")
    yield from _processes(machine)


def _group(group: NodeGroup, title: str) -> Iterator[str]:
    yield title
    for name, value in node_rows(group.node):
        yield _row(name, value)
    for name, why in absences(group.node):
        yield _row("not known", f"{name}: {why}")


def _processes(machine: MachineSummary) -> Iterator[str]:
    for name, value in process_rows(machine):
        yield _row(name, value)
    for name, value in machine.environment.items():
        yield _row("variable", f"{name}={value}")


def _row(name: str, value: str) -> str:
    return f"  {name:<{_NAME_WIDTH}}{value}"


def write_mlperf(machine: MachineSummary, path: Path) -> str:
    """Write MLPerf's description of a machine; return what is to be said of it.

    Raises:
        UsageError: the file cannot be written.
    """
    description = system_description(machine)
    try:
        write_whole(path, json.dumps(description, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason_of(error)}") from None
    said = f"written to {path}"
    if empty := unknown(description):
        said += f"; not known, and empty: {', '.join(empty)}"
    if any(name in empty for name in NEEDED):
        said += "; fill in `aiperf system --template` and give it by --system"
    return said
