"""The records of trials."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_hpc.objective import ACCURACY, QUALITY_METRICS, unknown_metric
from aiperf_hpc.run.clocks import Time
from aiperf_hpc.run.records.base import Event
from aiperf_hpc.trial import Hyperparameters, Morphisms, RoundPhase, StepPart, TrialState, Value
from aiperf_hpc.untrusted.bounds import SHA256, Count, Finite, Name, Number


class TrialStarted(Event):
    """A trial started: its graph is being built and compiled.

    ``graph`` is the hash of the graph that is trained. It is ``parent``'s graph after
    ``morphisms``, in order; a trial of the initial graph has neither.
    """

    trial: Name
    round: Number
    phase: RoundPhase
    graph: Name
    parent: str | None
    proposal: Name | None
    morphisms: Morphisms
    hyperparameters: Hyperparameters
    seed: int
    planned_batch_size: int | None = None
    """The requested batch size, if batches of that size are estimated not to fit in memory."""
    epoch_limit: Number
    resumes: str | None = None
    """The interrupted trial that this one resumes from its last checkpoint."""
    first_epoch: Number = 1
    parameters: Count
    depth: Count
    train_operations: Count
    """Analytical operations credited for one training sample, forward and backward."""
    validation_operations: Count
    """Analytical operations credited for one validation sample, forward only."""
    memory_estimate_bytes: Count
    notes: tuple[str, ...] = ()


class TrainingStarted(Event):
    """The trial's graph is built; the first step comes next."""

    trial: str


class Calibrated(Event):
    """Layers that a morphism inserted were fitted to the first batch, on which nothing changed.

    ``samples`` of it were executed forward, which is not credited, and are trained on next.
    """

    trial: str
    layers: tuple[str, ...]
    """The names of the fitted normalizations."""
    samples: Number


class Progress(Event):
    """The samples executed since the trial's last progress record, which are credited."""

    trial: str
    epoch: Number
    train_samples: Count
    validation_samples: Count


class Evaluated(Event):
    """One epoch and its complete evaluation over the validation samples."""

    trial: str
    epoch: Number
    learning_rate: float
    train_loss: float
    validation_loss: float
    metric: str = ACCURACY.name
    """The name of the quality metric."""
    sums: dict[str, Finite] = Field(default_factory=dict)
    """The metric's sums over the validation samples, by its names."""
    samples: Number
    correct: Count | None = Field(None, exclude=True)
    """The sum in records of versions whose only metric was accuracy; read into ``sums``."""

    # One validator, after the fields: one before them would have each line made a dict first, and
    # a large run has as many of these records as epochs.
    @model_validator(mode="after")
    def _has_the_sums_of_its_metric(self) -> Self:
        values = self.__dict__  # The record is frozen for all other code.
        if (correct := values["correct"]) is not None:
            values["sums"] = {"correct": float(correct)}
            values["correct"] = None
        _check_sums(values["metric"], values["sums"], values["samples"])
        return self

    @property
    def quality(self) -> float:
        """The quality by the record's metric."""
        return QUALITY_METRICS[self.metric].quality(self.sums, self.samples)


def _check_sums(name: str, sums: dict[str, float], samples: int) -> None:
    """Raise ValueError unless a metric can have these sums over so many samples."""
    metric = QUALITY_METRICS.get(name)
    if metric is None:
        raise ValueError(unknown_metric(name))
    metric.check(sums, samples)


class BaselineMeasured(Event):
    """The quality of a trivial predictor on the validation samples.

    The metric names the predictor (``QualityMetric.baseline``). Written once in each attempt of a
    replica that searches for no network, after its first evaluation.
    """

    metric: str
    """The name of the quality metric."""
    sums: dict[str, Finite]
    """The metric's sums over the validation samples, by its names."""
    samples: Number

    @model_validator(mode="after")
    def _has_the_sums_of_its_metric(self) -> Self:
        _check_sums(self.metric, self.sums, self.samples)
        return self

    @property
    def quality(self) -> float:
        """The quality by the record's metric."""
        return QUALITY_METRICS[self.metric].quality(self.sums, self.samples)


class TrialEnded(Event):
    """A trial ended; ``predicted_accuracy`` is the extrapolation of the warm-up."""

    trial: str
    state: TrialState
    reason: str
    predicted_accuracy: float | None
    checkpoint: bool
    """Whether the trained weights are stored, so that children may grow from them."""


class PredictionsSaved(Event):
    """The predictions of a trial's last complete evaluation were stored in a file."""

    trial: str
    epoch: Number
    samples: Number
    sha256: str
    """SHA-256 of the file, in hexadecimal."""


class SavedFile(Value):
    """The size and SHA-256 of a stored file."""

    bytes: Count
    sha256: Annotated[str, Field(pattern=SHA256)]


class BestEpochSaved(Event):
    """Two checkpoints were stored by which the epoch of a trial's best evaluation can be repeated.

    Written after the end of the trial, so that no better evaluation follows.
    """

    trial: str
    epoch: Annotated[int, Field(ge=1)]
    start_checkpoint: SavedFile
    """The checkpoint at the start of the epoch: weights and the optimizer's state."""
    end_checkpoint: SavedFile
    """The weights that were evaluated at the end of the epoch."""


class BestEpochDeleted(Event):
    """The two checkpoints of a trial's best epoch were deleted to free space."""

    trial: str


class CheckpointDeleted(Event):
    """A trial's trained weights were deleted; it can no longer be a parent."""

    trial: str


class StepTimes(Event):
    """The time breakdown of a trial's training steps on a replica of several ranks.

    Wall seconds of all steps together, as the mean over the ranks.
    """

    trial: str
    collective: str
    ranks: Annotated[int, Field(ge=2)]
    steps: Number
    seconds: dict[StepPart, Time]


class ProposalRejected(Event):
    """A candidate could not be loaded; no trial will use it."""

    proposal: str
    reason: str
