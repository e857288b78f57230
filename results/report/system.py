"""System description of this machine or a run, as text, as a section of the report, and as MLPerf's
file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.errors import RunDirectoryError, UsageError, reason_of
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.system.description import Job, SiteDescription
from aiperf_hpc.system.mlperf import NEEDED, system_description, unknown
from aiperf_hpc.system.node import describe_rank
from aiperf_hpc.system.summary import (
    MachineSummary,
    absences,
    group_title,
    node_rows,
    summarize,
    versions_text,
)
from aiperf_hpc.untrusted.files import yaml_model

MOST_BYTES = 1 << 20
"""Maximum size of a site file in bytes."""


def read_site(path: Path) -> SiteDescription:
    """Read the site's description of the system.

    Raises:
        UsageError: the file cannot be read, or an entry is invalid.
    """
    try:
        return yaml_model(path, SiteDescription, MOST_BYTES)
    except UsageError as error:
        raise UsageError(
            f"{path}: {error}; `aiperf system --template` prints all entries"
        ) from None


MOST_GROUPS = 8
"""Maximum number of kinds of nodes on the page; ``report.json`` has all."""
Rows = list[tuple[str, str]]
"""Names and values."""


class GroupBox(NamedTuple):
    """Equal nodes."""

    title: str
    rows: Rows
    absent: Rows
    """Unknown properties of the nodes, with reasons."""


def group_boxes(machine: MachineSummary, most: int | None = None) -> list[GroupBox]:
    """Return at most a given number of kinds of nodes, and the primary's node."""
    groups = [(group_title(group), group) for group in machine.nodes[:most]]
    if machine.primary is not None:
        groups.append((f"primary: {', '.join(machine.primary.hosts)}", machine.primary))
    return [
        GroupBox(title, list(node_rows(group.node)), list(absences(group.node)))
        for title, group in groups
    ]


def system_box(machine: MachineSummary) -> dict[str, object]:
    """Return the data for the system template of the page."""
    return {
        "title": title_of(machine.site),
        "said": list(site_rows(machine.site)),
        "groups": group_boxes(machine, MOST_GROUPS),
        "hidden": max(0, len(machine.nodes) - MOST_GROUPS),
        "processes": list(process_rows(machine)),
        "variables": list(machine.environment.items()),
    }


def title_of(site: SiteDescription | None) -> str:
    """Return the name of the system and the submitter; empty if not stated."""
    return ", ".join(filter(None, [site.system_name, site.submitter])) if site is not None else ""


def site_rows(site: SiteDescription | None) -> Iterator[tuple[str, str]]:
    """Yield the site's statements on the system besides its name."""
    for name, said in (site.model_dump() if site is not None else {}).items():
        if said and name not in ("system_name", "submitter"):
            yield _NAMES.get(name, name.replace("_", " ")), said


_NAMES = {"hw_notes": "notes on the hardware", "sw_notes": "notes on the software"}


def process_rows(machine: MachineSummary) -> Iterator[tuple[str, str]]:
    """Yield the properties of a run's processes, except for variables with a single value."""
    if machine.libraries:
        yield "libraries", versions_text(machine.libraries)
    if machine.jobs:
        yield machine.jobs[0].scheduler.upper(), _jobs(machine.jobs)
    if machine.environment_differs:
        yield "differing variables", ", ".join(machine.environment_differs)


def _jobs(jobs: tuple[Job, ...]) -> str:
    first = jobs[0]
    said = [f"job {first.id}" if len(jobs) == 1 else f"{len(jobs)} jobs from {first.id}"]
    named = {"cluster": first.cluster, "partition": first.partition, "nodes": first.nodes}
    said += [f"{name} {value}" for name, value in named.items() if value]
    return ", ".join(said)


_NAME_WIDTH = 22


def machine_of(run: Path | None, site_file: Path | None) -> MachineSummary:
    """Return the system of a run, or of this machine.

    Args:
        run: run directory; this machine if not given.
        site_file: site's description of the system; by default the run's own.

    Raises:
        UsageError: the file is invalid.
        RunDirectoryError: this is not a run, or it has no system description.
    """
    site = None if site_file is None else read_site(site_file)
    if run is None:
        return summarize([describe_rank({"run": Path.cwd()})], site=site)
    view = RunView.read(RunPaths(run))
    machine = view.machine.summary()
    if not machine.nodes and machine.primary is None:
        why = "it was simulated" if view.manifest.simulated else "its records are from before that"
        raise RunDirectoryError(f"{run} does not describe its machine: {why}")
    return machine if site is None else machine.model_copy(update={"site": site})


def lines(machine: MachineSummary) -> Iterator[str]:
    """Yield the lines on a system: nodes, processes, and unknown properties."""
    if title := title_of(machine.site):
        yield title
    yield from starmap(_row, site_rows(machine.site))
    for box in group_boxes(machine):
        yield box.title
        yield from starmap(_row, box.rows)
        yield from (_row("not known", f"{name}: {why}") for name, why in box.absent)
    yield from starmap(_row, process_rows(machine))
    for name, value in machine.environment.items():
        yield _row("variable", f"{name}={value}")


def _row(name: str, value: str) -> str:
    return f"  {name:<{_NAME_WIDTH}}{value}"


def write_mlperf(machine: MachineSummary, path: Path) -> str:
    """Write MLPerf's system description; return remarks on it.

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
