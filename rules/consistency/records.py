"""Rules on records: well-formed, by the right writers, with one configuration and dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from aiperf_hpc.datasets import unlike_pinned
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.consistency.journal import Journal, name_of
from aiperf_hpc.rules.rule import Checked, Each, Findings, Note
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import MOST_LINE_BYTES, is_torn
from aiperf_hpc.run.records import ReplicaStarted
from aiperf_hpc.untrusted.files import open_regular

PRIMARY, TRAINER, SEARCH, RANK = "the primary", "a trainer", "a search worker", "a rank"
"""Processes that write journals. A rank other than a replica's first samples its node or reports
lost ranks, including the first."""
WRITERS: Mapping[str, tuple[str, ...]] = {
    "primary": (PRIMARY,),
    "replica": (TRAINER,),
    "trials": (TRAINER,),
}
"""Writers of the records of each module of ``run/records``, with the exceptions below."""
OTHERS: Mapping[type[records.Event], tuple[str, ...]] = {
    records.ClocksRead: (PRIMARY, TRAINER),
    records.FileProblem: (PRIMARY, TRAINER),
    records.StorageWaited: (PRIMARY, TRAINER),
    records.SystemDescribed: (PRIMARY, TRAINER),
    records.RanksLost: (TRAINER, RANK),
    records.TelemetryStarted: (TRAINER, RANK),
    records.TelemetrySampled: (TRAINER, RANK),
    records.SearchStarted: (SEARCH,),
    records.Proposed: (SEARCH,),
    records.SearchFailed: (SEARCH,),
    records.SearchEnded: (SEARCH,),
    # Records of digests, which are no journals.
    records.TrialSummary: (),
    records.ProposalSummary: (),
    records.JournalDigestsRecord: (),
}


class JournalKind(NamedTuple):
    """A kind of journals."""

    writer: str
    begins_with: str
    """Description of the first record."""
    first: type[records.Event]


PRIMARY_JOURNAL: Final = JournalKind(PRIMARY, "the start of a run", records.RunStarted)
JOURNALS: Mapping[str, JournalKind] = {
    r"journal\.jsonl": JournalKind(TRAINER, "the start of a replica", records.ReplicaStarted),
    r"search-\d+\.jsonl": JournalKind(
        SEARCH, "the start of a search worker", records.SearchStarted
    ),
    r"telemetry-\d+\.jsonl": JournalKind(RANK, "the start of a sampler", records.TelemetryStarted),
    r"rank-\d+\.jsonl": JournalKind(RANK, "the lost ranks", records.RanksLost),
}
"""Journals in the folder of an attempt, by file name."""


def writers(run: Evidence) -> Findings:
    """Each journal has one writer, begins with its start and ends with its end.

    Answers of witnesses follow the end of a run, and the last one may be an unfinished write.
    """
    yield Checked(len(run.journals))
    torn = set(run.history.torn)
    if run.history.witnesses:
        torn.discard(run.paths.primary_journal)
    for path, journal in run.journals.items():
        where = path.relative_to(run.paths.root)
        yield from (f"{where}: {what}" for what in _wrong(run, path, journal))
        if journal.ended and path in torn:
            yield f"{where}: bytes follow the record of its writer's end"


def _wrong(run: Evidence, path: Path, journal: Journal) -> Iterator[str]:
    kinds = (kind for name, kind in JOURNALS.items() if re.fullmatch(name, path.name))
    own = PRIMARY_JOURNAL if path == run.paths.primary_journal else next(kinds, None)
    if own is None:
        yield "no process of a run has a journal of this name"
        return
    for kind, seq in journal.kinds.items():
        if own.writer not in _writers_of(kind):
            yield f"record {seq}: {name_of(kind)} must not be written by {own.writer}"
    if journal.first is not None:
        yield from _first(path, own, journal.first.event)
    attempts = len(journal.records_of(records.ReplicaStarted))
    if attempts > 1:
        yield f"{attempts} attempts of a replica in the journal of one"
    yield from journal.late_records


def _writers_of(kind: type[records.Event]) -> tuple[str, ...]:
    return OTHERS[kind] if kind in OTHERS else WRITERS[kind.__module__.rpartition(".")[2]]


def _first(path: Path, own: JournalKind, event: records.Event) -> Iterator[str]:
    """A journal begins with the identity of its writer."""
    replica = path.parent.parent.name
    if not isinstance(event, own.first):
        yield f"it does not begin with {own.begins_with}"
    elif isinstance(event, records.ReplicaStarted) and event.replica != replica:
        yield f"it is the journal of {event.replica}, in the folder of {replica}"
    elif isinstance(event, records.SearchStarted):
        number = int(path.stem.partition("-")[2])
        if (event.replica, event.worker) != (replica, number):
            yield f"it is the journal of search worker {event.worker} of {event.replica}"


def journals(run: Evidence) -> Findings:
    """Every line is a record, with the next number, and refers only to started trials.

    After the end of the run, only an unfinished write may follow the last record of a journal, as
    left by a killed process or a power failure. A journal that was lost during the run contradicts
    nothing: the score omits its records, and later attempts refer to its trials.
    """
    yield Checked(run.record_count)
    orphans = set(run.history.orphans)
    for problem in run.history.problems:
        orphan = problem in orphans and run.follows_lost(problem.path)
        lost = problem.path in run.lost_paths or orphan
        yield Note(f"{problem}; it was lost during the run") if lost else str(problem)
    if run.history.end_utc is not None:
        for path in sorted(run.history.torn):
            with open_regular(path, follow=False) as file:
                file.seek(run.history.bytes_read[path])
                if not is_torn(file.read(MOST_LINE_BYTES)):
                    yield f"{path}: the bytes after the last record are not an unfinished record"


def config(run: Evidence) -> Findings:
    """Every primary and every replica recorded the SHA-256 of this ``run.yaml``.

    Earlier versions did not record it.
    """
    primaries = [
        (f"the primary of {utc_text(utc)}", event.manifest_sha256)
        for utc, event in run.history.run_starts
    ]
    replicas = [
        (f"{attempt},", started.manifest_sha256)
        for attempt in run.attempts
        for _, started in attempt.journal.records_of(ReplicaStarted)
    ]
    stated = [*primaries, *replicas]
    yield Checked(sum(bool(sha256) for _, sha256 in stated))
    yield from _formats(run)
    yield from _requested(run)
    yield from _engines(run)
    now = run.paths.manifest_digest()
    for who, sha256 in stated:
        if sha256 not in ("", now):
            yield f"run.yaml has SHA-256 {now[:12]}, {who} had {sha256[:12]}"
    if not run.manifest.earlier:
        required = stated
    elif any(sha256 for _, sha256 in stated):
        required = stated if any(sha256 for _, sha256 in replicas) else primaries
    else:
        yield Note("no process recorded the SHA-256 of run.yaml, so it may have changed")
        return
    for who, sha256 in required:
        if not sha256:
            yield f"{who} did not record the SHA-256 of run.yaml"


def _formats(run: Evidence) -> Iterator[str]:
    """Records have the format of ``run.yaml``: the same version of this package writes both."""
    stated = run.manifest.schema_version
    if run.manifest.earlier:
        yield Note("the format is of an earlier version, whose runs need not have all records")
    for path, journal in run.journals.items():
        for other, seq in journal.formats.items():
            if other != stated:
                where = path.relative_to(run.paths.root)
                yield Each(
                    f"{where}, record {seq}: its format is version {other}, that of run.yaml is "
                    f"version {stated}"
                )


def _requested(run: Evidence) -> Iterator[str]:
    """Each primary recorded the parameters of ``run.yaml``."""
    manifest = run.manifest
    for utc, event in run.history.run_starts:
        for name in ("run_id", "nodes", "hours", "launcher"):
            stated, asked = getattr(event, name), getattr(manifest, name)
            if stated != asked:
                yield f"run.yaml has {name} {asked}, the primary of {utc_text(utc)} had {stated}"


def _engines(run: Evidence) -> Iterator[str]:
    """Each attempt of a replica used the engine of ``run.yaml``."""
    requested = run.config.engine.name
    if run.manifest.simulated and requested != "simulated":
        yield f"run.yaml states a simulated run of engine {requested}, which computes in real time"
    for attempt in run.attempts:
        used = {started.engine for _, started in attempt.journal.records_of(ReplicaStarted)}
        for other in sorted(used - {requested}):
            yield f"run.yaml requests {requested}, {attempt}, had {other}"


def dataset(run: Evidence) -> Findings:
    """All replicas had the same dataset, with the configured name and its known content."""
    yield Checked(len(run.datasets))
    if not run.datasets and not run.samples:
        yield Note("no replica recorded its dataset, and none executed samples")
    elif len(run.datasets) != 1:
        names = [f"{d.name} {d.sha256[:12]}" for d in run.datasets]
        yield f"replicas must have one dataset, they have {names}"
    expected = run.manifest.dataset
    for dataset in run.datasets:
        if expected is not None and dataset != expected:
            yield f"run.yaml describes {expected.sha256[:12]}, replicas had {dataset.sha256[:12]}"
        if dataset.name != run.config.dataset.name:
            yield f"run.yaml requests {run.config.dataset.name}, replicas had {dataset.name}"
        if other := unlike_pinned(dataset):
            named = f"{dataset.name} {dataset.sha256[:12]}"
            yield f"{named} is recorded with another {', '.join(other)}"
