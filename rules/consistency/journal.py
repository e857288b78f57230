"""A journal read anew: what the rules need of its records, of which there may be millions."""

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
from aiperf_hpc.run.records import RECORD, Record
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import DevicePeak
from aiperf_hpc.untrusted.files import open_regular

CLOCK_TOLERANCE = 1.0
"""Seconds by which two clocks, or a sum of durations and its whole, may differ."""
BEGINNINGS = records.TrialStarted | records.TrainingStarted
"""What a trial records before it executes anything."""
STARTS: frozenset[type[records.Event]] = frozenset(
    {records.RunStarted, records.TakenOver, records.ReplicaStarted, records.SearchStarted}
)
"""What a process writes first."""
ENDS: frozenset[type[records.Event]] = frozenset(
    {records.RunEnded, records.ReplicaEnded, records.SearchEnded}
)
"""What a process writes last; one that recorded its clocks, right behind them."""
AFTER_END = (records.Witnessed, records.TimeStamped, records.WitnessState)
"""What comes behind the end of a run: witnesses are shown that, too."""
BOUNDS = records.RunStarted | records.RunEnded
"""What may not follow the end of a run."""
RARE_KINDS: frozenset[type[records.Event]] = frozenset(
    {
        records.RunStarted, records.ClockStarted, records.TakenOver, records.ReplicaLaunched,
        records.JobState, records.ReplicaReady, records.ClockSeen,
        records.NodesAsked, records.NodesRefused, records.ReplicaReleased,
        records.NodeChecked, records.SchedulerState, records.RunEnded,
        records.ReplicaStarted, records.SystemDescribed, records.PeakMeasured,
        records.DatasetLoaded, records.TrialEnded, records.CheckpointDropped, records.TimeSpent,
        records.BaselineMeasured, records.ReplicaEnded, records.SearchStarted,
        records.SearchFailed,
    }
)  # fmt: skip
"""The kinds of records that there are few of, and that are kept as they are."""


class Executed(NamedTuple):
    """A progress record."""

    utc: float
    trial: str
    epoch: int
    train_samples: int
    validation_samples: int
    seconds: float
    """Since what its trial recorded before: its start or other samples, by the monotonic clock."""


class Reading(NamedTuple):
    """A record of its writer's clocks."""

    seq: int
    utc: float
    """Of the record, as ``mono`` is: seconds."""
    mono: float
    clocks: Clocks


@dataclass(slots=True)
class Process:
    """What one process that wrote a journal recorded of its clocks."""

    start: Record
    records: int = 0
    ended_utc: float | None = None
    """When it ended in order."""
    readings: list[Reading] = field(default_factory=list)
    longest_unread: float = 0.0
    """The longest that it was at work without a reading, seconds."""
    _last_mono: float | None = None
    _unread: float = 0.0

    def add(self, record: Record) -> None:
        """Take the next record of its journal."""
        event, before = record.event, self._last_mono
        self.records += 1
        self._last_mono = record.mono
        if before is not None:
            self._unread += min(record.mono - before, STOPPED_SECONDS)
            self.longest_unread = max(self.longest_unread, self._unread)
        if isinstance(event, records.ClocksRead):
            self.readings.append(Reading(record.seq, record.utc, record.mono, event.clocks))
            self._unread = 0.0
        elif type(event) in ENDS:
            self.ended_utc = record.utc


class Step(NamedTuple):
    """A jump of the UTC clock against the monotonic one between two records of a process."""

    seq: int
    """The number of the second record."""
    seconds: float
    """How much more UTC ran: it was set, or the machine was suspended."""
    text: str
    forward: bool
    """Whether the monotonic clock, which nobody can set, did not run backward."""


class WitnessAnswer(NamedTuple):
    """A head of the primary's journal that someone outside has seen."""

    utc: float
    """When the answer was recorded, UTC seconds."""
    offset: int
    """The bytes up to that record, that one too."""
    head: JournalDigest
    answer: records.Witnessed | records.TimeStamped


@dataclass(slots=True)
class Sampler:
    """What one process recorded of its node's energy."""

    host: str
    every: float
    """Seconds between two samples."""
    parts: tuple[str, ...]
    """Of which part of the node each meter is."""
    begin: float
    """UTC seconds."""
    samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    """When each sample was taken, UTC seconds, and the millijoules of each meter."""
    replica: str = ""
    """Whose journal it is."""

    @property
    def end(self) -> float:
        """When the last sample was taken, UTC seconds."""
        return self.samples[-1][0] if self.samples else self.begin


class RareRecord(NamedTuple):
    """A record of a kind that there are few of."""

    seq: int
    utc: float
    event: records.Event


E = TypeVar("E", bound=records.Event)


