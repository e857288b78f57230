"""The stages of a trial in a replica: candidate, planned, built, trained.

``run.history.Trial`` is the trial as reconstructed from the journals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from aiperf_hpc.config import TrainingConfig
from aiperf_hpc.errors import OutOfMemoryError, without_frames
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import Morphism
from aiperf_hpc.morphism.weights.weight_file import Predictions, Weights
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.base import Network, NetworkState, OptimizerState
from aiperf_hpc.run.records import Calibrated
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TrialState, Value


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph to train, with the weights it starts from."""

    graph: Graph
    weights: Weights
    parent: str | None = None
    """Name of the trial that trained its parent."""
    proposal: str | None = None
    """Identifier of the search worker's proposal; None for the initial graph."""
    morphisms: tuple[Morphism, ...] = ()
    """Morphisms from the parent's graph to this one."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Hyperparameters suggested by the attempt's study, which expects their result."""

    hyperparameters: Hyperparameters
    number: int
    """Number of the trial in the study."""


class TrialProgress(Value):
    """Progress of a trial at the end of an epoch."""

    trial: str
    epochs: int = 0
    """Number of completed and evaluated epochs."""
    values: tuple[float, ...] = ()
    """Objective value after each epoch."""
    lowest_loss: float = float("inf")
    since_lowest: int = 0
    """Number of epochs since the lowest validation loss."""
    losses: tuple[float, ...] = ()
    """Validation loss after each epoch."""
    train_losses: tuple[float, ...] = ()
    """Mean training losses of the last epoch by interval (``credit.IntervalLosses``)."""
    validation_losses: tuple[float, ...] = ()
    """Mean validation losses of the last epoch by interval."""

    def after(
        self,
        value: float,
        loss: float,
        train_losses: tuple[float, ...] = (),
        validation_losses: tuple[float, ...] = (),
    ) -> TrialProgress:
        """Return the progress after one more epoch with this objective value and these losses."""
        lower = loss < self.lowest_loss
        return TrialProgress(
            trial=self.trial,
            epochs=self.epochs + 1,
            values=(*self.values, value),
            lowest_loss=loss if lower else self.lowest_loss,
            since_lowest=0 if lower else self.since_lowest + 1,
            losses=(*self.losses, loss),
            train_losses=train_losses,
            validation_losses=validation_losses,
        )


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The training state of a trial at the end of an epoch, or before the first."""

    progress: TrialProgress
    graph: Graph
    weights: Weights
    optimizer_state: OptimizerState

    @property
    def bytes(self) -> int:
        arrays = (*self.weights.values(), *self.optimizer_state.values())
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class BestEpoch:
    """State at the beginning and at the end of a trial's best epoch."""

    began: TrainingState
    evaluated: TrainingState
    """State at the end. Of the optimizer's, it has only the number of steps, if it counts them."""

    @property
    def value(self) -> float:
        """Objective value of the evaluation."""
        return self.evaluated.progress.values[-1]

    @property
    def bytes(self) -> int:
        return self.began.bytes + self.evaluated.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """A planned trial, before the machine's limits are applied."""

    name: str
    round: int
    phase: RoundPhase
    candidate: Candidate
    hyperparameters: Hyperparameters
    epoch_limit: int
    seed: int
    progress: TrialProgress
    """Progress so far: none, unless it resumes an interrupted trial."""
    resumes: str | None = None
    """Name of the interrupted trial that it resumes."""
    optimizer_state: OptimizerState | None = None
    """Optimizer state of the interrupted trial."""
    suggestion: Suggestion | None = None
    """The study's suggestion that it evaluates, if any."""
    discard_candidate: bool = False
    """Whether to delete the candidate's file afterwards."""
    notes: tuple[str, ...] = ()
    """Remarks for users on how it was planned."""

    @property
    def beginning(self) -> TrainingState:
        """Training state at its start."""
        candidate = self.candidate
        return TrainingState(
            self.progress, candidate.graph, candidate.weights, self.optimizer_state or {}
        )


@dataclass(frozen=True, slots=True)
class BuiltTrial:
    """A trial before its first step, or the error that prevents it."""

    trial: PlannedTrial
    used: Hyperparameters
    """Hyperparameters in use: as planned, or with a batch size reduced to fit in memory."""
    network: Network | None = None
    batches: Iterator[Batch] = iter(())
    """Batches of its first epoch, which are already being read."""
    calibrated: Calibrated | None = None
    """Record of the normalizations calibrated on the first batch, if there are any."""
    failure: Exception | None = None
    """The error that prevents training: an AIPerfError or a MemoryError."""
    pending: Callable[[], Network] | None = None
    """Returns its network, called in the training thread; may raise AIPerfError or MemoryError."""

    @property
    def network_state(self) -> NetworkState:
        """The network to build."""
        candidate, state = self.trial.candidate, self.trial.optimizer_state
        return NetworkState(candidate.graph, candidate.weights, self.used, state)

    def failed(self, error: Exception) -> BuiltTrial:
        """Return the trial with the error, whose traceback is cleared to free memory."""
        return replace(self, failure=without_frames(error))

    def close(self) -> None:
        """Free its network, if it has one."""
        if self.network is not None:
            self.network.close()


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial."""

    state: TrialState
    reason: str
    values: tuple[float, ...]
    """Objective value after each complete evaluation, including those before an interruption."""
    used: Hyperparameters
    """Hyperparameters that it trained with, or would have."""
    weights: Weights | None = None
    """Trained weights; None if it failed or the run is ending."""
    interrupted: bool = False
    """Whether the replica's next attempt should resume it."""
    out_of_memory: bool = False
    """Whether it failed because the accelerator ran out of memory."""
    predictions: Predictions | None = None
    """Predictions of its last complete evaluation, if requested and it did not fail."""
    best_epoch: BestEpoch | None = None
    """Epoch of its best evaluation, if it is to be stored."""

    @classmethod
    def failed(
        cls,
        error: Exception,
        progress: TrialProgress,
        used: Hyperparameters,
        best_epoch: BestEpoch | None = None,
    ) -> TrialResult:
        """Return the result of a trial that failed with an error."""
        return cls(
            TrialState.FAILED,
            str(error) or "the host has no memory left",
            progress.values,
            used,
            out_of_memory=isinstance(error, MemoryError | OutOfMemoryError),
            best_epoch=best_epoch,
        )

    @property
    def cut(self) -> bool:
        """Whether the end of the run or a preemption interrupted it."""
        return self.state is not TrialState.FAILED and self.weights is None


def configured_hyperparameters(training: TrainingConfig) -> Hyperparameters:
    """Return the configured hyperparameters, for trials without a suggestion."""
    return Hyperparameters.model_validate(training, from_attributes=True)
