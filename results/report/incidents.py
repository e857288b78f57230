"""Incidents of a run: restarts, waits for storage, and problems of its records."""

from __future__ import annotations

from collections import defaultdict

from aiperf_hpc.results.views.replica_status import StorageStatus, clock_problems, rejections
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.trial import Value


class Restart(Value):
    """A restart of the primary or a replica."""

    elapsed_seconds: float
    """Seconds from the run's start."""
    component: str
    """``primary`` or name of a replica."""
    description: str
    """Description of the restart, with the trials that it resumed."""


class StorageWait(Value):
    """A wait for full or unavailable storage."""

    started_seconds: float
    """Seconds from the run's start."""
    seconds: float
    reason: str
    """Failed operation and the error of the storage."""


class StorageReport(Value):
    """Waits of the primary or a replica for storage."""

    component: str
    """``primary`` or name of a replica."""
    seconds: float
    """Total waiting time in seconds."""
    waits: tuple[StorageWait, ...]
    """Waits of the replica in chronological order; none in runs of versions that recorded only
    their sum."""


class Problems(Value):
    """Problems of the run's records."""

    journals: tuple[str, ...]
    """Malformed or out-of-order records. Each makes the run invalid."""
    torn: tuple[str, ...]
    """Journals that end in an unfinished line."""
    set_aside: tuple[str, ...]
    """Files of torn lines that a restarted writer moved out of its journal."""
    search: tuple[str, ...]
    """Candidates that could not be generated or loaded."""
    clock: tuple[str, ...]
    """Timestamps inconsistent with the run's."""
    files: tuple[str, ...] = ()
    """Damaged or missing files, and their handling."""
    compiler: tuple[str, ...] = ()
    """Networks that the ahead-of-time compiler process did not compile."""
    idle_accelerators: tuple[str, ...] = ()
    """Accelerators that no rank used."""


def restarts_of(view: RunView) -> tuple[Restart, ...]:
    """Return every restart of the primary or a replica, in chronological order."""
    history = view.history
    start = history.origin_utc or 0.0
    found = [
        Restart(
            elapsed_seconds=utc - start,
            component="primary",
            description=f"resumed on {event.host}",
        )
        for utc, event in history.run_starts[1:]
    ]
    resumed: defaultdict[tuple[str, Incarnation], list[str]] = defaultdict(list)
    for trial in history.trials.values():
        if trial.started.resumes is not None:
            text = f"resumed {trial.started.resumes} at epoch {trial.started.first_epoch}"
            resumed[trial.replica, trial.incarnation].append(text)
    for replica in history.replicas.values():
        for life, utc in sorted(replica.starts.items())[1:]:
            text = "; ".join([f"attempt {life} started", *resumed[replica.id, life]])
            found.append(
                Restart(elapsed_seconds=utc - start, component=replica.id, description=text)
            )
    return tuple(sorted(found, key=lambda restart: restart.elapsed_seconds))


def storage_report(view: RunView, status: StorageStatus) -> StorageReport:
    """Return the waits of one writer for storage."""
    start = view.history.origin_utc or 0.0
    waits = [wait for name, wait in view.history.storage_waits if name == status.component]
    return StorageReport(
        component=status.component,
        seconds=status.seconds,
        waits=tuple(
            StorageWait(started_seconds=w.started_utc - start, seconds=w.seconds, reason=w.reason)
            for w in sorted(waits, key=lambda wait: wait.started_utc)
        ),
    )


def problems_of(view: RunView, end: float, elapsed: float) -> Problems:
    """Return the problems of the records of a run that ended at, or was read until, ``end``."""
    history, root = view.history, view.paths.root
    set_aside = (*root.glob("primary/*.torn-*"), *root.glob("replicas/*/*/*.torn-*"))
    return Problems(
        journals=tuple(
            f"{p.path.relative_to(root)}, line {p.line}: {p.what}" for p in history.problems
        ),
        torn=tuple(str(path.relative_to(root)) for path in history.torn),
        set_aside=tuple(str(path.relative_to(root)) for path in sorted(set_aside)),
        search=(
            *history.search_failures,
            *rejections(history),
        ),
        clock=tuple(_clock_problems(view, end, elapsed)),
        files=(*history.file_problems, *view.run_graphs.problems),
        compiler=tuple(history.compiler_failures),
        idle_accelerators=tuple(filter(None, [view.machine.idle()])),
    )


def _clock_problems(view: RunView, end: float, elapsed: float) -> list[str]:
    history = view.history
    found = clock_problems(history)
    late = history.executions.count_after(end)
    if late:
        found.append(f"{late} records of executed samples are later than the end: no credit")
    for replica in history.replicas.values() if history.start_utc is not None else ():
        extra = sum(replica.seconds.values()) - elapsed
        if extra > 1.0:
            found.append(f"{replica.id} recorded {extra:.1f} s more than the run took")
    return found
