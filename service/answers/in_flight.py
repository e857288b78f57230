"""Trials that are under way: how far each is, and how long it will last."""

from __future__ import annotations

from dataclasses import dataclass

from aiperf_hpc.results.views.epochs_trained import epochs_trained
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.trial_status import TrialStatus
from aiperf_hpc.run.history import Trial
from aiperf_hpc.service.answers.base import Answer, Page
from aiperf_hpc.trial import TrialState

UNDER_WAY = (TrialState.COMPILING, TrialState.TRAINING)
"""The states of trials without an end."""


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


@dataclass(frozen=True, slots=True)
class InFlightQuestion:
    """The question for some of the trials that are under way."""

    limit: int = 100
    offset: int = 0

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
