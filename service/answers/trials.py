"""Trials: some of many, and one with its learning curve and its layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from aiperf_hpc.graph import Graph
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.trial_status import TrialStatus, epochs_trained
from aiperf_hpc.run.history import Trial
from aiperf_hpc.service.answers.base import Answer, Page, PageQuestion
from aiperf_hpc.service.problem import not_found
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TimePhase, TrialState

UNDER_WAY = (TrialState.COMPILING, TrialState.TRAINING)
"""The states of trials without an end."""


class TrialOrder(StrEnum):
    """By what trials are ordered."""

    STARTED = "started"
    QUALITY = "quality"
    EPOCHS = "epochs"
    OPERATIONS = "operations"
    PARAMETERS = "parameters"
    REPLICA = "replica"
    ROUND = "round"


_ORDERS: Final[dict[TrialOrder, Callable[[Trial], Any]]] = {
    TrialOrder.STARTED: lambda trial: trial.started_utc,
    TrialOrder.QUALITY: lambda trial: trial.best.objective_value if trial.best else -math.inf,
    TrialOrder.EPOCHS: lambda trial: len(trial.evaluations),
    TrialOrder.OPERATIONS: lambda trial: _operations(trial),
    TrialOrder.PARAMETERS: lambda trial: trial.started.parameters,
    TrialOrder.REPLICA: lambda trial: (len(trial.replica), trial.replica),
    TrialOrder.ROUND: lambda trial: trial.started.round,
}


class Trials(Page):
    """Some of the trials that match."""

    trials: tuple[TrialStatus, ...]
    """The trials, in the requested order."""


class TrialsQuestion(PageQuestion):
    """Return some of the trials: filtered, sorted, and by pages."""

    state: TrialState | None = None
    """Those in a state."""
    replica: str | None = Field(None, examples=["r0"])
    """Those of one replica alone."""
    phase: RoundPhase | None = None
    """Those of a phase."""
    graph: str | None = None
    """Those of a graph, by its hash."""
    parent: str | None = None
    """Those grown from a trial."""
    sort: TrialOrder = TrialOrder.STARTED
    """The order of the trials."""
    descending: bool = False
    """The greatest first."""

    def __call__(self, view: RunView) -> Trials:
        found = [trial for trial in view.ordered_trials() if self._matches(trial)]
        if self.sort is not TrialOrder.STARTED or self.descending:
            found.sort(key=_ORDERS[self.sort], reverse=self.descending)
        page = tuple(view.trial_statuses(found[self.offset : self.offset + self.limit]))
        return Trials(total=len(found), offset=self.offset, limit=self.limit, trials=page)

    def _matches(self, trial: Trial) -> bool:
        started = trial.started
        return (
            (self.state is None or trial.state == self.state)
            and (self.replica is None or trial.replica == self.replica)
            and (self.phase is None or started.phase == self.phase)
            and (self.graph is None or started.graph == self.graph)
            and (self.parent is None or started.parent == self.parent)
        )


class TrialProgress(Answer):
    """How far a trial is."""

    trial: TrialStatus
    """The trial as in a list of trials."""
    epoch: int
    """The epoch that it trains, counted from 1."""
    epoch_share: float
    """The share of that epoch's training samples that were executed, from 0 to 1."""
    left_seconds: float | None
    """Seconds to its epoch limit, at its speed so far; less where it stops early. Null before its
    first samples."""


class InFlight(Page):
    """Some of the trials that are under way, the earliest first."""

    trials: tuple[TrialProgress, ...]
    """The trials."""


class InFlightQuestion(PageQuestion):
    """Return some of the trials that are under way: how far each is, and its time left."""

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
    left = None
    if passed > 0.0 and began is not None:
        spent = trial.started_utc + status.seconds - began
        left = max(0.0, spent) / passed * max(0.0, limit - trained.total)
    return TrialProgress(
        trial=status,
        epoch=min(trained.evaluated + 1, limit),
        epoch_share=trained.share,
        left_seconds=left,
    )


class CurvePoint(Answer):
    """A complete evaluation after an epoch of training."""

    epoch: int
    """The epoch, counted from 1."""
    elapsed_seconds: float
    """Seconds from the run's start to the evaluation's end."""
    validation_loss: float
    """The mean loss over the validation samples."""
    quality: float
    """The quality by the run's measure."""
    error: float | None
    """The share of validation samples that are wrong; null where the measure is no share."""


class Layer(Answer):
    """A layer of a network, with its cost for one sample."""

    name: str
    """The layer's name in its network."""
    kind: str
    """What kind of layer it is."""
    inputs: tuple[str, ...]
    """The names of the layers that it reads."""
    output: tuple[int, ...]
    """The shape of what it gives, without the samples' axis."""
    parameters: int
    """How many numbers of it are trained."""
    forward_operations: int
    """Analytical operations of its forward pass for one sample."""
    backward_operations: int
    """Analytical operations of its backward pass for one sample, the update included."""
    inserted: bool
    """Whether a morphism put it in."""


class TrialDetail(Answer):
    """One trial with its learning curve and its network."""

    trial: TrialStatus
    """The trial as in a list of trials."""
    hyperparameters: Hyperparameters
    """What it was really trained with."""
    seed: int
    """The seed of its random choices."""
    resumes: str | None
    """The interrupted trial that this one resumes."""
    children: tuple[str, ...]
    """The trials whose networks were grown from this one's, in order of their start."""
    notes: tuple[str, ...]
    """What its replica noted when it was planned."""
    curve: tuple[CurvePoint, ...]
    """Its complete evaluations in order."""
    seconds: dict[TimePhase, float]
    """Seconds of its trainer by what they were spent on; empty until it is over."""
    layers: tuple[Layer, ...]
    """The layers of its network in topological order."""


@dataclass(frozen=True, slots=True)
class TrialQuestion:
    """The question for one trial."""

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
    """Return the operations that a trial's samples are credited with."""
    started = trial.started
    return (
        trial.train_samples * started.train_operations
        + trial.validation_samples * started.validation_operations
    )
