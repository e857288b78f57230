"""The trials and candidates of a run, as its records describe them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from aiperf_hpc.objective import QUALITY_METRICS, QualityMetric, Sums
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import FIRST, Incarnation
from aiperf_hpc.trial import TimePhase, TrialState


class Evaluation(NamedTuple):
    """A complete evaluation and when it ended, UTC seconds."""

    utc: float
    trial: str
    epoch: int
    validation_loss: float
    quality_metric: QualityMetric
    sums: Sums
    samples: int
    quality: float
    """The quality by the run's metric."""
    objective_value: float
    """Objective value to maximize: the quality, or its negative if lower is better."""
    train_loss: float = math.nan
    """The mean loss of the training of its epoch."""

    @classmethod
    def of(cls, utc: float, event: records.Evaluated) -> Evaluation:
        """Return the evaluation of a record."""
        metric = QUALITY_METRICS[event.metric]
        quality = metric.quality(event.sums, event.samples)
        return cls(
            utc,
            event.trial,
            event.epoch,
            event.validation_loss,
            metric,
            event.sums,
            event.samples,
            quality,
            metric.objective_value(quality),
            event.train_loss,
        )

    @property
    def error(self) -> float | None:
        """The fraction of wrong samples; None if the metric is not a fraction of samples."""
        error = self.quality_metric.error
        return None if error is None else error(self.sums, self.samples)

    @property
    def regulated_error(self) -> float | None:
        """The error for the regulated score, no less than the samples can show."""
        return self.quality_metric.regulated_error(self.sums, self.samples)

    def beats(self, other: Evaluation | None) -> bool:
        """Return whether its quality is better, or as good and it is earlier."""
        if other is None or self.objective_value != other.objective_value:
            return other is None or self.objective_value > other.objective_value
        return (self.utc, self.trial, self.epoch) < (other.utc, other.trial, other.epoch)


@dataclass(slots=True)
class Trial:
    """The history of one trial."""

    replica: str
    started: records.TrialStarted
    started_utc: float
    state: TrialState = TrialState.COMPILING
    training_utc: float | None = None
    ended: records.TrialEnded | None = None
    ended_utc: float | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    best: Evaluation | None = None
    """The evaluation with the best quality, the earliest of equals."""
    train_samples: int = 0
    validation_samples: int = 0
    has_checkpoint: bool = False
    predictions: records.PredictionsSaved | None = None
    """The record of the file of its predictions, if they are stored."""
    best_epoch: records.BestEpochSaved | None = None
    """The record of the checkpoints of its best epoch, while they are stored."""
    incarnation: Incarnation = FIRST
    interrupted: str = ""
    """The reason for which it was interrupted and never ends itself."""
    seconds: dict[TimePhase, float] = field(default_factory=dict)
    """Its trainer's seconds by phase; empty until it is over."""

    @property
    def id(self) -> str:
        return self.started.trial

    @property
    def objective_value(self) -> float | None:
        """The objective value for the search: the predicted accuracy or, if none was predicted, the
        best observed quality; None if nothing was evaluated."""
        best = self.best
        if best is None:
            return None
        predicted = self.ended.predicted_accuracy if self.ended else None
        return best.objective_value if predicted is None else predicted

    @property
    def reason(self) -> str:
        return self.ended.reason if self.ended else self.interrupted


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that a search worker stored."""

    utc: float
    replica: str
    proposed: records.Proposed

    @property
    def id(self) -> str:
        return self.proposed.proposal
