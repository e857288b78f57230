"""What the report's page says of the machine that a run had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiperf_hpc.system.description import Job
from aiperf_hpc.system.site import SiteDescription
from aiperf_hpc.system.summary import (
    MachineSummary,
    NodeGroup,
    absences,
    group_title,
    node_rows,
    versions_text,
)

MOST_GROUPS = 8
"""How many kinds of nodes the page shows; ``report.json`` has all."""
Rows = list[tuple[str, str]]
"""Names and values."""


@dataclass(frozen=True, slots=True)
class GroupBox:
    """Equal nodes."""

    title: str
    rows: Rows
    absent: Rows
    """What they do not tell, and why."""

    @classmethod
    def of(cls, group: NodeGroup, title: str) -> GroupBox:
        return cls(title, list(node_rows(group.node)), list(absences(group.node)))


@dataclass(frozen=True, slots=True)
class SystemBox:
    """The box near the top of the page."""

    title: str
    """The system's name and who submits its result, where people said so."""
    said: Rows
    """What else people said."""
    groups: list[GroupBox]
    hidden: int
    """How many kinds of nodes are left out."""
    processes: Rows
    variables: Rows

    @classmethod
    def of(cls, machine: MachineSummary) -> SystemBox:
        return cls(
            title=title_of(machine.site),
            said=list(site_rows(machine.site)),
            groups=list(_groups(machine)),
            hidden=max(0, len(machine.nodes) - MOST_GROUPS),
            processes=list(process_rows(machine)),
            variables=list(machine.environment.items()),
        )


def title_of(site: SiteDescription | None) -> str:
    """Return the system's name and who submits its result; empty where nobody said so."""
    return ", ".join(filter(None, [site.system_name, site.submitter])) if site is not None else ""


def site_rows(site: SiteDescription | None) -> Iterator[tuple[str, str]]:
    """Yield what people said of a system besides its name."""
    for name, said in (site.model_dump() if site is not None else {}).items():
        if said and name not in ("system_name", "submitter"):
            yield _NAMES.get(name, name.replace("_", " ")), said


_NAMES = {"hw_notes": "notes on the hardware", "sw_notes": "notes on the software"}


def _groups(machine: MachineSummary) -> Iterator[GroupBox]:
    for group in machine.nodes[:MOST_GROUPS]:
        yield GroupBox.of(group, group_title(group))
    if machine.primary is not None:
        yield GroupBox.of(machine.primary, f"primary: {', '.join(machine.primary.hosts)}")


def process_rows(machine: MachineSummary) -> Iterator[tuple[str, str]]:
    """Yield what the processes of a run had, but for the variables with one value."""
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
