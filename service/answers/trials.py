"""Trials: paginated lists, and single trials with their learning curve and layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field

from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.trials import TrialStatus, epochs_trained
from aiperf_hpc.run.history import Trial
from aiperf_hpc.service.answers.base import Answer, Page, PageQuestion
from aiperf_hpc.service.problem import not_found
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TimePhase, TrialState
from aiperf_hpc.untrusted.bounds import in_words

UNDER_WAY = (TrialState.COMPILING, TrialState.TRAINING)
"""States of trials that have not ended."""


class TrialOrder(StrEnum):
    """Sort key of trials."""

    STARTED = "started"
    QUALITY = "quality"
    EPOCHS = "epochs"
    OPERATIONS = "operations"
    PARAMETERS = "parameters"
    REPLICA = "replica"
    ROUND = "round"
    STATE = "state"
    DEPTH = "depth"
    SECONDS = "seconds"
    BATCH_SIZE = "batch_size"
    KERNEL_SIZE = "kernel_size"
    LEARNING_RATE = "learning_rate"
    MOMENTUM = "momentum"
    WEIGHT_DECAY = "weight_decay"


_RANGED: Final = (*Hyperparameters.model_fields, "parameters", "depth", "quality")
_NUMBER = r"(-?\d{1,30}(\.\d{1,30})?(e[+-]?\d{1,2})?)?"
RANGE: Final = in_words(
    f"^({'|'.join(_RANGED)}):{_NUMBER}:{_NUMBER}$",
    "a hyperparameter, 'parameters', 'depth' or 'quality', with a minimum and a maximum, as in "
    "learning_rate:0.001:0.1 or depth:20:",
)
"""Pattern of a range of values; the minimum or the maximum may be empty."""


class _Range(NamedTuple):
    """Limits of a hyperparameter or another value of a trial."""

    name: str
    least: float
    most: float

    @classmethod
    def parse(cls, text: str) -> Self:
        name, least, most = text.split(":")
        return cls(name, float(least or -math.inf), float(most or math.inf))

    def includes(self, trial: Trial) -> bool:
        """Return whether the trial has a number in the range."""
        if self.name == "quality":
            value = trial.best.quality if trial.best else None
        else:
            started = trial.started
            value = getattr(started, self.name, getattr(started.hyperparameters, self.name, None))
        return isinstance(value, int | float) and self.least <= value <= self.most


_ORDERS: Final[dict[TrialOrder, Callable[[Trial], Any]]] = {
    TrialOrder.STARTED: lambda trial: trial.started_utc,
    TrialOrder.QUALITY: lambda trial: trial.best.objective_value if trial.best else -math.inf,
    TrialOrder.EPOCHS: lambda trial: len(trial.evaluations),
    TrialOrder.OPERATIONS: lambda trial: _operations(trial),
    TrialOrder.PARAMETERS: lambda trial: trial.started.parameters,
    TrialOrder.REPLICA: lambda trial: (len(trial.replica), trial.replica),
    TrialOrder.ROUND: lambda trial: trial.started.round,
    TrialOrder.STATE: lambda trial: trial.state,
    TrialOrder.DEPTH: lambda trial: trial.started.depth,
}


def _order(key: TrialOrder, until: float) -> Callable[[Trial], Any]:
    """Return the sort key of trials, whose seconds are counted until a time; keys without a row
    above are hyperparameters."""
    if key is TrialOrder.SECONDS:
        return lambda trial: min(trial.ended_utc or until, until) - trial.started_utc
    return _ORDERS.get(key) or (lambda trial: getattr(trial.started.hyperparameters, key) or 0.0)


class TrialRow(TrialStatus):
    """A trial with its hyperparameters."""

    hyperparameters: Hyperparameters
    """Hyperparameters used in the training."""


class Trials(Page):
    """A page of the matching trials."""

    trials: tuple[TrialRow, ...]
    """Trials in the requested order."""
    goal: Literal["maximize", "minimize"]
    """Whether a higher or a lower quality is better."""


class TrialsQuestion(PageQuestion):
    """Return a page of the trials, filtered and sorted."""

    state: TrialState | None = None
    """Only trials in this state."""
    replica: str | None = Field(None, examples=["r0"])
    """Only trials of this replica."""
    round: int | None = None
    """Only trials of this round."""
    phase: RoundPhase | None = None
    """Only trials of this phase."""
    graph: str | None = None
    """Only trials of the graph with this hash."""
    parent: str | None = None
    """Only trials whose parent is this trial."""
    range: tuple[Annotated[str, Field(pattern=RANGE)], ...] = Field(
        (), max_length=len(_RANGED), examples=[["learning_rate:0.001:0.1"]]
    )
    """Only trials with values in these ranges: name, minimum and maximum; either limit may be
    empty."""
    sort: TrialOrder = TrialOrder.STARTED
    """Sort key of the trials."""
    descending: bool = False
    """Sort in descending order."""

    def __call__(self, view: RunView) -> Trials:
        ranges = [_Range.parse(text) for text in self.range]
        found = [
            trial
            for trial in view.ordered_trials()
            if self._matches(trial) and all(each.includes(trial) for each in ranges)
        ]
        if self.sort is not TrialOrder.STARTED or self.descending:
            found.sort(key=_order(self.sort, view.until), reverse=self.descending)
        page = found[self.offset : self.offset + self.limit]
        rows = zip(page, view.trial_statuses(page), strict=True)
        return Trials(
            total=len(found),
            offset=self.offset,
            limit=self.limit,
            trials=tuple(
                TrialRow(**dict(status), hyperparameters=trial.started.hyperparameters)
                for trial, status in rows
            ),
            goal=view.quality_metric.goal,
        )

    def _matches(self, trial: Trial) -> bool:
        started = trial.started
        return (
            (self.state is None or trial.state == self.state)
            and (self.replica is None or trial.replica == self.replica)
            and (self.round is None or started.round == self.round)
            and (self.phase is None or started.phase == self.phase)
            and (self.graph is None or started.graph == self.graph)
            and (self.parent is None or started.parent == self.parent)
        )


class TrialProgress(Answer):
    """Progress of a trial."""

    trial: TrialStatus
    """Trial as in a list of trials."""
    epoch: int
    """Current epoch, counted from 1."""
    epoch_fraction: float
    """Fraction of the current epoch's training samples that were executed, from 0 to 1."""
    remaining_seconds: float | None
    """Estimated seconds to the trial's epoch limit at its speed so far, or to the end of the run;
    early stopping shortens them. Null before the first samples."""


