"""Events of a run, in the order in which they were observed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from pydantic import BaseModel, ConfigDict

from aiperf_hpc.formatting import duration, percent, quality
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import ReplicaHistory, Trial
from aiperf_hpc.service.answers.base import Answer, Limit
from aiperf_hpc.untrusted.bounds import Count

KEPT = 20_000
"""Maximum number of retained events per run; the oldest are dropped."""


class EventKind(StrEnum):
    """Subject of an event."""

    RUN = "run"
    REPLICA = "replica"
    TRIAL = "trial"
    BEST = "best"
    STORAGE = "storage"
    PROBLEM = "problem"


class RunEvent(Answer):
    """An event of a run."""

    number: int
    """Number of the event, which increases in the order of observation."""
    utc: float | None
    """Time of the event in UTC seconds; null if the records do not state it."""
    elapsed_seconds: float | None
    """Seconds from the run's start; null if the records do not state it."""
    kind: EventKind
    """Subject of the event."""
    component: str
    """Name of the replica or trial, or `primary`."""
    text: str
    """Description of the event."""


class Events(Answer):
    """A part of the events, in the order of their numbers."""

    first: int
    """Number of the oldest retained event."""
    last: int
    """Number of the latest event; 0 before the first."""
    events: tuple[RunEvent, ...]
    """The requested events."""


@dataclass(frozen=True, slots=True)
class _Happening:
    """An event without its number, to detect duplicates."""

    utc: float | None
    kind: EventKind
    component: str
    text: str


class EventLog:
    """Events of a run, numbered in the order of observation. Callers must hold the history's
    lock."""

    def __init__(self) -> None:
        self._seen: set[_Happening] = set()
        self._kept: deque[RunEvent] = deque(maxlen=KEPT)
        self._records = (-1, -1)
        self.last = 0

    def update(self, view: RunView) -> None:
        """Append the events observed since the last call, in chronological order."""
        records = view.history.rebuilt, view.history.record_count
        if records == self._records:
            return
        self._records = records
        new = [each for each in dict.fromkeys(_happenings(view)) if each not in self._seen]
        self._seen.update(new)
        start = view.history.start_utc
        for each in sorted(new, key=lambda e: (e.utc is None, e.utc or 0.0)):
            self.last += 1
            known = each.utc is not None and start is not None
            self._kept.append(
                RunEvent(
                    **RunEvent.fields_from(each),
                    number=self.last,
                    elapsed_seconds=each.utc - start if known else None,  # type: ignore[operator]
                )
            )

    def after(self, number: int) -> Iterator[RunEvent]:
        """Yield the retained events with a greater number."""
        return islice(self._kept, max(0, number + 1 - self.first), None)

    @property
    def first(self) -> int:
        return self.last - len(self._kept) + 1


class EventsQuery(BaseModel):
    """Parameters of a query for events."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    after: Count | None = None
    """Number of the event after which to start. Default: return the latest events."""
    kind: EventKind | None = None
    """Only events of this subject."""
    component: str | None = None
    """Only events of this replica or trial."""
    limit: Limit = 100
    """Maximum number of returned events."""


@dataclass(frozen=True, slots=True)
class EventsQuestion:
    """Query for events after a number, or for the latest events."""

    log: EventLog
    query: EventsQuery

    def __call__(self, view: RunView) -> Events:
        self.log.update(view)
        query = self.query
        found = [
            event
            for event in self.log.after(query.after or 0)
            if query.kind in (None, event.kind) and query.component in (None, event.component)
        ]
        some = found[-query.limit :] if query.after is None else found[: query.limit]
        return Events(first=self.log.first, last=self.log.last, events=tuple(some))


def _happenings(view: RunView) -> Iterator[_Happening]:
    yield from _of_run(view)
    for replica in view.history.replicas.values():
        yield from _of_replica(replica)
    for trial in view.history.trials.values():
        yield from _of_trial(trial)
    for name, wait in view.history.storage_waits:
        text = f"waited {duration(wait.seconds)} for storage: {wait.reason}"
        yield _Happening(wait.started_utc, EventKind.STORAGE, name, text)
    if (best := view.history.best) is not None:
        metric = best.quality_metric.name
        text = f"the best so far: {quality(best.quality, metric)} {metric}"
        yield _Happening(best.utc, EventKind.BEST, best.trial, text)
    for problem in (*map(str, view.history.problems), *view.history.file_problems):
        yield _Happening(None, EventKind.PROBLEM, "primary", problem)


def _of_run(view: RunView) -> Iterator[_Happening]:
    history = view.history
    for number, (utc, start) in enumerate(history.run_starts):
        what = "the run resumed" if number else "the run started"
        text = f"{what}: process {start.pid} on {start.host}"
        yield _Happening(utc, EventKind.RUN, "primary", text)
    for utc, request in history.stop_requests:
        text = f"a stop was requested: {request.reason}"
        yield _Happening(utc, EventKind.RUN, "primary", text)
    if history.primary_failure is not None:
        text = f"the primary failed: {history.primary_failure}"
        yield _Happening(None, EventKind.RUN, "primary", text)
    if history.end_utc is not None:
        reason = getattr(history.run_ended and history.run_ended.event, "reason", "")
        yield _Happening(history.end_utc, EventKind.RUN, "primary", f"the run ended: {reason}")


def _of_replica(replica: ReplicaHistory) -> Iterator[_Happening]:
    kind, name = EventKind.REPLICA, replica.id
    for life, utc in replica.starts.items():
        where = f" on {replica.machine.host}" if replica.machine else ""
        yield _Happening(utc, kind, name, f"started{where}, attempt {life}")
    for utc, detail in replica.requeued:
        yield _Happening(utc, kind, name, f"died and was requeued{_because(detail)}")
    for utc, staged in replica.loads:
        yield _Happening(utc, kind, name, f"the dataset was loaded, staged in {duration(staged)}")
    if replica.ended is not None:
        yield _Happening(replica.ended_utc, kind, name, f"ended{_because(replica.ended)}")
    if replica.exit_status:
        text = f"exited with status {replica.exit_status}"
        yield _Happening(replica.exited_utc, kind, name, text)


def _of_trial(trial: Trial) -> Iterator[_Happening]:
    started, kind, name = trial.started, EventKind.TRIAL, trial.id
    grown = f", grown from {started.parent}" if started.parent else ""
    text = f"started, round {started.round} of {trial.replica}{grown}"
    yield _Happening(trial.started_utc, kind, name, text)
    if trial.ended_utc is not None:
        text = f"{trial.state}{_result(trial)}{_because(trial.reason)}"
        yield _Happening(trial.ended_utc, kind, name, text)


def _result(trial: Trial) -> str:
    """Return the best error of a trial, or its quality if its metric has no error."""
    if trial.best is None:
        return ""
    if trial.best.error is not None:
        return f" with {percent(trial.best.error)} error"
    metric = trial.best.quality_metric
    return f" with {quality(trial.best.quality, metric.name)} {metric.label}"


def _because(why: str) -> str:
    return f": {why}" if why else ""
