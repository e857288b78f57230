"""Rules on replicas: launched with a cause, alive, and on the machines described by their ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple, TypeVar

from aiperf_hpc.grouping import grouped
from aiperf_hpc.rules.consistency.evidence import Attempt, Evidence
from aiperf_hpc.rules.consistency.journal import Journal
from aiperf_hpc.rules.rule import Checked, Findings, Note
from aiperf_hpc.run import records
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.liveness import PAUSE_SECONDS, TOLERATED_BEATS, tolerated_limit
from aiperf_hpc.run.paths import replica_name
from aiperf_hpc.system.description import NodeDescription
from aiperf_hpc.trial import JobPhase, Machine

EXACT = ("local", "simulated")
"""Launchers that observe each exit of a replica; a scheduler's client may miss one."""
R = TypeVar("R", records.NodeChecked, records.JobState)
LATE_SECONDS = 120.0
"""Maximum seconds from the reduction of nodes to the start of a removed replica: the cancellation
is queued, and the scheduler may already be starting the replica."""


def launches(run: Evidence) -> Findings:
    """The replicas match the nodes, all were launched, and each attempt has a cause.

    Replicas on additional nodes were requested before they started. A primary that was killed
    during the launch has not recorded all launches; these are not reported as missing.
    """
    yield Checked(len(run.history.replicas))
    requested = _requested(run)
    most = max(each.replicas for each in requested)
    numbers = {replica_name(number): number for number in range(most)}
    for name, replica in sorted(run.history.replicas.items()):
        if name not in numbers:
            yield f"{name} is not one of the {most} replicas of the nodes"
        elif len(requested) > 1:
            yield from _was_requested(run, replica, numbers[name], requested)
    yield from _unlaunched(run, requested)
    checked, states = _by_replica(run, records.NodeChecked), _by_replica(run, records.JobState)
    for replica in run.history.replicas.values():
        yield from _attempts(run, replica)
        yield from _observed(run, replica, checked[replica.id], states[replica.id])


class _Requested(NamedTuple):
    """The requested number of replicas from a time on, UTC seconds."""

    utc: float
    replicas: int


