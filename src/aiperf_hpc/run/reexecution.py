"""Executing recorded epochs again: what ``aiperf verify --execute`` asks for, and what it found."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aiperf_hpc.config import RunConfig
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, Value


class KeptCheckpoint(Value):
    """A checkpoint of a run, and what its file must be."""

    path: str
    sha256: str


class RecordedEpoch(Value):
    """An epoch of a trial that is to be executed again."""

    trial: str
    graph: str
    """The graph as JSON: grown again, not the stored one."""
    hyperparameters: Hyperparameters
    seed: int
    ranks: Annotated[int, Field(ge=1)]
    """The processes that each batch was divided among."""
    epoch: Annotated[int, Field(ge=1)]
    epoch_limit: Annotated[int, Field(ge=1)]
    losses: tuple[float, ...]
    """The recorded validation losses of the epochs before it, which a schedule may go by."""
    began: KeptCheckpoint
    evaluated: KeptCheckpoint


class ExecutionRequest(Value):
    """What is to be executed again of a run."""

    config: RunConfig
    """The run's, with the place of the dataset that is read now."""
    dataset: DatasetInfo
    """What the dataset must be."""
    epochs: tuple[RecordedEpoch, ...]


class EvaluationAgain(Value):
    """What an evaluation over all validation samples found now."""

    loss: float
    """The mean over the samples."""
    sums: dict[str, float]
    """The sums of the run's measure, by its names."""
    samples: int
    baseline: dict[str, float] | None = None
    """Those of a predictor that has learnt nothing, on the same samples; None for none."""


class MatrixOperations(Value):
    """Operations of convolutions and matrix products for one sample, by PyTorch's own counter."""

    forward: int
    training: int
    """Forward and backward, without the update."""


class EpochAgain(Value):
    """What came of an epoch that was executed again."""

    trial: str
    failure: str = ""
    """Why it could not be; then nothing else is said."""
    before: EvaluationAgain | None = None
    """With the weights that the epoch began with; None where that was the trial's beginning."""
    evaluated: EvaluationAgain | None = None
    """With the weights that were evaluated at its end."""
    train_loss: float | None = None
    """The mean loss of the training, begun anew from what the epoch began with."""
    after: EvaluationAgain | None = None
    """With the weights that this training gave."""
    seconds: float | None = None
    """What the training and the evaluation after it took."""
    operations: MatrixOperations | None = None
    """None where PyTorch is not installed."""


class ExecutionResult(Value):
    """What was found by executing epochs again, and on what."""

    engine: str
    versions: dict[str, str]
    device: str
    """The accelerator, or the processor where there is none."""
    cores: int
    """The logical CPUs that it computed on."""
    epochs: tuple[EpochAgain, ...]
