"""Which replicas there were, and why each of their lives began: what launchers tell of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aiperf_hpc.run import records
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.paths import replica_name
from aiperf_hpc.trial import JobPhase
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.journal import Journal

EXACT = ("local", "simulated")
"""The launchers that see each death; a scheduler's client may miss one."""
LATE_SECONDS = 120.0
"""How long after it was taken out of the queue a replica may still begin: the request waits for
its turn, and a scheduler may be starting the replica meanwhile."""


def launches(run: Evidence) -> Failures:
    """The replicas are those that the nodes make, all of them launched, and each life has a cause.

    Those beyond the run's first nodes were asked for before they began. A primary that was killed
    while it launched has not said whom; then nothing is missed.
    """
    asked = _asked(run)
    most = max(each.replicas for each in asked)
    numbers = {replica_name(number): number for number in range(most)}
    for name, replica in sorted(run.history.replicas.items()):
        if name not in numbers:
            yield f"{name} is none of the {most} replicas that the nodes make"
        elif len(asked) > 1:
            yield from _was_asked_for(run, replica, numbers[name], asked)
    for primary in _primaries(run):
        wanted = {replica_name(number) for number in range(_replicas_at(asked, primary.utc))}
        missing = wanted - primary.launched if primary.went_on else set()
        if missing:
            some = ", ".join(sorted(missing)[:3])
            yield f"{some}: never launched, of {len(wanted)} replicas {len(missing)} were not"
    told = _told(run)
    for replica in run.history.replicas.values():
        yield from _lives(run, replica)
        yield from _seen(run, replica, told)


class _Asked(NamedTuple):
    """How many replicas the run was to have from when on, UTC seconds."""

    utc: float
    replicas: int