def _requested(run: Evidence) -> list[_Requested]:
    """Return the requested numbers of replicas: at the start, and after each change."""
    manifest, journal = run.manifest, run.primary
    changes = [(utc, event.nodes) for utc, event in journal.records_of(records.NodesRequested)]
    changes += [
        (utc, event.current_nodes) for utc, event in journal.records_of(records.NodesRefused)
    ]
    each = manifest.config.replica.nodes
    later = [_Requested(utc, nodes // each) for utc, nodes in sorted(changes, key=lambda c: c[0])]
    return [_Requested(-math.inf, manifest.replicas), *later]


def _replicas_at(requested: list[_Requested], utc: float) -> int:
    return [each.replicas for each in requested if each.utc <= utc][-1]


def _was_requested(
    run: Evidence, replica: ReplicaHistory, number: int, requested: list[_Requested]
) -> Iterator[str]:
    """A replica was requested when each of its attempts started."""
    slack = run.tolerance(replica)
    if number >= requested[0].replicas and replica.job is None and not _unseen(run):
        yield f"{replica.id} was never launched"
    for attempt, utc in sorted(replica.starts.items()):
        wanted = max(e.replicas for e in requested if e.utc <= utc + slack)
        before = max(
            _replicas_at(requested, utc - LATE_SECONDS), _replicas_at(requested, utc + slack)
        )
        if number >= wanted:
            yield f"{replica.id}, attempt {attempt}: it began before it was requested"
        elif number >= before and not _unseen(run):
            yield f"{replica.id}, attempt {attempt}: it began after fewer nodes were requested"


def _unlaunched(run: Evidence, requested: list[_Requested]) -> Iterator[str]:
    """Each primary that observed replicas' states had recorded all launches."""
    journal = run.primary
    starts = [utc for utc, _ in journal.records_of(records.RunStarted)]
    for utc, until in pairwise([*starts, math.inf]):
        launched = {
            event.replica
            for at, event in journal.records_of(records.ReplicaLaunched)
            if utc <= at < until
        }
        saw = any(utc <= at < until for at, _ in journal.records_of(records.JobState))
        wanted = {replica_name(number) for number in range(_replicas_at(requested, utc))}
        if saw and (missing := sorted(wanted - launched)):
            some = ", ".join(missing[:3])
            yield f"{some}: never launched, of {len(wanted)} replicas {len(missing)} were not"


def _attempts(run: Evidence, replica: ReplicaHistory) -> Iterator[str]:
    """The first attempt starts after a launch, and later ones of that launch after a failure."""
    begun = [utc for utc, _ in run.history.run_starts]
    first = begun[0] if begun else run.end
    for attempt, utc in sorted(replica.starts.items()):
        who = f"{replica.id}, attempt {attempt}"
        if utc < first - run.tolerance(replica):
            yield f"{who}: it began {first - utc:.3f} s before the run"
        elif attempt.launch and (len(begun) < 2 or utc < begun[1] - run.tolerance(replica)):
            yield f"{who}: no second primary launched it"
    launches = {attempt.launch for attempt in replica.starts}
    if len(launches) > len(begun):
        yield f"{replica.id} had attempts of {len(launches)} launches, there were {len(begun)}"
    yield from _again(run, replica)


def _again(run: Evidence, replica: ReplicaHistory) -> Iterator[str]:
    """A replica is requeued only after a failure that its launcher recorded.

    Replicas that a scheduler starts after the run's end do not count and are not observed. A
    scheduler may requeue and start a replica between two polls of the primary.
    """
    if run.manifest.launcher not in EXACT:
        return
    again = [each for each, utc in replica.starts.items() if each.restart and utc <= run.end]
    if not again or _unseen(run):
        return
    first = min(replica.starts[each] for each in again)
    launches = run.primary.records_of(records.ReplicaLaunched)
    relaunched = [utc for utc, event in launches if event.replica == replica.id][1:]
    deaths = [*(utc for utc, _ in replica.requeued), *relaunched]
    if not any(utc <= first + run.tolerance(replica) for utc in deaths):
        yield f"{replica.id}, attempt {min(again)}: it was never requeued"
    elif len(deaths) < len(again):
        yield f"{replica.id} restarted {len(again)} times, but was requeued {len(deaths)} times"


def _unseen(run: Evidence) -> bool:
    """Return whether a requeueing may have been missed.

    That is possible if the scheduler did not answer for some time or a primary exited.
    """
    states = run.primary.records_of(records.SchedulerState)
    silent = any(not event.reachable for _, event in states)
    return silent or len(_primaries(run.primary)) > 1 or run.history.end_utc is None


def _primaries(journal: Journal) -> list[float]:
    """Return the start times of all primaries and of commands in their place, UTC seconds."""
    kinds = (records.RunStarted, records.TakenOver)
    return sorted(utc for kind in kinds for utc, _ in journal.records_of(kind))


def _by_replica(run: Evidence, kind: type[R]) -> Mapping[str, list[tuple[float, R]]]:
    """Return the primary's records of a kind by replica, with their UTC seconds."""
    return grouped((event.replica, (utc, event)) for utc, event in run.primary.records_of(kind))


def _observed(
    run: Evidence,
    replica: ReplicaHistory,
    checked: list[tuple[float, records.NodeChecked]],
    states: list[tuple[float, records.JobState]],
) -> Iterator[str]:
    """The primary's observations of a replica follow its own records, unless some were lost."""
    if run.has_lost(replica):
        return
    slack, attempts = run.tolerance(replica), run.attempts_of(replica)
    starts = [attempt.started for attempt in attempts]
    hosts = {started.machine.host for _, started in starts}
    first = min((utc for utc, _ in starts), default=0.0)
    for utc, check in checked if attempts else ():
        if check.host not in hosts:
            yield f"{replica.id}: the primary saw it on {check.host}, it was on {sorted(hosts)}"
        if utc < first - slack:
            yield f"{replica.id} began {first - utc:.3f} s after the primary had seen it"
    for utc in [utc for utc, state in states if state.phase is JobPhase.DONE]:
        # A replaced attempt on a disconnected node ends later, unobserved.
        begun = (each for each in attempts if each.started[0] <= utc)
        latest = max(begun, key=lambda each: each.incarnation, default=None)
        ended = utc if latest is None else _ended(latest)
        if ended > utc + slack:
            yield f"{replica.id} ended {ended - utc:.3f} s after the primary had seen its end"


def _ended(attempt: Attempt) -> float:
    """Return the end of an attempt, or its start if it recorded no end, UTC seconds."""
    ends = (utc for utc, _ in attempt.journal.records_of(records.ReplicaEnded))
    return max(ends, default=attempt.started[0])


def replicas(run: Evidence) -> Findings:
    """A replica whose records or success the primary recorded has records."""
    yield Checked(len(run.history.replicas))
    for replica in run.history.replicas.values():
        if not replica.starts and replica.seen and not run.has_lost(replica):
            what = f"the primary recorded that {replica.id} {replica.seen}"
            yield f"{what}; {replica.id} recorded no start"


def heartbeats(run: Evidence) -> Findings:
    """Replicas and primaries recorded heartbeats while they worked.

    A pause without any record does not count as work: the process may have been suspended.
    """
    yield Checked(len(run.history.replicas))
    beat = run.config.journal.heartbeat_interval_seconds
    most = tolerated_limit(beat)
    for attempt in run.attempts:
        if (silent := attempt.journal.longest_without_heartbeat) > most:
            yield f"{attempt}: working for {silent:.0f} s without a heartbeat"
    for times, beats in _beats_of_primaries(run.primary):
        gaps = [later - earlier for earlier, later in pairwise(times)]
        worked = sum(min(max(gap, 0.0), PAUSE_SECONDS, TOLERATED_BEATS * beat) for gap in gaps)
        if beats < worked / beat / TOLERATED_BEATS - 1.0:
            yield f"the primary recorded {beats} heartbeats in {worked:.0f} s of work"
        if (longest := max(gaps, default=0.0)) > most:
            yield Note(f"the primary recorded nothing for {longest:.0f} s")


def _beats_of_primaries(journal: Journal) -> Iterator[tuple[list[float], int]]:
    """Yield the times of each primary's records, UTC seconds, and its number of heartbeats."""
    starts = _primaries(journal)
    for began, _ in journal.records_of(records.RunStarted):
        until = min((utc for utc in starts if utc > began), default=math.inf)
        own = [utc for utc in journal.times if began <= utc < until]
        yield own, sum(1 for utc in journal.heartbeats if began <= utc < until)


def machines(run: Evidence) -> Findings:
    """A replica's machine agrees with the descriptions by its first rank and of its node.

    Each rank describes its system before the dataset is loaded, the primary before it launches.
    """
    yield Checked(sum(len(r.described) for r in run.history.replicas.values()))
    launched = run.primary.records_of(records.ReplicaLaunched)
    if run.manifest.monitored and launched and None not in run.primary.described:
        yield "the primary recorded no description of its system"
    for attempt in run.attempts:
        yield from (f"{attempt}: {wrong}" for wrong in _machine(attempt))
        if run.manifest.monitored and attempt.journal.records_of(records.DatasetLoaded):
            _, started = attempt.started
            ranks = set(range(max(1, len(started.hosts))))
            if missing := sorted(ranks - attempt.journal.described.keys()):
                yield f"{attempt}: no description of the system of rank {missing[0]} was recorded"


def _machine(attempt: Attempt) -> Iterator[str]:
    journal, (_, started) = attempt.journal, attempt.started
    machine = started.machine
    for _, described in journal.records_of(records.SystemDescribed):
        if described.rank != 0:
            continue
        own = described.description
        if own.host != machine.host:
            yield f"it was on {machine.host}, its first rank on {own.host}"
        if set(own.process.cores) != set(machine.cores):
            yield f"it had {len(machine.cores)} cores, its first rank {len(own.process.cores)}"
        if own.node is not None:
            yield from _node(machine, own.node)
    hosts = set(started.hosts) | {machine.host}
    for sampler in journal.samplers:
        if sampler.host not in hosts:
            yield f"it was on {machine.host}, but sampled the power of {sampler.host}"


def _node(machine: Machine, node: NodeDescription) -> Iterator[str]:
    """Yield differences between a machine and the reports of its kernel and vendors' tools."""
    processors = node.processors
    if processors is not None and processors.architecture == "x86_64":
        model = processors.model or machine.cpu
        if model.split() != machine.cpu.split():
            yield f"its processors are {machine.cpu}, its kernel reports {model}"
    models = [each.model for each in node.accelerators if each.vendor == "NVIDIA"]
    for name in machine.accelerators if models else ():
        if not any(name.startswith(model) or model.startswith(name) for model in models):
            yield f"it trained on {name}, its driver reports {models[0]}"
    if models and len(machine.accelerators) > len(models):
        yield f"it trained on {len(machine.accelerators)} accelerators of {len(models)}"
