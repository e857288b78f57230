"""The machine that a run had, by what its processes told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

from aiperf_hpc.ops_counter.divisions.accelerators import AcceleratorUse, accelerator_use
from aiperf_hpc.ops_counter.kinds import kinds_of
from aiperf_hpc.results.views.resources import Resources, resources_of
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.system.site import SiteDescription
from aiperf_hpc.system.summary import MachineSummary, summarize


class RunMachine:
    """Sums up what the processes of a run told, again only when more of them did."""

    def __init__(
        self, history: RunHistory, site: SiteDescription | None, *, on_cpus: bool = False
    ) -> None:
        """Take the run's history, what people said of the system, and whether it is to leave
        accelerators alone."""
        self._history = history
        self._site = site
        self._on_cpus = on_cpus
        self._use = AcceleratorUse({}, {}, {})
        self._kinds: Mapping[str, str] = {}
        self._of: list[RankDescription | None] | None = None
        self._summary = MachineSummary()

    def summary(self) -> MachineSummary:
        """Return the machine as it is known now."""
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
        """Return which accelerators no rank computes on, in a line; empty where there are none."""
        self.summary()
        return self._use.line()

    def resources(self, requested: int, until: float) -> Resources:
        """Return what the run ran on until a time, of so many replicas that were requested."""
        machine, replicas = self.summary(), self._history.replicas.values()
        return resources_of(replicas, requested, machine, self._use, until)

    def kinds(self) -> Mapping[str, str]:
        """Return the kind of node of each replica; none where all nodes are of one kind."""
        self.summary()
        return self._kinds


def _the_same(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether both hold the same objects: descriptions never change."""
    return len(one) == len(other) and all(map(is_, one, other))
