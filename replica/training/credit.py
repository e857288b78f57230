"""Credit for samples: only those that the network has executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aiperf_hpc.errors import NonFiniteLossError
from aiperf_hpc.morphism.weights.weight_file import Predictions
from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.engines.base import EvaluationSums, Network
from aiperf_hpc.run.records import Evaluated, Progress


class TrialStopped(Exception):  # noqa: N818 -- not an error: the run is ending
    """Raised to end the trial immediately."""


class IntervalLosses:
    """Mean losses of an epoch's batches, in intervals that end after 1, 2, 4, 8, ... batches.

    Re-execution compares them: rounding errors, which grow during training, are smallest in the
    first intervals.
    """

    def __init__(self) -> None:
        self.pending = 0
        """Number of batches whose loss was not added yet."""
        self._batches = 0
        self._sums: list[list[float]] = []
        """The sum of the losses and of their weights in each interval."""

    def executed(self) -> bool:
        """Count a batch; return whether an interval ends, so that its loss must be added."""
        self.pending += 1
        self._batches += 1
        return self._batches.bit_count() == 1

    def add(self, mean: float, weight: int) -> None:
        """Add the mean loss of the pending batches, with their weight in the mean."""
        interval = (self._batches - 1).bit_length()
        if interval == len(self._sums):
            self._sums.append([0.0, 0.0])
        self._sums[interval][0] += mean * weight
        self._sums[interval][1] += weight
        self.pending = 0

    @property
    def means(self) -> tuple[float, ...]:
        """The mean loss of each interval."""
        return tuple(loss / weight for loss, weight in self._sums)

    @property
    def mean(self) -> float:
        """The mean loss of all batches."""
        loss, weight = map(sum, zip(*self._sums, strict=True))
        return loss / weight


@dataclass(eq=False)
class _Credit:
    """Credits samples once the network has executed them, every few seconds and at the end.

    Steps may run asynchronously, so submitted samples count as executed only after the network
    was drained. Samples of steps that ended in an engine error are not credited, because it is
    unknown whether they were executed; samples that led to a non-finite loss are.
    """

    _samples: ClassVar[str]
    """Field of ``Progress`` with the credited samples."""
    context: ReplicaContext
    network: Network
    trial: str
    """Name of the trial."""
    epoch: int

    def __post_init__(self) -> None:
        self._clock = self.context.clock
        self._every = self.context.config.journal.progress_interval_seconds
        self._pending = 0
        self._recorded = self._clock.monotonic()
        self.losses = IntervalLosses()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or kind is TrialStopped:
            self._flush()

    def executed(self, samples: int) -> None:
        """Count the samples of a batch submitted to the network."""
        self._pending += samples
        interval_ends = self.losses.executed()
        if self._clock.monotonic() - self._recorded >= self._every:
            self._flush()
        elif interval_ends:
            self._wait()

    def _flush(self) -> None:
        """Wait for the network and credit the samples that it executed."""
        self._wait()
        self._record()

    def _wait(self) -> None:
        """Wait for the network; record the samples if their loss is not finite."""
        try:
            self._drain()
        except NonFiniteLossError:
            self._record()
            raise

    def _record(self) -> None:
        self._recorded = self._clock.monotonic()
        if self._pending:
            samples = {"train_samples": 0, "validation_samples": 0, self._samples: self._pending}
            self.context.journal.append(Progress(trial=self.trial, epoch=self.epoch, **samples))
            self._pending = 0

    def _drain(self) -> None:
        raise NotImplementedError


class TrainingCredit(_Credit):
    """Credits training samples and accumulates the epoch's losses, each step with equal weight."""

    _samples = "train_samples"

    def _drain(self) -> None:
        if steps := self.losses.pending:
            self.losses.add(self.network.drain_training(), steps)


@dataclass(eq=False)
class EvaluationCredit(_Credit):
    """Credits validation samples and accumulates the evaluation's results."""

    _samples = "validation_samples"

    metric: QualityMetric

    def __post_init__(self) -> None:
        super().__post_init__()
        self._total = EvaluationSums()

    def evaluated(self, learning_rate: float, train_loss: float) -> Evaluated:
        """Return the record of the complete evaluation, with its quality."""
        return Evaluated(
            trial=self.trial,
            epoch=self.epoch,
            learning_rate=learning_rate,
            train_loss=train_loss,
            validation_loss=self._total.mean_loss,
            metric=self.metric.name,
            sums=self._total.sums(self.metric),
            samples=self._total.samples,
        )

    @property
    def predictions(self) -> Predictions | None:
        """Predicted class of every sample; None if the objective does not need them."""
        classes = self._total.predictions
        return None if classes is None else Predictions(self.trial, self.epoch, classes)

    def _drain(self) -> None:
        part = self.network.drain_evaluation()
        if part.samples:
            self.losses.add(part.mean_loss, part.samples)
            self._total = self._total.merged(part, self.metric)
