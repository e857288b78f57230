"""State of each replica, differences between replicas, and time spent waiting for storage."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from aiperf_hpc.formatting import few
from aiperf_hpc.grouping import grouped
from aiperf_hpc.run.history import PRIMARY, ReplicaHistory, RunHistory
from aiperf_hpc.trial import JobPhase, Value


class ReplicaStatus(Value):
    """Current state of one replica."""

    id: str
    """Name of the replica."""
    state: str
    """State of the replica: of its job (pending, requeued, lost, done, failed), starting, ready (it
    waits for the run's clock), the phase of its trainer, silent, ended, failed with its status, or
    unknown if both the replica and its scheduler are silent."""
    host: str | None
    """Name of the host."""
    node: str | None
    """Node name of the scheduler; the host's name if there is none."""
    job: str | None
    """Identifier of the launcher's job."""
    detail: str
    """State of the job as reported by the launcher."""
    trials: int
    """Number of the replica's trials."""
    queue_length: int
    """Number of candidates in the queue."""
    last_record_seconds: float | None
    """Seconds since its last record; None before the first, and once the run has ended."""
    cpu_percent: float | None
    """Processor time used, in percent of one core."""
    memory_bytes: int | None
    """Memory in use, in bytes."""
    storage_waiting: str = ""
    """Current wait for full or unavailable storage, as text; empty if there is none."""


class StorageStatus(Value):
    """Waits of the primary or a replica for full or unavailable storage."""

    component: str
    """``primary`` or name of a replica."""
    seconds: float
    """Total waiting time in seconds."""
    count: int
    """Number of waits."""
    last_started_seconds: float | None
    """Seconds from the run's start to the last completed wait; None during the first wait."""
    last_reason: str
    """Failed operation and the error of the storage."""
    waiting: bool
    """Whether the process is waiting now, if it was able to report this."""


def replica_statuses(
    history: RunHistory, now: float, silent_after: float
) -> tuple[ReplicaStatus, ...]:
    """Return all replicas in natural order (r2 before r10).

    Args:
        history: the run's records.
        now: current time in UTC seconds.
        silent_after: seconds without a record after which a replica is silent.
    """
    return tuple(_status(history, each, now, silent_after) for each in _ordered(history))


def storage_statuses(history: RunHistory) -> Iterator[StorageStatus]:
    """Yield the waits of the primary and of each replica that waited for storage."""
    waits = grouped(history.storage_waits)
    waited = {PRIMARY: (sum(wait.seconds for wait in waits[PRIMARY]), "")}
    for replica in _ordered(history):
        waited[replica.id] = replica.storage_wait_seconds, replica.storage_waiting
    start = history.origin_utc or 0.0
    for component, (seconds, waiting) in waited.items():
        last = waits[component][-1] if waits[component] else None
        if seconds > 0.0 or waiting or (component == PRIMARY and last is not None):
            yield StorageStatus(
                component=component,
                seconds=seconds,
                count=len(waits[component]) + bool(waiting),
                last_started_seconds=None if last is None else last.started_utc - start,
                last_reason=waiting or (last.reason if last is not None else ""),
                waiting=bool(waiting),
            )


def _ordered(history: RunHistory) -> list[ReplicaHistory]:
    """Return the replicas in the natural order of their names (r2 before r10)."""

    def key(replica: ReplicaHistory) -> list[tuple[str, int]]:
        return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", replica.id)]

    return sorted(history.replicas.values(), key=key)


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
        queue_length=history.stock(replica.id),
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
        return str(job)  # Regardless of the records of its previous attempt.
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
    """Return whether its job was observed running after the end of its last attempt."""
    job = replica.job_state
    running = job is not None and job.phase is JobPhase.RUNNING and not job.detail
    return running and replica.job_utc > replica.last_utc


def disagreements(history: RunHistory) -> list[str]:
    """Return a line for every version or dataset that differs between replicas."""
    replicas = list(history.replicas.values())
    versions = [r.machine.versions for r in replicas if r.machine is not None]
    datasets = {r.dataset.sha256 for r in replicas if r.dataset is not None}
    if all(each == versions[0] for each in versions) and len(datasets) < 2:
        return []  # Fast path for the usual case, because every status needs this.
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
    """Return a line for every replica with a detected clock offset."""
    checked = (replica.checked for replica in history.replicas.values())
    return [problem for each in checked if each is not None for problem in each.problems]


def record_problems(history: RunHistory) -> Iterator[str]:
    """Yield the problems of replicas, files and candidates, one line each."""
    yield from disagreements(history)
    yield from clock_problems(history)
    yield from history.file_problems
    yield from rejections(history)


def rejections(history: RunHistory) -> list[str]:
    """Return a line for every candidate that could not be loaded."""
    return [f"{name} could not be loaded: {why}" for name, why in history.rejected.items()]
