"""The parts that a primary conducts a run with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.primary.control.journal_digests import JournalDigests
from aiperf_hpc.run.clocks import Clocks, FileClock, read_clock
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.liveness import LAG_SECONDS
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.search_digest import DigestWriter
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.system.description import RankDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryContext:
    """A run as its primary has it in hand: what it is, its records, its clock and storage."""

    manifest: RunManifest
    journal: JournalWriter
    """The primary's own journal."""
    history: RunHistory
    """The run's records, which the controller refreshes."""
    digest: DigestWriter
    """The digest of the records, for the search workers."""
    heads: JournalDigests | None = None
    """The digests of all journals; None where none are recorded."""
    show: Callable[[], None] = lambda: None
    """Called when there is a new digest for witnesses; it returns at once."""
    clock: Clock = SYSTEM
    """The clock that the run is timed by; the journals are stamped by the same."""
    file_clock: FileClock = read_clock
    """The way to compare that clock with the file server's."""
    clocks: Callable[[Path], Clocks | None] = lambda folder: None
    """Reads all clocks of the host, with a folder of the run to write in; None where time is
    simulated."""
    description: RankDescription | None = None
    """The description of the primary's node; None where it is simulated."""
    retry: BackoffRetry = field(default_factory=lambda: BackoffRetry(lambda: True))
    """The way to read and write the run's files; its waits are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often a controller looks, and how long it waits, in seconds."""

    poll: float = 0.25
    """The time between two looks at the launcher."""
    look: float = 1.0
    """The least time between two looks at the journals; more where a look takes long."""
    late: float = 5.0
    """The time after the run's end until a replica that goes on is asked to stop."""
    grace: float = 60.0
    """The time that replicas may take to end in order before they are killed."""
    kill: float = 60.0
    """The time for which a killed replica whose end nobody confirms is waited for."""
    lost: float = LAG_SECONDS
    """The time for which a lost replica is waited for: its last records may become visible that
    late, and its scheduler may run it again."""
