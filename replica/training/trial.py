"""A trial's way through a replica: a candidate, planned, built, trained.

``run.history.Trial`` is another view of it: a trial as the journals tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from pydantic import AliasChoices, Field

from aiperf_hpc.config import TrainingConfig
from aiperf_hpc.errors import OutOfMemoryError, without_frames
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.base import Morphism
from aiperf_hpc.morphism.weights.predictions import Predictions
from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.base import Network, OptimizerState
from aiperf_hpc.run.records import Calibrated
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TrialState, Value


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph to train, with the weights it starts from."""

    graph: Graph
    weights: Weights
    parent: str | None = None
    """The trial whose graph it grew from."""
    proposal: str | None = None
    """The search worker's proposal that it is; None where no search worker made it."""
    morphisms: tuple[Morphism, ...] = ()
    """The steps from the parent's graph to this one."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Hyperparameters that this life's study suggested, and is to be told the worth of."""

    hyperparameters: Hyperparameters
    number: int
    """The number of its trial in the study."""


class TrialProgress(Value):
    """What has happened in a trial until the end of an epoch."""

    trial: str
    epochs: int = 0
    """The number of complete epochs, each evaluated."""
    values: tuple[float, ...] = Field((), validation_alias=AliasChoices("values", "accuracies"))
    """The objective value after each epoch; earlier versions had accuracies alone."""
    lowest_loss: float = float("inf")
    since_lowest: int = 0
    """The number of epochs since the lowest validation loss."""
    losses: tuple[float, ...] = ()
    """The validation loss after each epoch; earlier checkpoints have none."""

    def after(self, value: float, loss: float) -> TrialProgress:
        """Return the progress after one more epoch, of this objective value and loss."""
        lower = loss < self.lowest_loss
        return TrialProgress(
            trial=self.trial,
            epochs=self.epochs + 1,
            values=(*self.values, value),
            lowest_loss=loss if lower else self.lowest_loss,
            since_lowest=0 if lower else self.since_lowest + 1,
            losses=(*self.losses, loss),
        )


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The state of a training at the end of an epoch, or before the first."""

    course: TrialProgress
    graph: Graph
    weights: Weights
    optimizer_state: OptimizerState

    @property
    def bytes(self) -> int:
        arrays = (*self.weights.values(), *self.optimizer_state.values())
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class BestEpoch:
    """The beginning and the end of the epoch of a trial's best evaluation."""

    began: TrainingState
    evaluated: TrainingState
    """Without the optimizer's state, which an evaluation does not need."""

    @property
    def value(self) -> float:
        """The objective value of the evaluation."""
        return self.evaluated.course.values[-1]

    @property
    def bytes(self) -> int:
        return self.began.bytes + self.evaluated.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """A trial to be trained, before the machine's limits are applied."""

    name: str
    round: int
    phase: RoundPhase
    candidate: Candidate
    hyperparameters: Hyperparameters
    epoch_limit: int
    seed: int
    course: TrialProgress
    """What has happened in it so far: nothing, unless it was interrupted."""
    resumes: str | None = None
    """The interrupted trial that it goes on with."""
    optimizer_state: OptimizerState | None = None
    """The state that the optimizer of the interrupted trial goes on from."""
    suggestion: Suggestion | None = None
    """The suggestion whose worth it shows; None where this life's study made none."""
    discard_candidate: bool = False
    """Whether the candidate's file is of no more use after it."""
    notes: tuple[str, ...] = ()
    """Remarks for people on how it was planned."""

    @property
    def beginning(self) -> TrainingState:
        """The state that its training begins with."""
        candidate = self.candidate
        return TrainingState(
            self.course, candidate.graph, candidate.weights, self.optimizer_state or {}
        )


class BuildState(Enum):
    """How far a trial is on its way to its first step."""

    FITTED = "fitted"
    """Its batches fit in memory."""
    PENDING = "pending"
    """Its network is to be waited for, or to be warmed once nothing trains beside it."""
    READY = "ready"
    """Its network is there and waits for the first step."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BuiltTrial:
    """A trial on its way to its first step, or what went wrong with it until there."""

    trial: PlannedTrial
    used: Hyperparameters
    """What it really trains with: the planned ones, in smaller batches where memory asks for it."""
    network: Network | None = None
    batches: Iterator[Batch] = iter(())
    """The batches of its first epoch, which are being read already."""
    calibrated: Calibrated | None = None
    """The record of the normalisations that were fitted to the first batch, if there are any."""
    failure: Exception | None = None
    """Why it cannot be trained: an AIPerfError or a MemoryError."""
    pending: Callable[[], Network] | None = None
    """Takes its network in the thread that trains; may raise AIPerfError or MemoryError."""

    @property
    def state(self) -> BuildState:
        """How far it is."""
        if self.failure is not None:
            return BuildState.FAILED
        if self.pending is not None:
            return BuildState.PENDING
        return BuildState.FITTED if self.network is None else BuildState.READY

    def awaiting(self, take: Callable[[], Network]) -> BuiltTrial:
        """Return it with a network that is to be taken."""
        return replace(self, pending=take)

    def failed(self, error: Exception) -> BuiltTrial:
        """Return it with the error, which keeps nothing of what was computed."""
        return replace(self, failure=without_frames(error))

    def close(self) -> None:
        """Free its network, if it has one."""
        if self.network is not None:
            self.network.close()


@dataclass(frozen=True, slots=True)
class TrialResult:
    """How a trial went."""

    state: TrialState
    reason: str
    values: tuple[float, ...]
    """The objective value after each complete evaluation, those before an interruption included."""
    used: Hyperparameters
    """What it trained with, or was to."""
    weights: Weights | None = None
    """The trained weights; None where it failed or the run is ending."""
    interrupted: bool = False
    """Whether another life of this replica is to go on with it."""
    out_of_memory: bool = False
    """Whether it failed because it did not fit on the accelerator."""
    predictions: Predictions | None = None
    """Those of its last complete evaluation, where they are asked for and it did not fail."""
    best_epoch: BestEpoch | None = None
    """That of its best evaluation, where it is to be kept."""

    @classmethod
    def failed(
        cls,
        error: Exception,
        course: TrialProgress,
        used: Hyperparameters,
        best_epoch: BestEpoch | None = None,
    ) -> TrialResult:
        """Return the result of a trial that an error ended."""
        return cls(
            TrialState.FAILED,
            str(error) or "the host has no memory left",
            course.values,
            used,
            out_of_memory=isinstance(error, MemoryError | OutOfMemoryError),
            best_epoch=best_epoch,
        )

    @property
    def cut(self) -> bool:
        """Whether the end of the run, or an interruption, cut it."""
        return self.state is not TrialState.FAILED and self.weights is None


def configured_hyperparameters(training: TrainingConfig) -> Hyperparameters:
    """Return what a trial trains with where nothing else was chosen for it."""
    return Hyperparameters.model_validate(training, from_attributes=True)