class Journal:
    """What is kept of one journal."""

    def __init__(self) -> None:
        self.times = array("d")
        """The time of every record, UTC seconds."""
        self.first: RareRecord | None = None
        """Its first record, of whatever kind."""
        self.kinds: dict[type[records.Event], int] = {}
        """The number of the first record of each kind."""
        self.late_records: list[str] = []
        """What was written after its writer had said that it ends."""
        self.executed: list[Executed] = []
        self.evaluated: dict[str, int] = {}
        """The last epoch of each trial that was evaluated."""
        self.heartbeats = array("d")
        """When a primary gave a sign of life, UTC seconds."""
        self.longest_without_heartbeat = 0.0
        """The longest that a trainer was at work without a sign of life, seconds."""
        self._without_heartbeat = 0.0
        self.samplers: list[Sampler] = []
        """The processes that told of their nodes, one after the other."""
        self.processes: list[Process] = []
        """The primaries, or the process of a replica, one after the other."""
        self.steps: list[Step] = []
        """Where the UTC clock did not run as the monotonic one did."""
        self.heads: list[tuple[float, JournalDigest]] = []
        """The heads of ``heads.jsonl`` that the primary recorded, and when, UTC seconds."""
        self.seen: list[tuple[float, JournalDigest]] = []
        """The heads of the primary's journal that its replica saw, and when, UTC seconds."""
        self.answers: list[WitnessAnswer] = []
        """What witnesses outside answered the primary."""
        self.end_offset = 0
        """The bytes up to the record of the run's end, that one too; 0 where there is none."""
        self.offset = 0
        """The bytes up to the record that is taken next, that one too."""
        self.ends_without_heads = False
        """Whether a primary that took heads ended the run without those of its end."""
        self.reopened: list[str] = []
        """What starts or ends the run although it had ended."""
        self.ended = False
        """Whether the last thing that its writer said is that it ends."""
        self._kept: dict[type[records.Event], list[RareRecord]] = {}
        self._since: Record | None = None
        self._before: Record | None = None
        self._over = False
        self._under_way = ("", 0.0)
        """The trial that last began or executed anything, and when, by the monotonic clock."""
        self._takes_heads = False

    @property
    def attempt_began_utc(self) -> float | None:
        """When a life of a replica began, UTC seconds; None unless the first record says so."""
        first = self.first
        return first.utc if first and isinstance(first.event, records.ReplicaStarted) else None

    @property
    def started(self) -> records.ReplicaStarted | None:
        """What a replica said when it came; None unless the first record is that."""
        first = self.first
        return first.event if first and isinstance(first.event, records.ReplicaStarted) else None

    @property
    def peaks(self) -> dict[int, DevicePeak]:
        """What a replica's ranks measured of their devices, by their numbers."""
        return {event.rank: event.peak for _, event in self.records_of(records.PeakMeasured)}

    @property
    def described(self) -> dict[int | None, RankDescription]:
        """What a replica's ranks told of themselves, by their numbers."""
        return {
            event.rank: event.description for _, event in self.records_of(records.SystemDescribed)
        }

    def records_of(self, kind: type[E]) -> list[tuple[float, E]]:
        """Return the records of a kind of ``RARE_KINDS`` and when each was written, UTC seconds."""
        found = self._kept.get(kind, ())
        return [(each.utc, each.event) for each in found if isinstance(each.event, kind)]

    def add(self, record: Record) -> None:
        """Take the next record."""
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
            # Where they do not fit, the rule ``journals`` reports it.
            if self.samplers and len(millijoules) == len(self.samplers[-1].parts):
                self.samplers[-1].samples.append((record.utc, millijoules))
        elif isinstance(event, records.PrimaryHeadSeen):
            self.seen.append((record.utc, event.head))
        elif isinstance(event, records.HeadsTaken):
            self.heads.append((record.utc, event.heads))
            self._takes_heads = True
        elif isinstance(event, records.Witnessed):
            self.answers.append(WitnessAnswer(record.utc, self.offset, event.statement.head, event))
        elif isinstance(event, records.TimeStamped):
            self.answers.append(WitnessAnswer(record.utc, self.offset, event.head, event))
        elif isinstance(event, records.TakenOver):
            self._takes_heads = False
        elif isinstance(event, BOUNDS):
            if self._takes_heads and isinstance(event, records.RunEnded):
                self.ends_without_heads |= self.heads[-1][0] != record.utc
            self._takes_heads = False
            if self._over:
                self.reopened.append(f"record {record.seq}: {event.type} after the run had ended")
            self._over |= isinstance(event, records.RunEnded)
            self.end_offset = self.offset if isinstance(event, records.RunEnded) else 0
        self._compare_clocks(record)
        if self.processes:
            self.processes[-1].add(record)

    def _track_end(self, record: Record) -> None:
        kind = type(record.event)
        if kind in ENDS:
            self.ended = True
        elif kind in STARTS:
            self.ended = False  # Another process; which may begin again, other rules say.
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
        # A pause in which nothing was recorded at all is no work.
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
            self._since = record  # What follows is compared with the clock as it is now.


def name_of(kind: type[records.Event]) -> str:
    """Return what records of a kind call themselves."""
    return str(kind.model_fields["type"].default)


def read_journal(path: Path, size: int) -> Journal:
    """Return what is in the first ``size`` bytes of a journal."""
    journal = Journal()
    with open_regular(path, follow=False) as file:
        while size > 0 and (line := file.readline(size)):
            size -= len(line)
            journal.offset += len(line)
            try:
                journal.add(RECORD.validate_json(line))
            except ValidationError:
                continue  # The rule ``journals`` reports it.
    return journal
