"""Writes the journals of small runs, record by record, with the times that a test states."""

from __future__ import annotations

from pathlib import Path

from tests.support.clock import Clock

from aiperf_hpc.run.digest import DigestWriter
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import (
    AnyEvent,
    Evaluated,
    Progress,
    Proposed,
    ReplicaStarted,
    RunEnded,
    RunStarted,
    TrialEnded,
    TrialStarted,
)
from aiperf_hpc.trial import Hyperparameters, Machine, MorphismData, RoundPhase, TrialState

START = 1_000_000.0
"""UTC seconds; exact in binary, as are the times of most tests."""

FIRST, SECOND, THIRD = Incarnation(0, 0), Incarnation(0, 1), Incarnation(1, 0)
"""Lives of a replica: launched, then requeued by the scheduler, then launched again."""

MACHINE = Machine(host="n", cpu="c", cores=(0,), memory_bytes=1, accelerators=(), versions={})
DEEPER: MorphismData = {"kind": "deeper", "after": "relu", "kernel": 1}


class RunWriter:
    """A run directory and its writers; times are seconds since START."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)

    def primary(self, seconds: float, *events: AnyEvent) -> None:
        self.append(self.paths.primary_journal, seconds, *events)

    def replica(self, seconds: float, *events: AnyEvent, name: str = "r0") -> None:
        self.append(self.paths.replica_journal(name), seconds, *events)

    def life(self, incarnation: Incarnation, seconds: float, *events: AnyEvent) -> None:
        """Write to the journal of one life of the replica r0."""
        self.append(self.paths.replica_journal("r0", incarnation), seconds, *events)

    def search(self, seconds: float, *events: AnyEvent, name: str = "r0", worker: int = 0) -> None:
        self.append(self.paths.search_journal(name, worker), seconds, *events)

    def append(self, path: Path, seconds: float, *events: AnyEvent) -> None:
        with JournalWriter(path, clock=Clock(START + seconds)) as journal:
            for event in events:
                journal.append(event)

    def history(self) -> RunHistory:
        history = RunHistory(self.paths)
        history.refresh()
        return history


class DigestingPrimary:
    """The part of a primary that writes the digest."""

    def __init__(self, run: RunWriter) -> None:
        self.history = RunHistory(run.paths)
        self.journal = JournalWriter(run.paths.digest)
        self.writer = DigestWriter(self.history, self.journal)

    def look(self) -> None:
        self.history.refresh()
        self.writer.update()


def run_started(hours: float = 1.0) -> RunStarted:
    return RunStarted(run_id="run", nodes=1, hours=hours, launcher="local", host="h", pid=1)


def run_ended() -> RunEnded:
    return RunEnded(reason="time is up")


def replica_started(name: str = "r0") -> ReplicaStarted:
    return ReplicaStarted(replica=name, pid=1, engine="tensorflow", machine=MACHINE)


HYPERPARAMETERS = Hyperparameters(batch_size=448, learning_rate=0.1, precision="bf16")


def trial_started(
    trial: str = "t1",
    graph: str = "graph",
    *,
    phase: RoundPhase = RoundPhase.WARMUP,
    proposal: str | None = None,
    morphisms: tuple[MorphismData, ...] = (),
    precision: str = "bf16",
) -> TrialStarted:
    return TrialStarted(
        trial=trial,
        round=1,
        phase=phase,
        graph=graph,
        parent=None,
        proposal=proposal,
        morphisms=morphisms,
        hyperparameters=HYPERPARAMETERS.model_copy(update={"precision": precision}),
        seed=0,
        epoch_limit=15,
        parameters=1,
        depth=1,
        train_operations=1,
        validation_operations=1,
        memory_estimate_bytes=1,
    )


def progress(trial: str = "t1", *, train: int = 0, validation: int = 0, epoch: int = 1) -> Progress:
    return Progress(trial=trial, epoch=epoch, train_samples=train, validation_samples=validation)


def evaluated(trial: str = "t1", *, correct: int, samples: int = 100, epoch: int = 1) -> Evaluated:
    return Evaluated(
        trial=trial,
        epoch=epoch,
        learning_rate=0.1,
        train_loss=1.0,
        validation_loss=1.0,
        sums={"correct": correct},
        samples=samples,
    )


def trial_ended(
    trial: str = "t1",
    state: TrialState = TrialState.COMPLETED,
    *,
    predicted: float | None = None,
    checkpoint: bool = True,
) -> TrialEnded:
    return TrialEnded(
        trial=trial,
        state=state,
        reason="epoch limit",
        predicted_accuracy=predicted,
        checkpoint=checkpoint,
    )


def proposed(proposal: str, graph: str = "child") -> Proposed:
    return Proposed(
        proposal=proposal, graph=graph, parent="t1", morphisms=(DEEPER,), seed=1, seconds=0.5
    )
