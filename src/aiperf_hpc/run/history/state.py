"""The state of a run that follows from its records: its trials, replicas and candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.executed_samples import Executions
from aiperf_hpc.run.history.replicas import ReplicaHistory
from aiperf_hpc.run.history.tail import Starts
from aiperf_hpc.run.history.telemetry import SamplerHistory
from aiperf_hpc.run.history.trials import Evaluation, Proposal, Trial
from aiperf_hpc.run.journal import Problem
from aiperf_hpc.run.journal_digest import Statement
from aiperf_hpc.run.records import Record, TimeStamped, Witnessed, WitnessState
from aiperf_hpc.system.description import RankDescription

WINDOW_SECONDS: Final = 360.0
"""The length of the windows in which a replica's work is summed: the score's interval."""
PRIMARY = "primary"
"""The primary's name among the processes that wait for storage."""


@dataclass(slots=True)
class WitnessHistory:
    """A witness, or a timestamp authority, as the primary recorded it; nothing is checked."""

    url: str
    key: str = ""
    """The fingerprint of its key; empty for a timestamp authority."""
    times: int = 0
    """Number of answers."""
    first_utc: float = 0.0
    """Time of the first answer, UTC seconds: by its clock, or the primary's for an authority."""
    last_utc: float = 0.0
    greatest_gap: float = 0.0
    """The longest time between two answers, or from the run's start to the first, seconds."""
    covered: int = 0
    """The bytes of the primary's journal that it has seen."""
    last: Statement | None = None
    """The last statement; None for a timestamp authority."""
    away: str = ""
    """Reason for which it does not answer; empty while it answers."""

    def take(self, utc: float, event: Witnessed | TimeStamped, start_utc: float | None) -> None:
        """Add an answer recorded at a time in UTC seconds."""
        if isinstance(event, Witnessed):
            self.key, self.last = event.key, event.statement
            utc, digest = event.statement.utc, event.statement.head
        else:
            digest = event.digest
        before = self.last_utc if self.times else (start_utc or utc)
        self.first_utc = self.first_utc if self.times else utc
        self.greatest_gap = max(self.greatest_gap, utc - before)
        self.last_utc = utc
        self.times += 1
        self.covered = max(self.covered, digest.bytes)

    def change(self, event: WitnessState) -> None:
        """Record that it began or ceased to answer."""
        self.away = "" if event.reachable else event.detail


