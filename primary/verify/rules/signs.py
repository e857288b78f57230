"""Signs of life: who is at work says so every few seconds, of itself and of its machine."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.primary.verify.evidence import Evidence, Failures
from aiperf_hpc.primary.verify.journal import Journal
from aiperf_hpc.run import records
from aiperf_hpc.run.history import PRIMARY
from aiperf_hpc.system.description import NodeDescription
from aiperf_hpc.trial import Machine

MISSED = 10
"""Signs of life in a row that an honest process may miss: it was stopped, or waited for storage."""
LEAST_SECONDS = 60.0
"""The least time between two of them that is reckoned with."""


def signs(run: Evidence) -> Failures:
    """Replicas that recorded work gave signs of life beside it, and primaries did all the time."""
    every = max(run.config.journal.heartbeat_seconds, LEAST_SECONDS)
    for replica in run.history.replicas.values():
        for life, journal in run.lives(replica).items():
            if journal.longest_mute > MISSED * every:
                mute = f"{journal.longest_mute:.0f} s without a sign of life"
                yield f"{replica.id}, life {life}: at work for {mute}"
    waits = (event.seconds for who, event in run.history.storage_waits if who == PRIMARY)
    waited = sum(waits)
    for began, ended, beats in _primaries(run.primary):
        worked = ended - began - waited
        due = worked / run.config.journal.heartbeat_seconds
        if beats < due / MISSED - 1.0:
            yield f"the primary gave {beats} signs of life in {ended - began:.0f} s"


def _primaries(journal: Journal) -> Iterator[tuple[float, float, int]]:
    """Yield from when until when each primary wrote, and how many signs of life it gave."""
    begins = [utc for utc, _ in journal.told(records.RunStarted)]
    others = [*begins, *(utc for utc, _ in journal.told(records.TakenOver))]
    for began in begins:
        until = min((utc for utc in others if utc > began), default=float("inf"))
        own = [utc for utc in journal.times if began <= utc < until]
        yield began, max(own, default=began), sum(1 for u in journal.beats if began <= u < until)


def machines(run: Evidence) -> Failures:
    """What a replica says of its machine is what its first rank told of itself and its node."""
    for replica in run.history.replicas.values():
        for life, journal in run.lives(replica).items():
            for wrong in _machine(journal):
                yield f"{replica.id}, life {life}: {wrong}"


def _machine(journal: Journal) -> Failures:
    (_, started), *_ = journal.told(records.ReplicaStarted)
    machine = started.machine
    for _, described in journal.told(records.SystemDescribed):
        if described.rank != 0:
            continue
        told = described.description
        if told.host != machine.host:
            yield f"it was on {machine.host}, its first rank on {told.host}"
        if set(told.process.cores) != set(machine.cores):
            yield f"it had {len(machine.cores)} cores, its first rank {len(told.process.cores)}"
        if told.node is not None:
            yield from _node(machine, told.node)
    hosts = set(started.hosts) | {machine.host}
    for sampler in journal.samplers:
        if sampler.host not in hosts:
            yield f"it was on {machine.host}, and sampled what {sampler.host} drew"


def _node(machine: Machine, node: NodeDescription) -> Failures:
    """Yield where a machine is not as its node's kernel and its vendors' tools tell."""
    processors = node.processors
    if processors is not None and processors.architecture == "x86_64":
        model = processors.model or machine.cpu
        if model.split() != machine.cpu.split():
            yield f"its processors are {machine.cpu}, its kernel says {model}"
    models = [each.model for each in node.accelerators if each.vendor == "NVIDIA"]
    for name in machine.accelerators if models else ():
        if not any(name.startswith(model) or model.startswith(name) for model in models):
            yield f"it trained on {name}, its driver says {models[0]}"
    if models and len(machine.accelerators) > len(models):
        yield f"it trained on {len(machine.accelerators)} accelerators of {len(models)}"