class InFlight(Page):
    """A part of the trials in progress, earliest first."""

    trials: tuple[TrialProgress, ...]
    """Trials in progress."""


class InFlightQuestion(PageQuestion):
    """Return the progress and the remaining time of trials that have not ended."""

    def __call__(self, view: RunView) -> InFlight:
        open_ = [trial for trial in view.ordered_trials() if trial.state in UNDER_WAY]
        page = open_[self.offset : self.offset + self.limit]
        statuses = view.trial_statuses(page)
        return InFlight(
            total=len(open_),
            offset=self.offset,
            limit=self.limit,
            trials=tuple(
                _progress(view, trial, status) for trial, status in zip(page, statuses, strict=True)
            ),
        )


def _progress(view: RunView, trial: Trial, status: TrialStatus) -> TrialProgress:
    trained = epochs_trained(trial, view.history.replicas[trial.replica].dataset)
    passed = trained.total - (trial.started.first_epoch - 1)
    limit, began = trial.started.epoch_limit, trial.training_utc
    left, start = None, view.history.start_utc
    if passed > 0.0 and began is not None:
        now = trial.started_utc + status.seconds
        left = max(0.0, now - began) / passed * max(0.0, limit - trained.total)
        if start is not None:
            left = min(left, max(0.0, start + 3600.0 * view.manifest.hours - now))
    return TrialProgress(
        trial=status,
        epoch=min(trained.evaluated + 1, limit),
        epoch_fraction=trained.fraction,
        remaining_seconds=left,
    )


class CurvePoint(Answer):
    """A complete evaluation after an epoch of training."""

    epoch: int
    """Epoch, counted from 1."""
    elapsed_seconds: float
    """Seconds from the run's start to the end of the evaluation."""
    validation_loss: float
    """Mean loss over the validation samples."""
    quality: float
    """Quality in the run's metric."""
    error: float | None
    """Fraction of validation samples with a wrong prediction; null if the metric is not a
    fraction."""


class Layer(Answer):
    """A layer of a network, with its cost per sample."""

    name: str
    """Name of the layer in its network."""
    kind: str
    """Kind of the layer."""
    inputs: tuple[str, ...]
    """Names of its input layers."""
    output: tuple[int, ...]
    """Shape of the output without the batch axis."""
    parameters: int
    """Number of trainable parameters."""
    forward_operations: int
    """Analytical operations of the forward pass per sample."""
    backward_operations: int
    """Analytical operations of the backward pass per sample, including the update of the
    weights."""
    inserted: bool
    """Whether a morphism inserted the layer."""


class TrialDetail(Answer):
    """One trial with its learning curve and its network."""

    trial: TrialStatus
    """Trial as in a list of trials."""
    hyperparameters: Hyperparameters
    """Hyperparameters used in the training."""
    seed: int
    """Seed of the trial's random choices."""
    resumes: str | None
    """Interrupted trial that this trial resumes."""
    children: tuple[str, ...]
    """Trials whose parent network is this trial's, in order of their start."""
    notes: tuple[str, ...]
    """Notes of the replica from the planning of the trial."""
    curve: tuple[CurvePoint, ...]
    """Complete evaluations in order."""
    seconds: dict[TimePhase, float]
    """Seconds of the trainer by phase; empty until the trial has ended."""
    layers: tuple[Layer, ...]
    """Layers of the network in topological order."""


@dataclass(frozen=True, slots=True)
class TrialQuestion:
    """Query for one trial."""

    id: str

    def __call__(self, view: RunView) -> TrialDetail:
        trial = view.history.trials.get(self.id)
        if trial is None:
            raise not_found(f"the run has no trial {self.id!r}")
        (status,) = view.trial_statuses([trial])
        started = trial.started
        return TrialDetail(
            **{**TrialDetail.fields_from(started), "trial": status},
            children=tuple(t.id for t in view.ordered_trials() if t.started.parent == self.id),
            curve=_curve(view, trial),
            seconds=dict(trial.seconds),
            layers=layers_of(view.run_graphs.load(started.graph)),
        )


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Return the layers of a graph with their cost, in topological order."""
    counted = count(graph).layers
    return tuple(
        Layer(
            **{**Layer.fields_from(node), **Layer.fields_from(counted[node.name])},
            forward_operations=counted[node.name].operations.forward,
            backward_operations=counted[node.name].operations.backward,
        )
        for node in graph.nodes
    )


def _curve(view: RunView, trial: Trial) -> tuple[CurvePoint, ...]:
    start, end = view.history.origin_utc or trial.started_utc, view.history.end_utc
    return tuple(
        CurvePoint(
            **CurvePoint.fields_from(each),
            elapsed_seconds=each.utc - start,
        )
        for each in trial.evaluations
        if end is None or each.utc <= end
    )


def _operations(trial: Trial) -> int:
    """Return the operations credited per sample of a trial."""
    started = trial.started
    return (
        trial.train_samples * started.train_operations
        + trial.validation_samples * started.validation_operations
    )