@dataclass(slots=True, eq=False)
class RunState:
    """The state of a run after the records applied so far."""

    starts: Starts
    """The starts of all attempts; the reader of the journals adds to it."""
    run_started: Record | None = None
    run_ended: Record | None = None
    clock_started: records.ClockStarted | None = None
    """The record of the clock's start, if the clock did not start with the run."""
    run_starts: list[tuple[float, records.RunStarted]] = field(default_factory=list)
    """The start of each primary, with its UTC seconds."""
    stop_requests: list[tuple[float, records.StopRequested]] = field(default_factory=list)
    scalings: list[tuple[float, records.NodesRequested | records.NodesRefused]] = field(
        default_factory=list
    )
    """Requests for nodes during the run and their refusals, with their UTC seconds."""
    primary_failure: str | None = None
    """The reason of the latest primary's failure."""
    storage_waits: list[tuple[str, records.StorageWaited]] = field(default_factory=list)
    """Waits for storage, by a replica's name or ``primary``, in the order of reading."""
    scheduler_problem: str | None = None
    """The message of the scheduler's client while the scheduler does not respond."""
    primary_described: RankDescription | None = None
    """The description of the latest primary."""
    primary_clocks: list[Clocks] = field(default_factory=list)
    """The latest primary's readings of its host's clocks."""
    primary_utc: float | None = None
    last_utc: float = 0.0
    replicas: dict[str, ReplicaHistory] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    ended: list[Trial] = field(default_factory=list)
    """The trials that ended, in the order of reading."""
    executions: Executions = field(default_factory=Executions)
    proposals: dict[str, Proposal] = field(default_factory=dict)
    searchers: set[str] = field(default_factory=set)
    """The names of the searchers that search workers used."""
    search_failures: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    """The reasons for which proposals could not be loaded, by proposal."""
    file_problems: list[str] = field(default_factory=list)
    """Damaged or missing files, and how the run continued without them."""
    compiler_failures: list[str] = field(default_factory=list)
    """Failures of the process that compiles ahead."""
    missing_journals: list[str] = field(default_factory=list)
    """Replicas' journals that the primary found missing, by their paths below the run directory."""
    orphans: list[Problem] = field(default_factory=list)
    """Records of trials that no record of their replica started, or that two started."""
    fenced: int = 0
    """The number of records that replaced attempts wrote: they do not count."""
    fenced_trials: dict[str, records.TrialStarted] = field(default_factory=dict)
    """Trials that replaced attempts started."""
    best: Evaluation | None = None
    """The evaluation with the best quality, the earliest of equals."""
    evaluated_utc: float = -math.inf
    """The latest time of an evaluation, UTC seconds."""
    telemetry: dict[str, list[SamplerHistory]] = field(default_factory=dict)
    """The samplers of each host, in the order of reading."""
    witnesses: dict[str, WitnessHistory] = field(default_factory=dict)
    """External witnesses and timestamp authorities, by URL."""
    end_bytes: int = 0
    """The bytes of the primary's journal up to the record of the end, inclusive."""
    waiting: dict[str, dict[str, Proposal]] = field(default_factory=dict)
    """The proposals of each replica that no trial has used."""
    _open: dict[str, Trial] = field(default_factory=dict)
    """Trials without an end."""

    @property
    def under_way(self) -> list[Trial]:
        """The trials without an end, in the order of their start."""
        return sorted(self._open.values(), key=lambda trial: (trial.started_utc, trial.id))

    @property
    def start_utc(self) -> float | None:
        """Start of the run's clock, UTC seconds; None before."""
        if self.clock_starts == "now":
            return self.run_started.utc if self.run_started else None
        return self.clock_started.start_utc if self.clock_started else None

    @property
    def origin_utc(self) -> float | None:
        """The origin of relative times: the start of the clock or, before, of the first primary."""
        begun = self.run_started.utc if self.run_started else None
        return begun if self.start_utc is None else self.start_utc

    @property
    def clock_starts(self) -> records.ClockStarts:
        """The event that starts the run's clock, as recorded by the first primary."""
        return self.run_starts[0][1].clock_starts if self.run_starts else "now"

    @property
    def end_utc(self) -> float | None:
        """Stop of the run's clock, UTC seconds."""
        return self.run_ended.utc if self.run_ended else None

    @property
    def last_start(self) -> records.RunStarted:
        """The record of the latest primary's start. Raises IndexError before the first."""
        return self.run_starts[-1][1]

    @property
    def ready(self) -> list[ReplicaHistory]:
        """The replicas that are ready and wait for the run's clock.

        One that was ready under an earlier primary, or before its node was lost, is not.
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
    def nodes_requested(self) -> list[tuple[float, int]]:
        """The requested number of nodes and the time of each change, UTC seconds."""
        return [
            (utc, event.current_nodes if isinstance(event, records.NodesRefused) else event.nodes)
            for utc, event in self.scalings
        ]

    @property
    def evaluations(self) -> list[Evaluation]:
        """All complete evaluations in order of time."""
        found = [e for trial in self.trials.values() for e in trial.evaluations]
        return sorted(found, key=lambda e: (e.utc, e.trial, e.epoch))

    def best_until(self, utc: float) -> Evaluation | None:
        """Return the best complete evaluation up to ``utc``, UTC seconds."""
        if self.evaluated_utc <= utc:
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
        """Return the record that has a trial's lineage; None if the trial is unknown.

        Includes trials that do not count: others may have grown from one before its replica was
        known to be replaced.
        """
        known = self.trials.get(trial)
        return self.fenced_trials.get(trial) if known is None else known.started

    def pending(self, replica: str) -> list[Proposal]:
        """Return a replica's proposals that wait for a trial, oldest first."""
        waiting = self.waiting.get(replica, {})
        return sorted(waiting.values(), key=lambda p: (p.utc, p.id))

    def stock(self, replica: str) -> int:
        """Return how many of a replica's proposals wait for a trial."""
        return len(self.waiting.get(replica, ()))
