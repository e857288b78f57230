"""Rules on replicas: they run from start to end, on constant nodes and all accelerators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from aiperf_hpc.grouping import grouped
from aiperf_hpc.host.schedulers import job_variable
from aiperf_hpc.rules.rule import Each, Findings, Found, Required
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.liveness import own_limit
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import ReplicaStarted
from aiperf_hpc.system.description import NodeDescription, RankDescription


def replicas(run: RunEvidence) -> Findings:
    """Exactly the requested replicas were launched, and each has records and shut down cleanly."""
    requested = run.manifest.replicas
    yield Found(f"{sum(1 for each in run.replicas if _in_order(each)):,} shut down cleanly")
    yield Required(f"{requested:,}")
    if len(run.replicas) != requested:
        yield f"{len(run.replicas):,} of {requested:,} replicas"
    for each in run.replicas:
        if each.job is None:
            yield Each(f"{each.id} was never launched")
        elif each.started is None:
            yield Each(f"{each.id} left no record")
        elif each.ended is None:
            yield Each(f"{each.id} has not ended")
        elif not _in_order(each):
            yield Each(f"{each.id} {each.ended}")


def _in_order(replica: ReplicaHistory) -> bool:
    return replica.ended is not None and not replica.ended.startswith("failed")


def heartbeats(run: RunEvidence) -> Findings:
    """No attempt of a replica was silent for longer than the limit."""
    period = run.config.journal.heartbeat_interval_seconds
    most = own_limit(period)
    silent = {each.id: _silence(run, each) for each in run.replicas if each.started is not None}
    yield Found(f"{max(silent.values(), default=0.0):.1f} s apart")
    yield Required(f"<= {most:g} s, {most / period:g} periods")
    for name, seconds in silent.items():
        if seconds > most:
            yield Each(f"{name} was silent for {seconds:.1f} s")


def _silence(run: RunEvidence, replica: ReplicaHistory) -> float:
    since = 0.0 if replica.ended is not None else run.end - replica.alive_utc
    return max(replica.longest_silence, since)


def nodes(run: RunEvidence) -> Findings:
    """The run had the stated number of nodes, the same ones from its start to its end.

    A node may be a part of a host if every rank on the host has its own accelerator.
    """
    requested = run.manifest.nodes
    hosts = len({host for each in run.replicas for host in hosts_of(each)})
    in_shares = _in_shares(run, hosts)
    shares = f" in {requested:,} shares" if in_shares else ""
    yield Found(f"{hosts:,} hosts{shares}")
    yield Required(f"{requested:,}, constant")
    if hosts != requested and not in_shares:
        yield Each(f"{hosts:,} hosts; {requested:,} nodes are stated")
    if {event.nodes for _, event in run.history.run_starts} - {requested}:
        yield Each("the primaries had different numbers of nodes")
    for each in run.replicas:
        if each.restarts:
            yield Each(f"{each.id} was started {each.restarts + 1} times")


def _in_shares(run: RunEvidence, hosts: int) -> bool:
    """Return whether a run's nodes are parts of fewer hosts and share no accelerators."""
    use = accelerator_use(run.replicas, on_cpus=run.config.engine.device == "cpu")
    alone = all(use.used.get(host, 0) == ranks for host, ranks in use.ranks.items())
    return 0 < hosts < run.manifest.nodes == len(run.replicas) and alone


def constant_nodes(run: RunEvidence) -> Findings:
    """The requested number of nodes did not change during the run."""
    requested = [run.manifest.nodes, *(nodes for _, nodes in run.history.nodes_requested)]
    value = ", ".join(f"{nodes:,}" for nodes in dict.fromkeys(requested))
    yield Found(f"{value} requested")
    for nodes in requested[1:]:
        yield Each(f"{nodes:,} nodes were requested during the run")


def planned_nodes(manifest: RunManifest) -> Findings:
    """The planned run keeps its initial number of nodes."""
    most = manifest.nodes_max
    requested = f"{manifest.nodes:,}" if most is None else f"{manifest.nodes:,}-{most:,}"
    yield Found(requested)
    if most is not None:
        yield f"{requested} nodes; official runs have a fixed number of nodes"


def records(run: RunEvidence) -> Findings:
    """No journal has malformed or misplaced records."""
    root, problems = run.history.paths.root, run.history.problems
    yield Found(f"{len(problems):,} damaged lines")
    yield from (f"{p.path.relative_to(root)}, line {p.line}: {p.what}" for p in problems)


@dataclass(frozen=True, slots=True)
class AcceleratorUse:
    """The numbers of ranks, accelerators and used accelerators by host."""

    ranks: Mapping[str, int]
    """Number of ranks on each host of the replicas."""
    there: Mapping[str, int]
    """Number of accelerators of each host that was described in the records."""
    used: Mapping[str, int]

    @property
    def idle(self) -> dict[str, int]:
        """Number of unused accelerators by host, for hosts that have any."""
        left = {host: number - self.used[host] for host, number in self.there.items()}
        return {host: number for host, number in left.items() if number}

    def reasons(self) -> Iterator[str]:
        """Yield the reasons of a violation, one line per host."""
        for host, ranks in sorted(self.ranks.items()):
            if host not in self.there:
                yield f"{host} did not record its accelerators"
            elif self.idle.get(host):
                there, used = self.there[host], self.used[host]
                of_them = "" if used == ranks else f", which use {used}"
                yield f"{host} has {there} accelerators and {ranks} ranks{of_them}"

    def line(self) -> str:
        """Return a line about the idle accelerators; empty if there are none."""
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
    """Return the use of accelerators by replicas.

    Args:
        replicas: all replicas of a run.
        on_cpus: whether the run is configured to use CPUs only; ignored if a replica recorded
            accelerators that it trained on.
    """
    listed = list(replicas)
    on_cpus = on_cpus and not any(r.machine is not None and r.machine.accelerators for r in listed)
    ranks = Counter(host for each in listed for host in hosts_of(each))
    described = (each for replica in listed for each in replica.described.values())
    told_by = grouped((each.host, each) for each in described)
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


def accelerators(run: RunEvidence) -> Findings:
    """Each accelerator of each node has a rank."""
    use = accelerator_use(run.replicas, on_cpus=run.config.engine.device == "cpu")
    yield Found(f"{sum(use.used.values()):,} used")
    yield Required(f"all {sum(use.there.values()):,}")
    yield from map(Each, use.reasons())


def hosts_of(replica: ReplicaHistory) -> tuple[str, ...]:
    """Return the host of each rank of a replica."""
    return () if replica.started is None else started_hosts(replica.started)


def started_hosts(started: ReplicaStarted) -> tuple[str, ...]:
    """Return the host of each rank of an attempt."""
    return started.hosts or (started.machine.host,)


def _accelerators(description: RankDescription) -> int:
    """Return the largest number of accelerators by vendors' tools, PCI bus and scheduler."""
    node, process = description.node or NodeDescription(), description.process
    given = job_variable("node_gpus", process.environment) or ""
    on_bus = sum((node.pci_accelerators or {}).values())
    return max(len(node.accelerators), on_bus, int(given) if given.isdecimal() else 0)


def _bound(descriptions: Iterable[RankDescription]) -> int:
    """Return the number of distinct accelerators to which ranks are bound; 0 if not recorded.

    If the scheduler assigns accelerators to ranks, each rank may see its own under the same name.
    """
    bound = {
        (job_variable("step_gpus", each.process.environment), each.process.accelerator)
        for each in descriptions
        if each.process.accelerator is not None
    }
    return len(bound)
