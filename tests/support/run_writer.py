"""Writes the journals of small runs, record by record, with the times that a test states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.clock import Clock

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
from aiperf_hpc.run.search_digest import DigestWriter
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
        return RunHistory.read(self.paths)


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
    precision: str = "bf16",
    **changes: Any,  # noqa: ANN401 -- the record's fields
) -> TrialStarted:
    values = {
        "round": 1,
        "phase": RoundPhase.WARMUP,
        "parent": None,
        "proposal": None,
        "morphisms": (),
        "hyperparameters": HYPERPARAMETERS.model_copy(update={"precision": precision}),
        "seed": 0,
        "epoch_limit": 15,
        **dict.fromkeys(COUNTS, 1),
        **changes,
    }
    return TrialStarted(trial=trial, graph=graph, **values)


COUNTS = (
    "parameters",
    "depth",
    "train_operations",
    "validation_operations",
    "memory_estimate_bytes",
)


def progress(trial: str = "t1", *, train: int = 0, validation: int = 0, epoch: int = 1) -> Progress:
    return Progress(trial=trial, epoch=epoch, train_samples=train, validation_samples=validation)


def evaluated(trial: str = "t1", *, correct: int, **changes: Any) -> Evaluated:  # noqa: ANN401
    values = {"epoch": 1, "train_loss": 1.0, "validation_loss": 1.0, "samples": 100, **changes}
    sums = {"correct": correct}
    return Evaluated(**{"trial": trial, "learning_rate": 0.1, "sums": sums, **values})


def trial_ended(
    trial: str = "t1",
    state: TrialState = TrialState.COMPLETED,
    *,
    reason: str = "epoch limit",
    predicted: float | None = None,
    checkpoint: bool = True,
) -> TrialEnded:
    return TrialEnded(
        trial=trial,
        state=state,
        reason=reason,
        predicted_accuracy=predicted,
        checkpoint=checkpoint,
    )


def proposed(proposal: str, graph: str = "child", **changes: Any) -> Proposed:  # noqa: ANN401
    values = {"parent": "t1", "morphisms": (DEEPER,), "seed": 1, "seconds": 0.5, **changes}
    return Proposed(proposal=proposal, graph=graph, **values)
