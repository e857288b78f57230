"""The records of the primary: the run, its jobs, journal digests and witnesses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.run.clocks import ClockReading, Time
from aiperf_hpc.run.journal_digest import JournalDigest, Statement
from aiperf_hpc.run.records.base import ClockStarts, Event
from aiperf_hpc.trial import JobPhase
from aiperf_hpc.untrusted.bounds import MOST_HOURS, MOST_NODES, Count, Name, Utc


class RunStarted(Event):
    """A primary started to conduct the run.

    If ``clock_starts`` is ``now``, the clock starts at the time of the first such record.
    """

    run_id: str
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    hours: Annotated[Time, Field(gt=0, le=MOST_HOURS)]
    launcher: str
    host: str
    pid: int
    manifest_sha256: str = ""
    """SHA-256 of ``run.yaml``, in hexadecimal."""
    clock: ClockReading | None = None
    """The offset of the primary's clock from the file server's."""
    clock_starts: ClockStarts = "now"
    """The event that starts the clock; ``now`` in records of earlier versions."""


class ClockStarted(Event):
    """The run's clock started at ``start_utc``, which is before this record.

    Written once in a run, and only if its ``clock_starts`` is not ``now``.
    """

    start_utc: Utc
    replica: Name
    """The replica whose node was granted first, or that was ready last."""
    submitted_utc: Utc
    """The time at which the run's nodes were requested, by the scheduler's clock if it has one."""
    granted_utc: Utc
    """The time at which the first node was granted, by the scheduler's clock or else the node's."""
    problem: str = ""
    """The contradiction between the scheduler's clock and the nodes'; empty if there is none."""

    @property
    def queue_seconds(self) -> float:
        """The queue time of the first node, in seconds."""
        return max(0.0, self.granted_utc - self.submitted_utc)


class ReplicaLaunched(Event):
    """The launcher accepted a replica; ``job`` is the launcher's own name for it."""

    replica: Name
    job: str


class NodesRequested(Event):
    """The requested number of nodes changed, at first from the number that the run started with.

    An additional replica counts only if this was recorded before it started.
    """

    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    reason: str
    """The origin of the request, e.g. ``--nodes 2-4``."""


class NodesRefused(Event):
    """A request for nodes could not be satisfied; the run keeps its ``current_nodes``."""

    nodes: Annotated[int, Field(ge=1)]
    """The requested number of nodes."""
    current_nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    reason: str


class ReplicaReleased(Event):
    """The replica was requested to shut down cleanly or not to start, due to fewer nodes."""

    replica: Name


class ReplicaExited(Event):
    """A replica's process exited; ``status`` is its exit status, negative for a signal."""

    replica: Name
    status: int


class JobState(Event):
    """The state of a replica's job changed, as reported by its launcher."""

    replica: Name
    phase: JobPhase
    node: str | None = None
    detail: str = ""
    """The launcher's message, e.g. the scheduler's reason for a pending job."""
    submitted_utc: Utc | None = None
    """The submission time by the scheduler's clock."""
    started_utc: Utc | None = None
    """The start time by the scheduler's clock; None while the job is pending."""


class NodeChecked(Event):
    """The result of the primary's check of the node of a replica that started."""

    replica: Name
    host: str
    clock_ahead_seconds: Time | None
    """Seconds by which its clock is ahead of the primary's; negative if behind, None if unknown."""
    problems: tuple[str, ...] = ()


class SchedulerState(Event):
    """The scheduler began or ceased to answer; while it does not, the state of jobs is unknown."""

    reachable: bool
    detail: str = ""


class PrimaryFailed(Event):
    """The primary failed and ended the replicas; the run can be resumed."""

    reason: str


class TakenOver(Event):
    """A command of ``aiperf`` continues the journal of a primary that died."""

    command: str
    host: str
    pid: int


class PrimaryHeartbeat(Event):
    """The primary is alive."""


class DigestsRecorded(Event):
    """The primary recorded the digests of all journals, as far as it has read them."""

    digest: JournalDigest
    """The digest of ``journal_digests.jsonl`` itself, whose last record has these digests."""
    journals: Count | None = None
    """Number of journals that they cover, so that a witness signs it too; None in records of
    earlier versions."""


class Witnessed(Event):
    """An external witness signed a digest of the primary's journal."""

    url: str
    """The witness's URL."""
    key: str
    """The fingerprint of the signing key, as found by the primary."""
    statement: Statement


class TimeStamped(Event):
    """A timestamp authority stamped a digest of the primary's journal (RFC 3161)."""

    url: str
    """The authority's URL."""
    digest: JournalDigest
    response: Annotated[str, Field(max_length=100_000)]
    """The authority's answer, a TimeStampResp in DER, in base64."""


class WitnessState(Event):
    """A witness or an authority began or ceased to answer; the run does not wait for it."""

    url: str
    reachable: bool
    detail: str = ""


class StopRequested(Event):
    """The replicas were requested to shut down cleanly."""

    reason: str


class RunEnded(Event):
    """The clock of the run stops at this record's time."""

    reason: str


class JournalDigestsRecord(Event):
    """The length and the SHA-256 of each journal, as far as it had been read.

    Journals are identified by numbers, in the order in which they were first named. The primary's
    own is not among them, since it holds the record of this digest.
    """

    type: Literal["journal_digests"] = "journal_digests"
    new_primary: bool
    """Whether a new primary begins here, so that numbers and bytes count from zero."""
    new_journals: tuple[str, ...]
    """The paths of journals that are new in this record, below the run directory."""
    appended_bytes: tuple[int, ...]
    """Bytes appended to each journal since the previous record."""
    digest_prefixes: str
    """The first ``PREFIX_DIGITS`` digits of the digest of each journal that has grown,
    concatenated: they identify a journal that was changed."""
    sha256: str
    """SHA-256 over the digests of the journals that have grown (``run/journal_digest.py``)."""
