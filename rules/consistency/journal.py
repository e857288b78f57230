"""A journal read for verification: the data that rules need from its millions of records."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.liveness import PAUSE_SECONDS, STOPPED_SECONDS
from aiperf_hpc.run.records import Record
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import DevicePeak
from aiperf_hpc.untrusted.files import open_regular

CLOCK_TOLERANCE = 1.0
"""Maximum difference in seconds of two clocks, or of a total and the sum of its parts."""
BEGINNINGS = records.TrialStarted | records.TrainingStarted
"""Records of a trial before it executes samples."""
STARTS: frozenset[type[records.Event]] = frozenset(
    {records.RunStarted, records.TakenOver, records.ReplicaStarted, records.SearchStarted}
)
"""First records of processes."""
ENDS: frozenset[type[records.Event]] = frozenset(
    {records.RunEnded, records.ReplicaEnded, records.SearchEnded}
)
"""Last records of processes, directly after the reading of the clocks if there is one."""
AFTER_END = (records.Witnessed, records.TimeStamped, records.WitnessState)
"""Records that may follow the end of a run, which is submitted to witnesses too."""
BOUNDS = records.RunStarted | records.RunEnded
"""Records that may not follow the end of a run."""
RARE_KINDS: frozenset[type[records.Event]] = frozenset(
    {
        records.RunStarted, records.ClockStarted, records.TakenOver, records.ReplicaLaunched,
        records.JobState, records.ReplicaReady, records.ClockSeen,
        records.NodesRequested, records.NodesRefused, records.ReplicaReleased,
        records.NodeChecked, records.SchedulerState, records.RunEnded,
        records.ReplicaStarted, records.SystemDescribed, records.PeakMeasured,
        records.DatasetLoaded, records.TrialEnded, records.CheckpointDeleted, records.TimeSpent,
        records.BaselineMeasured, records.ReplicaEnded, records.SearchStarted,
        records.SearchFailed, records.FileProblem,
    }
)  # fmt: skip
"""Infrequent kinds of records, which are stored unchanged."""


class Executed(NamedTuple):
    """A progress record."""

    utc: float
    trial: str
    epoch: int
    train_samples: int
    validation_samples: int
    seconds: float
    """Seconds since the trial's start or previous progress record, by the monotonic clock."""


class ClockReading(NamedTuple):
    """A record of its writer's clocks."""

    seq: int
    utc: float
    """UTC time of the record in seconds; ``mono`` is its monotonic time."""
    mono: float
    clocks: Clocks


@dataclass(slots=True)
class Process:
    """The clock records of one process that wrote a journal."""

    start: Record
    records: int = 0
    ended_utc: float | None = None
    """Time of its clean shutdown, UTC seconds."""
    readings: list[ClockReading] = field(default_factory=list)
    longest_unread: float = 0.0
    """Longest working time without a reading, in seconds."""
    _last_mono: float | None = None
    _unread: float = 0.0

    def add(self, record: Record) -> None:
        """Add the next record of its journal."""
        event, before = record.event, self._last_mono
        self.records += 1
        self._last_mono = record.mono
        if before is not None:
            self._unread += min(record.mono - before, STOPPED_SECONDS)
            self.longest_unread = max(self.longest_unread, self._unread)
        if isinstance(event, records.ClocksRead):
            self.readings.append(ClockReading(record.seq, record.utc, record.mono, event.clocks))
            self._unread = 0.0
        elif type(event) in ENDS:
            self.ended_utc = record.utc


class Step(NamedTuple):
    """A step of UTC relative to the monotonic clock between two records of a process."""

    seq: int
    """Number of the second record."""
    seconds: float
    """Seconds by which UTC advanced more: it was set, or the machine was suspended."""
    text: str
    forward: bool
    """Whether the monotonic clock, which cannot be set, did not run backward."""


class RecordedDigest(NamedTuple):
    """A recorded digest of ``journal_digests.jsonl``."""

    utc: float
    """Time of the record, UTC seconds."""
    offset: int
    """Bytes of the journal up to and including that record."""
    digest: JournalDigest
    journals: int | None
    """Number of journals in its last record; None if not recorded."""


class WitnessAnswer(NamedTuple):
    """An external answer to a digest of the primary's journal."""

    utc: float
    """Time of the record of the answer, UTC seconds."""
    offset: int
    """Bytes of the journal up to and including that record."""
    digest: JournalDigest
    answer: records.Witnessed | records.TimeStamped


