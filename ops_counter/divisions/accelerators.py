"""Which accelerators of a run's nodes have a rank, by what its processes told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from aiperf_hpc.host.schedulers import job_variable
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence, told
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.records import ReplicaStarted
from aiperf_hpc.system.description import NodeDescription, ProcessDescription, RankDescription


@dataclass(frozen=True, slots=True)
class AcceleratorUse:
    """How many accelerators each host has, and how many of them a rank computes on."""

    ranks: Mapping[str, int]
    """Of each host that replicas ran on."""
    there: Mapping[str, int]
    """Of each host that told of itself."""
    used: Mapping[str, int]

    @property
    def idle(self) -> dict[str, int]:
        """The accelerators of each host that no rank computes on, where there are any."""
        left = {host: number - self.used[host] for host, number in self.there.items()}
        return {host: number for host, number in left.items() if number}

    def reasons(self) -> Iterator[str]:
        """Yield why the rule is not kept: a line for each host."""
        for host, ranks in sorted(self.ranks.items()):
            if host not in self.there:
                yield f"{host} did not tell its accelerators"
            elif self.idle.get(host):
                there, used = self.there[host], self.used[host]
                of_them = "" if used == ranks else f", which use {used}"
                yield f"{host} has {there} accelerators and {ranks} ranks{of_them}"

    def line(self) -> str:
        """Return what a run leaves idle in a line; empty where it is nothing."""
        idle = self.idle
        if not idle:
            return ""
        hosts = sorted(idle)
        more = f" and {len(hosts) - 1:,} more" if len(hosts) > 1 else ""
        return (
            f"{sum(idle.values()):,} of {sum(self.there.values()):,} accelerators are idle: "
            f"{hosts[0]} has {self.there[hosts[0]]} and uses {self.used[hosts[0]]}{more}"
        )


def accelerator_use(replicas: Iterable[ReplicaHistory], *, on_cpus: bool) -> AcceleratorUse:
    """Return what replicas use of their nodes.

    Args:
        replicas: all of a run.
        on_cpus: whether the run was told to leave accelerators alone, which replicas that tell
            of some they trained on did not.
    """
    listed = list(replicas)
    on_cpus = on_cpus and not any(r.machine is not None and r.machine.accelerators for r in listed)
    ranks = Counter(host for each in listed for host in hosts_of(each))
    told_by: defaultdict[str, list[RankDescription]] = defaultdict(list)
    for replica in listed:
        for description in replica.described.values():
            told_by[description.host].append(description)
    there = {
        host: max(map(_accelerators, descriptions))
        for host, descriptions in told_by.items()
        if any(description.node is not None for description in descriptions)
    }
    used = {
        host: 0 if on_cpus else min(number, _bound(told_by[host]) or ranks[host])
        for host, number in there.items()
    }
    return AcceleratorUse(ranks, there, used)


def accelerators(run: RunEvidence) -> RuleCheck:
    """Each accelerator of each node has a rank."""
    use = accelerator_use(run.replicas, on_cpus=run.config.engine.device == "cpu")
    return RuleCheck.of(
        "accelerators",
        f"{sum(use.used.values()):,} used",
        f"all {sum(use.there.values()):,}",
        told(use.reasons()),
    )


def hosts_of(replica: ReplicaHistory) -> tuple[str, ...]:
    """Return the host of each rank of a replica."""
    return () if replica.started is None else started_hosts(replica.started)


def started_hosts(started: ReplicaStarted) -> tuple[str, ...]:
    """Return the host of each rank of an attempt."""
    return started.hosts or (started.machine.host,)


def _accelerators(description: RankDescription) -> int:
    """Return how many there are: by vendors' tools, on the bus, or by what the scheduler gave."""
    node, process = description.node or NodeDescription(), description.process
    given = job_variable("node_gpus", process.environment) or ""
    on_bus = sum((node.pci_accelerators or {}).values())
    return max(len(node.accelerators), on_bus, int(given) if given.isdecimal() else 0)


def _bound(descriptions: Iterable[RankDescription]) -> int:
    """Return how many different ones ranks are bound to; 0 where they do not tell.

    Where the scheduler gives each rank another one all may have the same name for theirs.
    """
    processes: Iterable[ProcessDescription] = (each.process for each in descriptions)
    return len(
        {
            (job_variable("step_gpus", process.environment), process.accelerator)
            for process in processes
            if process.accelerator is not None
        }
    )
