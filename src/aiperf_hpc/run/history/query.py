"""A run as its journals tell it: what search workers, status, report, score and verification ask.

All of them read a ``RunHistory``. It reads only what was added to the journals.
"""

from __future__ import annotations

import threading
from pathlib import Path

from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.executions import Executions
from aiperf_hpc.run.heads import Hash
from aiperf_hpc.run.history.replay import Replay, read_apart
from aiperf_hpc.run.history.state import Evaluation, HistoryState, Proposal, ReplicaHistory, Trial
from aiperf_hpc.run.history.tail import Tail, no_collections
from aiperf_hpc.run.history.telemetry import SamplerHistory
from aiperf_hpc.run.history.witnesses import WitnessHistory
from aiperf_hpc.run.journal import Problem
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import Record
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.system.description import RankDescription


class RunHistory:
    """What a run's journals say, up to the last ``refresh``."""

    def __init__(
        self, paths: RunPaths, *, replica: str | None = None, retry: Retry = no_retry
    ) -> None:
        """Begin with nothing read.

        Args:
            paths: the run.
            replica: the one replica whose journals are read; all when not given. The primary's
                journal is read either way.
            retry: how to read; a BackoffRetry waits while the storage is away.
        """
        self.paths = paths
        self.lock = threading.RLock()
        """The lock that is held while the journals are read, and by a thread that reads this while
        others do."""
        self._all = replica is None
        self._replay = Replay.of(Tail(paths, {}, replica=replica, retry=retry))

    def refresh(self, replica: str | None = None) -> None:
        """Read what was added to the journals, of one replica or of all.

        Raises:
            JournalError: a journal is unreadable.
        """
        first = not self._tail.sources
        with self.lock, no_collections(keep_all=first):
            if first and self._all and replica is None:
                self._replay = read_apart(self.paths, self._tail) or self._replay
            self._replay.read(replica)
            if self._tail.replaced:
                self._state.interrupt()

    @property
    def rebuilt(self) -> int:
        """How often everything was read again from the beginning."""
        return self._replay.rebuilt

    @property
    def _tail(self) -> Tail:
        return self._replay.tail

    @property
    def _state(self) -> HistoryState:
        return self._replay.state

    # What was read.

    @property
    def problems(self) -> list[Problem]:
        """Everything in the journals that is not a record in its place."""
        found = [p for source in self._tail.sources.values() for p in source.reader.problems]
        return found + self._tail.strays + self._state.orphans + self.lost_journals

    @property
    def lost(self) -> str:
        """Why what the primary's journal said before is no longer there; empty while all is."""
        own = self._tail.sources.get(self.paths.primary_journal)
        return f"the journal {own.reader.path} {own.reader.lost}" if own and own.reader.lost else ""

    @property
    def lost_journals(self) -> list[Problem]:
        """Journals of replicas that were there, and no longer are as they were.

        They were read before by this process or, as the primary recorded, by the primary; or the
        run has ended, and the primary recorded of a replica what only its journal can have told.
        """
        root, sources = self.paths.root, self._tail.sources
        found = {root / name: "is gone; put it back" for name in self._state.lost_journals}
        for replica in self.replicas.values() if self.run_ended is not None else ():
            if not replica.starts and replica.seen:
                path = self.paths.replica_journal(replica.id)
                found[path] = f"is gone, of a replica that {replica.seen}; put it back"
        found = {path: why for path, why in found.items() if path not in sources}
        read = {path: s.reader.lost for path, s in sources.items() if s.replica and s.reader.lost}
        return [Problem(path, 1, f"the journal {why}") for path, why in (found | read).items()]

    @property
    def torn(self) -> list[Path]:
        """The journals that end in an unfinished line."""
        return [path for path, source in self._tail.sources.items() if source.reader.torn]

    @property
    def bytes_read(self) -> dict[Path, int]:
        """How much of each journal was read so far: whole lines, in bytes."""
        return {path: source.reader.offset for path, source in self._tail.sources.items()}

    @property
    def hashes(self) -> dict[Path, tuple[int, Hash]]:
        """How much of each journal was read so far, in bytes, and the SHA-256 of that."""
        sources = self._tail.sources.items()
        return {path: (source.reader.offset, source.reader.hash) for path, source in sources}

    @property
    def record_count(self) -> int:
        """How many records were read from all journals."""
        return sum(source.reader.count for source in self._tail.sources.values())

    # What they add up to; ``HistoryState`` says what each is.

    @property
    def run_started(self) -> Record | None:
        return self._state.run_started

    @property
    def run_ended(self) -> Record | None:
        return self._state.run_ended

    @property
    def clock_started(self) -> records.ClockStarted | None:
        return self._state.clock_started

    @property
    def run_starts(self) -> list[tuple[float, records.RunStarted]]:
        return self._state.run_starts

    @property
    def stop_requests(self) -> list[tuple[float, records.StopRequested]]:
        return self._state.stop_requests

    @property
    def scalings(self) -> list[tuple[float, records.NodesAsked | records.NodesRefused]]:
        return self._state.scalings

    @property
    def primary_failure(self) -> str | None:
        return self._state.primary_failure

    @property
    def storage_waits(self) -> list[tuple[str, records.StorageWaited]]:
        return self._state.storage_waits

    @property
    def scheduler_problem(self) -> str | None:
        return self._state.scheduler_problem

    @property
    def primary_described(self) -> RankDescription | None:
        return self._state.primary_described

    @property
    def primary_clocks(self) -> list[Clocks]:
        return self._state.primary_clocks

    @property
    def primary_utc(self) -> float | None:
        return self._state.primary_utc

    @property
    def last_utc(self) -> float:
        return self._state.last_utc

    @property
    def replicas(self) -> dict[str, ReplicaHistory]:
        return self._state.replicas

    @property
    def trials(self) -> dict[str, Trial]:
        return self._state.trials

    @property
    def ended(self) -> list[Trial]:
        return self._state.ended

    @property
    def under_way(self) -> list[Trial]:
        """The trials without an end, in the order of their start."""
        return self._state.under_way

    @property
    def executions(self) -> Executions:
        return self._state.executions

    @property
    def proposals(self) -> dict[str, Proposal]:
        return self._state.proposals

    @property
    def searchers(self) -> set[str]:
        return self._state.searchers

    @property
    def search_failures(self) -> list[str]:
        return self._state.search_failures

    @property
    def rejected(self) -> dict[str, str]:
        return self._state.rejected

    @property
    def file_problems(self) -> list[str]:
        return self._state.file_problems

    @property
    def compiler_failures(self) -> list[str]:
        return self._state.compiler_failures

    @property
    def fenced(self) -> int:
        return self._state.fenced

    @property
    def best(self) -> Evaluation | None:
        return self._state.best

    @property
    def telemetry(self) -> dict[str, list[SamplerHistory]]:
        return self._state.telemetry

    @property
    def witnesses(self) -> dict[str, WitnessHistory]:
        return self._state.witnesses

    @property
    def end_bytes(self) -> int:
        return self._state.end_bytes

    # What follows from that.

    @property
    def start_utc(self) -> float | None:
        """When the run's clock started, UTC seconds; None before."""
        if self.clock_starts == "now":
            return self.run_started.utc if self.run_started else None
        return self.clock_started.start_utc if self.clock_started else None

    @property
    def origin_utc(self) -> float | None:
        """What times are told from: the clock's start or, until then, that of the first primary."""
        begun = self.run_started.utc if self.run_started else None
        return begun if self.start_utc is None else self.start_utc

    @property
    def clock_starts(self) -> records.ClockStarts:
        """What starts the run's clock, as the first primary said."""
        return self.run_starts[0][1].clock_starts if self.run_starts else "now"

    @property
    def end_utc(self) -> float | None:
        """When the run's clock stopped, UTC seconds."""
        return self.run_ended.utc if self.run_ended else None

    @property
    def last_start(self) -> records.RunStarted:
        """What the latest primary said of itself. Raises IndexError before the first."""
        return self.run_starts[-1][1]

    @property
    def ready(self) -> list[ReplicaHistory]:
        """The replicas that could train and wait for the run's clock, in a life that goes on.

        One that was ready in the hands of an earlier primary, or before its node was lost, is not.
        """
        launches = len(self.run_starts) - 1
        since = self.run_starts[-1][0] if self.run_starts else 0.0
        return [
            replica
            for replica in self.replicas.values()
            if replica.ready_utc is not None
            and replica.ended is None
            and max(replica.starts).launch >= launches
            and max(replica.starts).restart >= sum(utc >= since for utc, _ in replica.requeued)
        ]

    @property
    def nodes_asked(self) -> list[tuple[float, int]]:
        """How many nodes the run was to have from when on, UTC seconds, where that changed."""
        return [
            (utc, event.kept if isinstance(event, records.NodesRefused) else event.nodes)
            for utc, event in self.scalings
        ]

    @property
    def evaluations(self) -> list[Evaluation]:
        """All complete evaluations in order of time."""
        found = [e for trial in self.trials.values() for e in trial.evaluations]
        return sorted(found, key=lambda e: (e.utc, e.trial, e.epoch))

    def best_until(self, utc: float) -> Evaluation | None:
        """Return the best complete evaluation up to ``utc``, UTC seconds."""
        if self._state.evaluated_utc <= utc:
            return self.best
        best: Evaluation | None = None
        for trial in self.trials.values():
            for evaluation in trial.evaluations:
                if evaluation.utc <= utc and evaluation.beats(best):
                    best = evaluation
        return best

    @property
    def graphs(self) -> set[str]:
        """The hashes of the graphs that trials trained."""
        return {trial.started.graph for trial in self.trials.values()}

    def descent(self, trial: str) -> records.TrialStarted | None:
        """Return where a trial's graph comes from, or None when the trial is unknown.

        A trial that does not count has a graph too: others may have grown from it before its
        replica was known to be replaced.
        """
        known = self.trials.get(trial)
        return self._state.fenced_trials.get(trial) if known is None else known.started

    def pending(self, replica: str) -> list[Proposal]:
        """Return a replica's proposals that wait for a trial, oldest first."""
        waiting = self._state.waiting.get(replica, {})
        return sorted(waiting.values(), key=lambda p: (p.utc, p.id))

    def stock(self, replica: str) -> int:
        """Return how many of a replica's proposals wait for a trial."""
        return len(self._state.waiting.get(replica, ()))