@dataclass(slots=True)
class Sampler:
    """The energy of a node as recorded by one process."""

    host: str
    every: float
    """Interval of samples in seconds."""
    parts: tuple[str, ...]
    """Part of the node that each meter measures."""
    begin: float
    """Start of the sampling, UTC seconds."""
    samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    """Time of each sample, UTC seconds, and the millijoules of each meter."""
    replica: str = ""
    """Replica whose journal contains it."""

    @property
    def end(self) -> float:
        """Time of the last sample, UTC seconds."""
        return self.samples[-1][0] if self.samples else self.begin


class RareRecord(NamedTuple):
    """A record of an infrequent kind."""

    seq: int
    utc: float
    event: records.Event


E = TypeVar("E", bound=records.Event)


class Journal:
    """The content of one journal that rules use."""

    def __init__(self) -> None:
        self.times = array("d")
        """Time of every record, UTC seconds."""
        self.first: RareRecord | None = None
        """First record, of any kind."""
        self.formats: dict[int, int] = {}
        """Number of the first record of each version of the format, except those of a command in
        the place of a primary: it may be of a later version."""
        self.kinds: dict[type[records.Event], int] = {}
        """Number of the first record of each kind."""
        self.late_records: list[str] = []
        """Descriptions of records after the record of its writer's end."""
        self.executed: list[Executed] = []
        self.evaluated: dict[str, int] = {}
        """Last evaluated epoch of each trial."""
        self.heartbeats = array("d")
        """Times of the primaries' heartbeats, UTC seconds."""
        self.longest_without_heartbeat = 0.0
        """Longest working time of a trainer without a heartbeat, in seconds."""
        self._without_heartbeat = 0.0
        self.samplers: list[Sampler] = []
        """Successive processes that sampled their nodes."""
        self.processes: list[Process] = []
        """Successive writers: the primaries, or the process of a replica."""
        self.steps: list[Step] = []
        """Steps of UTC relative to the monotonic clock."""
        self.digests: list[RecordedDigest] = []
        """Recorded digests of ``journal_digests.jsonl``."""
        self.seen: list[tuple[float, JournalDigest]] = []
        """Digests of the primary's journal that the replica recorded, with their UTC seconds."""
        self.answers: list[WitnessAnswer] = []
        """Answers of external witnesses to the primary."""
        self.end_offset = 0
        """Bytes up to and including the record of the run's end; 0 if there is none."""
        self.offset = 0
        """Bytes up to and including the next record to add."""
        self.ends_without_digests = False
        """Whether a record ends the run without final digests of the journals."""
        self.reopened: list[str] = []
        """Descriptions of records that start or end the run after its end."""
        self.ended = False
        """Whether the last record of its writer is that of its end."""
        self._kept: dict[type[records.Event], list[RareRecord]] = {}
        self._since: Record | None = None
        self._before: Record | None = None
        self._over = False
        self._under_way = ("", 0.0)
        """Trial that last started or executed samples, with the monotonic time."""

    @property
    def attempt_began_utc(self) -> float | None:
        """Start of the attempt, UTC seconds; None unless the first record is its start."""
        first = self.first
        return first.utc if first and isinstance(first.event, records.ReplicaStarted) else None

    @property
    def started(self) -> records.ReplicaStarted | None:
        """Start record of the attempt; None unless it is the first record."""
        first = self.first
        return first.event if first and isinstance(first.event, records.ReplicaStarted) else None

    @property
    def peaks(self) -> dict[int, DevicePeak]:
        """Measured peak rates of the devices, by rank."""
        return {event.rank: event.peak for _, event in self.records_of(records.PeakMeasured)}

    @property
    def described(self) -> dict[int | None, RankDescription]:
        """Descriptions of the ranks, by rank."""
        return {
            event.rank: event.description for _, event in self.records_of(records.SystemDescribed)
        }

    def records_of(self, kind: type[E]) -> list[tuple[float, E]]:
        """Return the records of a kind in ``RARE_KINDS``, with their UTC seconds."""
        found = self._kept.get(kind, ())
        return [(each.utc, each.event) for each in found if isinstance(each.event, kind)]

    def add(self, record: Record) -> None:
        """Add the next record."""
        event, kind = record.event, type(record.event)
        if self.first is None:
            self.first = RareRecord(record.seq, record.utc, event)
        self.times.append(record.utc)
        self.kinds.setdefault(kind, record.seq)
        if kind in RARE_KINDS:
            self._kept.setdefault(kind, []).append(RareRecord(record.seq, record.utc, event))
        self._track_end(record)
        self._track_heartbeats(record)
        if isinstance(event, records.Progress):
            self.executed.append(
                Executed(
                    record.utc,
                    sys.intern(event.trial),
                    event.epoch,
                    event.train_samples,
                    event.validation_samples,
                    record.mono - self._under_way[1] if event.trial == self._under_way[0] else 0.0,
                )
            )
            self._under_way = event.trial, record.mono
        elif isinstance(event, records.Evaluated):
            self.evaluated[sys.intern(event.trial)] = event.epoch
        elif isinstance(event, BEGINNINGS):
            self._under_way = event.trial, record.mono
        elif isinstance(event, records.TelemetryStarted):
            own = event.equipment
            parts = tuple(str(meter.part) for meter in own.meters)
            self.samplers.append(Sampler(own.host, own.seconds, parts, record.utc))
        elif isinstance(event, records.TelemetrySampled):
            millijoules = tuple(round(1000.0 * joules) for joules in event.sample.joules)
            # A mismatch is reported by the rule ``journals``.
            if self.samplers and len(millijoules) == len(self.samplers[-1].parts):
                self.samplers[-1].samples.append((record.utc, millijoules))
        elif isinstance(event, records.PrimaryDigestSeen):
            self.seen.append((record.utc, event.digest))
        elif isinstance(event, records.DigestsRecorded):
            self.digests.append(
                RecordedDigest(record.utc, self.offset, event.digest, event.journals)
            )
        elif isinstance(event, records.Witnessed):
            self.answers.append(WitnessAnswer(record.utc, self.offset, event.statement.head, event))
        elif isinstance(event, records.TimeStamped):
            self.answers.append(WitnessAnswer(record.utc, self.offset, event.digest, event))
        elif isinstance(event, BOUNDS):
            if isinstance(event, records.RunEnded):
                final = self.digests[-1].utc if self.digests else None
                self.ends_without_digests |= final != record.utc
            if self._over:
                self.reopened.append(f"record {record.seq}: {event.type} after the run had ended")
            self._over |= isinstance(event, records.RunEnded)
            self.end_offset = self.offset if isinstance(event, records.RunEnded) else 0
        self._compare_clocks(record)
        if self.processes:
            self.processes[-1].add(record)
        if record.v not in self.formats:
            writer = self.processes[-1].start.event if self.processes else None
            if not isinstance(writer, records.TakenOver):
                self.formats[record.v] = record.seq

    def _track_end(self, record: Record) -> None:
        kind = type(record.event)
        if kind in ENDS:
            self.ended = True
        elif kind in STARTS:
            self.ended = False  # Another process. Other rules check whether it may start.
        elif self.ended and kind not in AFTER_END:
            self.late_records.append(
                f"record {record.seq}: {name_of(kind)} after its writer had ended"
            )

    def _track_heartbeats(self, record: Record) -> None:
        kind, before = type(record.event), self._before
        if kind is records.PrimaryHeartbeat:
            self.heartbeats.append(record.utc)
        if kind is records.Heartbeat or before is None:
            self._without_heartbeat = 0.0
            return
        # A pause without any record does not count as work.
        self._without_heartbeat += min(max(record.utc - before.utc, 0.0), PAUSE_SECONDS)
        self.longest_without_heartbeat = max(
            self.longest_without_heartbeat, self._without_heartbeat
        )

    def _compare_clocks(self, record: Record) -> None:
        first, before = self._since, self._before
        self._before = record
        starts = type(record.event) in STARTS
        if starts:
            self.processes.append(Process(record))
        if first is None or before is None or starts:
            self._since = record  # Another process, perhaps on another host.
            return
        drift = (record.utc - first.utc) - (record.mono - first.mono)
        if record.mono < before.mono or abs(drift) > CLOCK_TOLERANCE:
            text = f"record {record.seq}: {drift:.3f} s off since record {first.seq}"
            forward = record.mono >= before.mono
            self.steps.append(Step(record.seq, drift, text, forward))
            self._since = record  # Later records are compared with the new clock.


def name_of(kind: type[records.Event]) -> str:
    """Return the type name of a kind of records."""
    return str(kind.model_fields["type"].default)


def read_journal(path: Path, size: int) -> Journal:
    """Read the first ``size`` bytes of a journal."""
    journal = Journal()
    with open_regular(path, follow=False) as file:
        while size > 0 and (line := file.readline(size)):
            size -= len(line)
            journal.offset += len(line)
            try:
                journal.add(model_of(line))
            except ValidationError:
                continue  # Reported by the rule ``journals``.
    return journal
