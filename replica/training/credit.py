"""Credit for samples: only those that the network has executed."""

from __future__ import annotations

from aiperf_hpc.errors import NonFiniteLossError
from aiperf_hpc.morphism.weights.weight_file import Predictions
from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.engines.base import EvaluationSums, Network
from aiperf_hpc.run.records import Evaluated, Progress


class TrialStopped(Exception):  # noqa: N818 -- not an error: the run is ending
    """Raised to end the trial immediately."""


class _Credit:
    """Credits samples once the network has executed them, every few seconds and at the end.

    Steps may run asynchronously, so submitted samples count as executed only after the network
    was drained. Samples of steps that ended in an engine error are not credited, because it is
    unknown whether they were executed; samples that led to a non-finite loss are.
    """

    def __init__(self, context: ReplicaContext, network: Network, trial: str, epoch: int) -> None:
        self._journal = context.journal
        self._clock = context.clock
        self._every = context.config.journal.progress_interval_seconds
        self._network = network
        self._trial = trial
        self._epoch = epoch
        self._pending = 0
        self._recorded = self._clock.monotonic()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or kind is TrialStopped:
            self._flush()

    def executed(self, samples: int) -> None:
        """Count samples submitted to the network."""
        self._pending += samples
        if self._clock.monotonic() - self._recorded >= self._every:
            self._flush()

    def _flush(self) -> None:
        """Wait for the network and credit the samples that it executed."""
        try:
            self._drain(self._pending)
        except NonFiniteLossError:
            self._record()
            raise
        self._record()

    def _record(self) -> None:
        self._recorded = self._clock.monotonic()
        if self._pending:
            self._journal.append(self._progress(self._pending))
            self._pending = 0

    def _drain(self, samples: int) -> None:
        raise NotImplementedError

    def _progress(self, samples: int) -> Progress:
        raise NotImplementedError


class TrainingCredit(_Credit):
    """Credits training samples and accumulates the epoch's mean loss."""

    _loss_sum, _samples = 0.0, 0

    @property
    def mean_loss(self) -> float:
        return self._loss_sum / self._samples

    def _drain(self, samples: int) -> None:
        self._loss_sum += self._network.drain_training() * samples
        self._samples += samples

    def _progress(self, samples: int) -> Progress:
        return Progress(
            trial=self._trial, epoch=self._epoch, train_samples=samples, validation_samples=0
        )


class EvaluationCredit(_Credit):
    """Credits validation samples and accumulates the evaluation's results."""

    def __init__(
        self,
        context: ReplicaContext,
        network: Network,
        trial: str,
        epoch: int,
        metric: QualityMetric,
    ) -> None:
        super().__init__(context, network, trial, epoch)
        self._metric = metric
        self._total = EvaluationSums()

    def evaluated(self, learning_rate: float, train_loss: float) -> Evaluated:
        """Return the record of the complete evaluation, with its quality."""
        return Evaluated(
            trial=self._trial,
            epoch=self._epoch,
            learning_rate=learning_rate,
            train_loss=train_loss,
            validation_loss=self._total.mean_loss,
            metric=self._metric.name,
            sums=self._total.sums(self._metric),
            samples=self._total.samples,
        )

    @property
    def predictions(self) -> Predictions | None:
        """Predicted class of every sample; None if the objective does not need them."""
        classes = self._total.predictions
        return None if classes is None else Predictions(self._trial, self._epoch, classes)

    def _drain(self, samples: int) -> None:
        self._total = self._total.merged(self._network.drain_evaluation(), self._metric)

    def _progress(self, samples: int) -> Progress:
        return Progress(
            trial=self._trial, epoch=self._epoch, train_samples=0, validation_samples=samples
        )
