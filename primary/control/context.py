"""Context of a primary: the run, its records, clock, storage and timing."""

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
from aiperf_hpc.run.records import FileProblem
from aiperf_hpc.run.search_digest import DigestWriter
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.system.description import RankDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryContext:
    """A run under control of its primary: manifest, records, clock and storage."""

    manifest: RunManifest
    journal: JournalWriter
    """The primary's own journal."""
    history: RunHistory
    """Records of the run, which the controller refreshes."""
    digest: DigestWriter
    """The digest of the records, for the search workers."""
    journal_digests: JournalDigests | None = None
    """Digests of all journals; None if none are recorded."""
    show: Callable[[], None] = lambda: None
    """Callback for a new digest for witnesses; it returns immediately."""
    clock: Clock = SYSTEM
    """Clock of the run and of the journals' timestamps."""
    file_clock: FileClock = read_clock
    """Comparison of that clock with the file server's."""
    clocks: Callable[[Path], Clocks | None] = lambda folder: None
    """Function that reads all clocks of the host and writes in a folder of the run; None if time is
    simulated."""
    description: RankDescription | None = None
    """Description of the primary's node; None if it is simulated."""
    retry: BackoffRetry = field(default_factory=lambda: BackoffRetry(lambda: True))
    """Retry policy for access to the run's files; its waits are recorded."""

    def file_problem(self, path: Path, problem: object, remedy: str) -> FileProblem:
        """Return the record of a problem with a file of the run."""
        file = str(path.relative_to(self.history.paths.root))
        return FileProblem(file=file, problem=str(problem), remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Polling intervals and timeouts of a controller, in seconds."""

    poll: float = 0.25
    """Polling interval of the launcher."""
    look: float = 1.0
    """Minimum polling interval of the journals; longer if reading is slow."""
    late: float = 5.0
    """Time after the run's end until a replica that still runs is requested to stop."""
    grace: float = 60.0
    """Time for replicas to shut down cleanly before they are killed."""
    kill: float = 60.0
    """Time to wait for a killed replica whose end is not confirmed."""
    lost: float = LAG_SECONDS
    """Time to wait for a lost replica: its last records may become visible that late, and the
    scheduler may requeue it."""