def _asked(run: Evidence) -> list[_Asked]:
    """Return how many replicas the run was to have: as many as it began with, then as asked for."""
    manifest, journal = run.view.manifest, run.primary
    changes = [(utc, event.nodes) for utc, event in journal.told(records.NodesAsked)]
    changes += [(utc, event.kept) for utc, event in journal.told(records.NodesRefused)]
    each = manifest.config.replica.nodes
    later = [_Asked(utc, nodes // each) for utc, nodes in sorted(changes, key=lambda c: c[0])]
    return [_Asked(-math.inf, manifest.replicas), *later]


def _replicas_at(asked: list[_Asked], utc: float) -> int:
    return [each.replicas for each in asked if each.utc <= utc][-1]


def _was_asked_for(
    run: Evidence, replica: ReplicaHistory, number: int, asked: list[_Asked]
) -> Failures:
    """A replica is one of those that the run was to have when each of its lives began."""
    slack = run.tolerance(replica)
    if number >= asked[0].replicas and replica.job is None and not _unseen(run):
        yield f"{replica.id} was never launched"
    for life, utc in sorted(replica.starts.items()):
        wanted = max(e.replicas for e in asked if e.utc <= utc + slack)
        before = max(_replicas_at(asked, utc - LATE_SECONDS), _replicas_at(asked, utc + slack))
        if number >= wanted:
            yield f"{replica.id}, life {life}: it began before it was asked for"
        elif number >= before and not _unseen(run):
            yield f"{replica.id}, life {life}: it began after fewer nodes were asked for"


@dataclass(slots=True)
class _Primary:
    """One primary that had the run in hand."""

    utc: float
    launched: set[str] = field(default_factory=set)
    went_on: bool = False
    """Whether it saw what became of replicas: whom it launched it has recorded by then."""


def _primaries(run: Evidence) -> list[_Primary]:
    """Return the primaries, one after the other."""
    journal = run.primary
    found = [_Primary(utc) for utc, _ in journal.told(records.RunStarted)]
    for utc, launched in journal.told(records.ReplicaLaunched):
        for primary in _of(found, utc):
            primary.launched.add(launched.replica)
    for utc, _ in journal.told(records.JobState):
        for primary in _of(found, utc):
            primary.went_on = True
    return found


def _of(primaries: list[_Primary], utc: float) -> Iterator[_Primary]:
    """Yield the primary that wrote at a time."""
    earlier = [each for each in primaries if each.utc <= utc]
    yield from earlier[-1:]


def _lives(run: Evidence, replica: ReplicaHistory) -> Failures:
    """A life begins after a launch, and a further one of that launch after a death."""
    begun = [utc for utc, _ in run.history.run_starts]
    first = begun[0] if begun else run.end
    for life, utc in sorted(replica.starts.items()):
        who = f"{replica.id}, life {life}"
        if utc < first - run.tolerance(replica):
            yield f"{who}: it began {first - utc:.3f} s before the run"
        elif life.launch and (len(begun) < 2 or utc < begun[1] - run.tolerance(replica)):
            yield f"{who}: no second primary launched it"
    launches = {life.launch for life in replica.starts}
    if len(launches) > len(begun):
        yield f"{replica.id} had lives of {len(launches)} launches, there were {len(begun)}"
    yield from _again(run, replica)


def _again(run: Evidence, replica: ReplicaHistory) -> Failures:
    """A replica is queued again when it has died, and its launcher says so.

    One that a scheduler starts when the run is over counts nothing, and nobody looks any more. A
    scheduler may queue one again and start it between two looks of the primary.
    """
    if run.view.manifest.launcher not in EXACT:
        return
    again = [life for life, utc in replica.starts.items() if life.restart and utc <= run.end]
    if not again or _unseen(run):
        return
    first = min(replica.starts[life] for life in again)
    deaths = [*(utc for utc, _ in replica.requeued), *_relaunched(run, replica)]
    if not any(utc <= first + run.tolerance(replica) for utc in deaths):
        yield f"{replica.id}, life {min(again)}: it was never queued again"
    elif len(deaths) < len(again):
        yield f"{replica.id} lived {len(again)} times more, it was queued again {len(deaths)} times"


def _relaunched(run: Evidence, replica: ReplicaHistory) -> list[float]:
    """Return when the primary launched a replica that had left the run, UTC seconds."""
    told = run.primary.told(records.ReplicaLaunched)
    return [utc for utc, event in told if event.replica == replica.id][1:]


def _unseen(run: Evidence) -> bool:
    """Return whether a replica may have been queued again while nobody looked.

    The scheduler did not answer for a while, or a primary died.
    """
    journal = run.primary
    primaries = len(journal.told(records.RunStarted)) + len(journal.told(records.TakenOver))
    silent = any(not event.answers for _, event in journal.told(records.SchedulerState))
    return silent or primaries > 1 or run.history.end_utc is None


def _seen(run: Evidence, replica: ReplicaHistory, told: Mapping[str, _Seen]) -> Failures:
    """What the primary saw of a replica was after the replica had said it."""
    seen, slack = told.get(replica.id, _Seen()), run.tolerance(replica)
    lives = [_Life.of(journal) for journal in run.lives(replica).values()]
    hosts, begun = {life.host for life in lives}, min((life.utc for life in lives), default=0.0)
    for utc, checked in seen.checked if lives else ():
        if checked.host not in hosts:
            yield f"{replica.id}: the primary saw it on {checked.host}, it was on {sorted(hosts)}"
        if utc < begun - slack:
            yield f"{replica.id} began {begun - utc:.3f} s after the primary had seen it"
    for utc in seen.done:
        ended = max((life.ended for life in lives if life.utc <= utc), default=utc)
        if ended > utc + slack:
            yield f"{replica.id} ended {ended - utc:.3f} s after the primary had seen its end"


@dataclass(slots=True)
class _Seen:
    """What the primary saw of a replica, and when, UTC seconds."""

    checked: list[tuple[float, records.NodeChecked]] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    """When its job was seen to have ended in order."""


def _told(run: Evidence) -> Mapping[str, _Seen]:
    """Return what the primary saw of each replica."""
    journal, found = run.primary, defaultdict[str, _Seen](_Seen)
    for utc, checked in journal.told(records.NodeChecked):
        found[checked.replica].checked.append((utc, checked))
    for utc, state in journal.told(records.JobState):
        if state.phase is JobPhase.DONE:
            found[state.replica].done.append(utc)
    return found


class _Life(NamedTuple):
    """One life of a replica: where, from when and, as far as it said so, until when."""

    host: str
    utc: float
    ended: float

    @classmethod
    def of(cls, journal: Journal) -> _Life:
        """Return what a journal that begins with a life says."""
        (utc, started), *_ = journal.told(records.ReplicaStarted)
        ended = (utc for utc, _ in journal.told(records.ReplicaEnded))
        return cls(started.machine.host, utc, max(ended, default=utc))
