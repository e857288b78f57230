"""Signs of life: who is at work says so every few seconds, of itself and of its machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from aiperf_hpc.run import records
from aiperf_hpc.run.liveness import PAUSE_SECONDS, TOLERATED_BEATS, tolerated_limit
from aiperf_hpc.system.description import NodeDescription
from aiperf_hpc.trial import Machine
from aiperf_hpc.verification.evidence import Evidence, Failures, Note
from aiperf_hpc.verification.journal import Journal


def signs(run: Evidence) -> Failures:
    """Replicas that recorded work gave signs of life beside it, and so did primaries.

    A pause in which a process recorded nothing is no work: it may have been suspended.
    """
    beat = run.config.journal.heartbeat_seconds
    most = tolerated_limit(beat)
    for replica in run.history.replicas.values():
        for life, journal in run.lives(replica).items():
            if journal.longest_mute > most:
                mute = f"{journal.longest_mute:.0f} s without a sign of life"
                yield f"{replica.id}, life {life}: at work for {mute}"
    for times, beats in _primaries(run.primary):
        gaps = [later - earlier for earlier, later in pairwise(times)]
        worked = sum(min(max(gap, 0.0), PAUSE_SECONDS, TOLERATED_BEATS * beat) for gap in gaps)
        if beats < worked / beat / TOLERATED_BEATS - 1.0:
            yield f"the primary gave {beats} signs of life in {worked:.0f} s of work"
        if (longest := max(gaps, default=0.0)) > most:
            yield Note(f"the primary recorded nothing for {longest:.0f} s")


def _primaries(journal: Journal) -> Iterator[tuple[list[float], int]]:
    """Yield when each primary wrote, UTC seconds, and how many signs of life it gave."""
    begins = [utc for utc, _ in journal.told(records.RunStarted)]
    others = [*begins, *(utc for utc, _ in journal.told(records.TakenOver))]
    for began in begins:
        until = min((utc for utc in others if utc > began), default=float("inf"))
        own = [utc for utc in journal.times if began <= utc < until]
        yield own, sum(1 for utc in journal.beats if began <= utc < until)


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
