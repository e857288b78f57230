"""Who wrote what: each process its own journal, from its start to its end, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from aiperf_hpc.run import records
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.journal import Journal, Told, name_of

PRIMARY, TRAINER, SEARCH, TELEMETRY = "the primary", "a trainer", "a search worker", "a rank"
"""The processes that write journals; a rank that is no replica's first tells of its node alone."""

WRITERS: Mapping[type[records.Event], tuple[str, ...]] = {
    records.RunStarted: (PRIMARY,),
    records.ClockStarted: (PRIMARY,),
    records.ReplicaLaunched: (PRIMARY,),
    records.NodesAsked: (PRIMARY,),
    records.NodesRefused: (PRIMARY,),
    records.ReplicaReleased: (PRIMARY,),
    records.ReplicaExited: (PRIMARY,),
    records.JobState: (PRIMARY,),
    records.NodeChecked: (PRIMARY,),
    records.SchedulerState: (PRIMARY,),
    records.PrimaryFailed: (PRIMARY,),
    records.TakenOver: (PRIMARY,),
    records.PrimaryHeartbeat: (PRIMARY,),
    records.HeadsTaken: (PRIMARY,),
    records.Witnessed: (PRIMARY,),
    records.TimeStamped: (PRIMARY,),
    records.WitnessState: (PRIMARY,),
    records.StopRequested: (PRIMARY,),
    records.RunEnded: (PRIMARY,),
    records.FileProblem: (PRIMARY, TRAINER),
    records.StorageWaited: (PRIMARY, TRAINER),
    records.SystemDescribed: (PRIMARY, TRAINER),
    records.ReplicaStarted: (TRAINER,),
    records.ReplicaReady: (TRAINER,),
    records.ClockSeen: (TRAINER,),
    records.DatasetLoaded: (TRAINER,),
    records.TrialStarted: (TRAINER,),
    records.ProposalRejected: (TRAINER,),
    records.TrainingStarted: (TRAINER,),
    records.Calibrated: (TRAINER,),
    records.Progress: (TRAINER,),
    records.Evaluated: (TRAINER,),
    records.BaselineMeasured: (TRAINER,),
    records.TrialEnded: (TRAINER,),
    records.PredictionsKept: (TRAINER,),
    records.CheckpointDropped: (TRAINER,),
    records.TimeSpent: (TRAINER,),
    records.StepTimes: (TRAINER,),
    records.CompilerFailed: (TRAINER,),
    records.RanksLost: (TRAINER,),
    records.Heartbeat: (TRAINER,),
    records.PrimaryHeadSeen: (TRAINER,),
    records.ReplicaEnded: (TRAINER,),
    records.TelemetryStarted: (TRAINER, TELEMETRY),
    records.TelemetrySampled: (TRAINER, TELEMETRY),
    records.SearchStarted: (SEARCH,),
    records.Proposed: (SEARCH,),
    records.SearchFailed: (SEARCH,),
    records.SearchEnded: (SEARCH,),
    records.JournalHeads: (),
    records.TrialSummary: (),
    records.ProposalSummary: (),
}
"""Who writes records of a kind; a kind that is not here, everybody may."""

JOURNALS: Mapping[str, str] = {
    r"journal\.jsonl": TRAINER,
    r"search-\d+\.jsonl": SEARCH,
    r"telemetry-\d+\.jsonl": TELEMETRY,
}
"""Whose journal has which name, in the folder of a life of a replica."""


def writers(run: Evidence) -> Failures:
    """Each journal is one process's, which says who it is first, and ends with its end.

    The answers of witnesses come behind the end of a run: the last of them may be unfinished.
    """
    torn = set(run.history.torn)
    if run.history.witnesses:
        torn.discard(run.view.paths.primary_journal)
    for path, journal in run.journals.items():
        where = path.relative_to(run.view.paths.root)
        yield from (f"{where}: {what}" for what in _wrong(run, path, journal))
        if journal.ended and path in torn:
            yield f"{where}: bytes follow the record of its writer's end"


def _wrong(run: Evidence, path: Path, journal: Journal) -> Failures:
    writer = _writer(run, path)
    if writer is None:
        yield "no process of a run has a journal of this name"
        return
    for kind, seq in journal.kinds.items():
        if writer not in WRITERS.get(kind, (writer,)):
            yield f"record {seq}: {name_of(kind)} is not {writer}'s to write"
    if journal.first is not None:
        yield from _first(path, writer, journal.first)
    lives = len(journal.told(records.ReplicaStarted))
    if lives > 1:
        yield f"{lives} lives of a replica in the journal of one"
    yield from journal.belated


def _writer(run: Evidence, path: Path) -> str | None:
    if path == run.view.paths.primary_journal:
        return PRIMARY
    return next((who for name, who in JOURNALS.items() if re.fullmatch(name, path.name)), None)


def _first(path: Path, writer: str, first: Told) -> Failures:
    """A journal begins with who writes it."""
    folder, event = path.parent, first.event
    replica = folder.parent.name
    match writer:
        case "the primary":
            if not isinstance(event, records.RunStarted):
                yield "it does not begin with the start of a run"
        case "a trainer":
            if not isinstance(event, records.ReplicaStarted):
                yield "it does not begin with the start of a replica"
            elif event.replica != replica:
                yield f"it is the journal of {event.replica}, in the folder of {replica}"
        case "a search worker":
            number = int(path.stem.partition("-")[2])
            if not isinstance(event, records.SearchStarted):
                yield "it does not begin with the start of a search worker"
            elif (event.replica, event.worker) != (replica, number):
                yield f"it is the journal of search worker {event.worker} of {event.replica}"
        case _:
            if not isinstance(event, records.TelemetryStarted):
                yield "it does not begin with who samples what"
