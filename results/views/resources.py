"""Numbers of replicas, hosts and accelerators of a run.

Status, list, report, ranking, comparison and analysis all use these numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import is_

from aiperf_hpc.formatting import counted
from aiperf_hpc.results.views.nodes import kinds_of
from aiperf_hpc.rules.validity.replicas import AcceleratorUse, accelerator_use, started_hosts
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.system.description import RankDescription, SiteDescription
from aiperf_hpc.system.summary import MachineSummary, summarize
from aiperf_hpc.trial import Machine, Value

UNNAMED = "unknown model"
"""Model of accelerators that the scheduler counts but no vendor's tool identifies."""


class Resources(Value):
    """Resources of a run, from its records. Replicas may share a host or span several."""

    replicas: int
    """Number of launched replicas; of requested replicas before the first launch."""
    hosts: int = 0
    """Number of distinct hosts of the replicas; 0 before the first has started."""
    accelerators: dict[str, int] = {}
    """Number of accelerators of these hosts by model; empty if they have none."""
    accelerators_used: int = 0
    """Number of accelerators that a rank used."""
    processors: tuple[str, ...] = ()
    """Processor models of these hosts."""
    cores: int | None = None
    """Number of physical cores of these hosts; if not reported, of the logical CPUs assigned to
    replicas; None if neither is known."""
    summary: str = ""
    """Summary as text: ``2 replicas on 1 host, no accelerators (CPU: EPYC, 2 cores)``."""

    @property
    def accelerator_count(self) -> int:
        return sum(self.accelerators.values())

    def with_summary(self) -> Resources:
        """Return a copy with its summary."""
        text = counted(self.replicas, "replica")
        hosts = f" on {counted(self.hosts, 'host')}, {self.accelerator_text}"
        text += hosts if self.hosts else ", none started yet"
        return self.model_copy(update={"summary": text})

    @property
    def accelerator_text(self) -> str:
        """Formatted accelerators, or processors if there are none."""
        if not self.accelerators:
            return f"no accelerators{self._processor_text}"
        text = f"{counted(self.accelerator_count, 'accelerator')} ({self.models})"
        if self.accelerators_used < self.accelerator_count:
            text += f", {self.accelerators_used:,} of them used"
        return text

    @property
    def models(self) -> str:
        """Formatted models of the accelerators, with their numbers if there are several."""
        if len(self.accelerators) == 1:
            return next(iter(self.accelerators))
        return ", ".join(f"{count:,} × {model}" for model, count in self.accelerators.items())

    @property
    def _processor_text(self) -> str:
        cores = "" if self.cores is None else counted(self.cores, "core")
        known = ", ".join(filter(None, [*self.processors, cores]))
        return f" (CPU: {known})" if known else ""


def resources_of(
    replicas: Iterable[ReplicaHistory],
    requested: int,
    machine: MachineSummary,
    use: AcceleratorUse,
    until: float = math.inf,
) -> Resources:
    """Return the resources of a run.

    Args:
        replicas: all replicas of the run.
        requested: number of requested replicas.
        machine: system description from the reports of its processes.
        use: use of the nodes' accelerators by its processes.
        until: end of the run in UTC seconds; later attempts of replicas are ignored.
    """
    known = list(replicas)
    starts = [start for each in known if (start := each.started_by(until)) is not None]
    started = [start.machine for start in starts]
    silent = [each for each in started if each.host not in use.there]
    accelerators = _accelerators(machine, use, silent)
    found = Resources(
        replicas=len(known) or requested,
        hosts=len({host for start in starts for host in started_hosts(start)}),
        accelerators=accelerators,
        accelerators_used=sum(use.used.values()) + sum(len(each.accelerators) for each in silent),
        processors=_processors(machine, started),
        cores=_cores(machine, started),
    )
    return found.with_summary()


def _accelerators(
    machine: MachineSummary, use: AcceleratorUse, silent: Iterable[Machine]
) -> dict[str, int]:
    """Return all accelerators by model; for hosts without a report, those visible to ranks."""
    found: Counter[str] = Counter()
    for group in machine.nodes:
        for each in group.node.accelerators:
            found[each.model] += group.count
    if (unnamed := sum(use.there.values()) - found.total()) > 0:
        found[UNNAMED] += unnamed
    for one in silent:
        found.update(one.accelerators)
    return dict(found)


def _processors(machine: MachineSummary, started: Iterable[Machine]) -> tuple[str, ...]:
    described = [group.node.processors for group in machine.nodes]
    models = [each.model or each.architecture for each in described if each is not None]
    return tuple(dict.fromkeys(models or (each.cpu for each in started)))


def _cores(machine: MachineSummary, started: Iterable[Machine]) -> int | None:
    groups = [(group.count, group.node.processors) for group in machine.nodes]
    known = [count * each.cores for count, each in groups if each is not None and each.cores]
    if known and len(known) == len(groups):
        return sum(known)
    return sum(len(each.cores) for each in started) or None


class RunMachine:
    """Cached summary of the reports of a run's processes, updated if there are new reports."""

    def __init__(
        self, history: RunHistory, site: SiteDescription | None, *, on_cpus: bool = False
    ) -> None:
        """Create a summary from the run's history, the site's description of the system, and
        whether the run is configured to use no accelerators."""
        self._history = history
        self._site = site
        self._on_cpus = on_cpus
        self._use = AcceleratorUse({}, {}, {})
        self._kinds: Mapping[str, str] = {}
        self._of: list[RankDescription | None] | None = None
        self._summary = MachineSummary()

    def summary(self) -> MachineSummary:
        """Return the system as currently known."""
        primary = self._history.primary_described
        ranks = [
            description
            for replica in self._history.replicas.values()
            for _, description in sorted(replica.described.items())
        ]
        told = [primary, *ranks]
        if self._of is None or not _the_same(told, self._of):
            self._summary = summarize(ranks, primary, self._site)
            replicas = self._history.replicas.values()
            self._use = accelerator_use(replicas, on_cpus=self._on_cpus)
            self._kinds = kinds_of(replicas)
            self._of = told
        return self._summary

    def idle(self) -> str:
        """Return a line with the accelerators that no rank uses, or an empty text if there are
        none."""
        self.summary()
        return self._use.line()

    def resources(self, requested: int, until: float) -> Resources:
        """Return the resources of the run until a time, for a number of requested replicas."""
        machine, replicas = self.summary(), self._history.replicas.values()
        return resources_of(replicas, requested, machine, self._use, until)

    def kinds(self) -> Mapping[str, str]:
        """Return the kind of node of each replica; none if all nodes are of one kind."""
        self.summary()
        return self._kinds


def _the_same(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether both contain identical objects; descriptions are immutable."""
    return len(one) == len(other) and all(map(is_, one, other))
