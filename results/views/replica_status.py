"""The state of each replica, whether replicas are alike, and the time spent waiting for storage."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from aiperf_hpc.formatting import few
from aiperf_hpc.run.history import PRIMARY, ReplicaHistory, RunHistory
from aiperf_hpc.run.records import StorageWaited
from aiperf_hpc.trial import JobPhase, Value


class ReplicaStatus(Value):
    """One replica now."""

    id: str
    """Its name."""
    state: str
    """What it is doing: its job's pending, requeued, lost, done, failed; or starting, ready (it
    waits for the run's clock), its trainer's phase, silent, ended, failed with its status; or
    unknown, when it is silent and its scheduler too."""
    host: str | None
    """The host's name."""
    node: str | None
    """The scheduler's name for where it runs; the host's where there is none."""
    job: str | None
    """The launcher's name for its job."""
    detail: str
    """The launcher's own words about its job."""
    trials: int
    """Number of its trials."""
    stock: int
    """Candidates that wait for the trainer."""
    last_record_seconds: float | None
    """Seconds since its last record; None before the first, and once the run has ended."""
    cpu_percent: float | None
    """Processor time used, in percent of one core."""
    memory_bytes: int | None
    """Memory in use, in bytes."""
    storage_waiting: str = ""
    """What it waits for now, because storage is full or away; empty when it does not."""


class StorageStatus(Value):
    """How the primary or a replica has waited for storage that was full or away."""

    who: str
    """``primary``, or a replica."""
    seconds: float
    """The total time waited, in seconds."""
    times: int
    """The number of waits."""
    last_began_seconds: float | None
    """Seconds from the run's start to its last wait; None while its first wait lasts."""
    last_reason: str
    """What could not be done, and what storage answered."""
    waiting: bool
    """Whether it waits now, as far as it could report it."""


def replica_statuses(
    history: RunHistory, now: float, silent_after: float
) -> tuple[ReplicaStatus, ...]:
    """Return all replicas, r2 before r10.

    Args:
        history: the run's records.
        now: UTC seconds.
        silent_after: seconds without a record after which a replica is silent.
    """
    return tuple(_status(history, each, now, silent_after) for each in _ordered(history))


def storage_statuses(history: RunHistory) -> Iterator[StorageStatus]:
    """Yield the primary and each replica that has waited for storage."""
    waits = defaultdict[str, list[StorageWaited]](list)
    for who, wait in history.storage_waits:
        waits[who].append(wait)
    waited = {PRIMARY: (sum(wait.seconds for wait in waits[PRIMARY]), "")}
    for replica in _ordered(history):
        waited[replica.id] = replica.storage_wait_seconds, replica.storage_waiting
    start = history.origin_utc or 0.0
    for who, (seconds, waiting) in waited.items():
        last = waits[who][-1] if waits[who] else None
        if seconds > 0.0 or waiting or (who == PRIMARY and last is not None):
            yield StorageStatus(
                who=who,
                seconds=seconds,
                times=len(waits[who]) + bool(waiting),
                last_began_seconds=None if last is None else last.began_utc - start,
                last_reason=waiting or (last.why if last is not None else ""),
                waiting=bool(waiting),
            )


def _ordered(history: RunHistory) -> list[ReplicaHistory]:
    return sorted(history.replicas.values(), key=lambda replica: _by_number(replica.id))


def _by_number(name: str) -> list[tuple[str, int]]:
    """Order names as people do: r2 before r10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _status(
    history: RunHistory, replica: ReplicaHistory, now: float, silent_after: float
) -> ReplicaStatus:
    age = now - replica.last_utc if replica.last_utc else None
    job, heartbeat = replica.job_state, replica.heartbeat
    host = replica.machine.host if replica.machine else None
    silent = age is None or age > silent_after
    return ReplicaStatus(
        id=replica.id,
        state=_state(replica, silent, history.scheduler_problem is None),
        host=host,
        node=job.node if job else host,
        job=replica.job,
        detail=job.detail if job else "",
        trials=len(replica.trials),
        stock=history.stock(replica.id),
        last_record_seconds=None if history.end_utc is not None else age,
        cpu_percent=heartbeat.cpu_percent if heartbeat else None,
        memory_bytes=heartbeat.memory_bytes if heartbeat else None,
        storage_waiting=replica.storage_waiting,
    )


def _state(replica: ReplicaHistory, silent: bool, scheduler_answers: bool) -> str:
    job = replica.job_state.phase if replica.job_state else None
    if replica.exit_status is not None:
        return "ended" if replica.exit_status == 0 else f"failed ({replica.exit_status})"
    if job in (JobPhase.FAILED, JobPhase.REQUEUED):
        return str(job)  # Whatever its previous attempt recorded.
    if replica.ended is not None or job is JobPhase.DONE:
        return "starting" if _starts_again(replica) else "ended"
    if silent and not scheduler_answers:
        return "unknown"
    if job not in (None, JobPhase.RUNNING):
        return str(job)
    if replica.started is None:
        return "starting"
    if silent:
        return "silent"
    return str(replica.phase) if replica.ready_utc is None else "ready"


def _starts_again(replica: ReplicaHistory) -> bool:
    """Return whether its job was seen to run after the end of its last attempt."""
    job = replica.job_state
    running = job is not None and job.phase is JobPhase.RUNNING and not job.detail
    return running and replica.job_utc > replica.last_utc


def disagreements(history: RunHistory) -> list[str]:
    """Return a line for every version or dataset that is not the same on all replicas."""
    replicas = list(history.replicas.values())
    versions = [r.machine.versions for r in replicas if r.machine is not None]
    datasets = {r.dataset.sha256 for r in replicas if r.dataset is not None}
    if all(each == versions[0] for each in versions) and len(datasets) < 2:
        return []  # As nearly always, and this is asked for every status.
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for replica in replicas:
        if replica.machine is not None:
            for name, version in replica.machine.versions.items():
                found[f"the version of {name}"][version].append(replica.id)
        if replica.dataset is not None:
            found["the dataset's SHA-256"][replica.dataset.sha256[:12]].append(replica.id)
    return [
        f"{what} differs: " + "; ".join(f"{value} on {few(r)}" for value, r in values.items())
        for what, values in found.items()
        if len(values) > 1
    ]


def clock_problems(history: RunHistory) -> list[str]:
    """Return a line for every replica whose clock was found to be off."""
    checked = (replica.checked for replica in history.replicas.values())
    return [problem for each in checked if each is not None for problem in each.problems]


def rejections(history: RunHistory) -> list[str]:
    """Return a line for every candidate that could not be loaded."""
    return [f"{name} could not be loaded: {why}" for name, why in history.rejected.items()]
