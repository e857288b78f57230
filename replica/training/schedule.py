"""The learning rate of every training step.

A schedule is a pure function of the step and the validation losses so far, so a resumed trial has
exactly the rates of an uninterrupted one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiperf_hpc.trial import Hyperparameters, ScheduleSettings


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rates of one trial."""

    used: Hyperparameters
    steps: int
    """The number of steps of an epoch."""
    epochs: int
    """Epoch limit of the trial, which the schedule spans."""

    @property
    def peak(self) -> float:
        """The peak learning rate.

        It scales linearly with the batch size (Goyal et al. 2017, section 2.1) if the schedule has
        a base batch size.
        """
        used, base = self.used, self.used.schedule.base_batch_size
        return used.learning_rate if base is None else used.learning_rate * used.batch_size / base

    @property
    def warmup(self) -> float:
        """The number of steps of the warm-up."""
        settings = self.used.schedule
        return settings.warmup_steps or settings.warmup_epochs * self.steps

    def rate(self, step: int, losses: Sequence[float]) -> float:
        """Return the learning rate of a step.

        Schedules after the warm-up count from the trial's first step too.

        Args:
            step: index of the step, from 0 over all epochs.
            losses: validation loss after each previous epoch.
        """
        settings, place = self.used.schedule, step
        if settings.interval == "epoch":
            place -= step % self.steps
        if place < self.warmup:
            start = settings.warmup_start_factor
            return self.peak * (start + (1.0 - start) * place / self.warmup)
        return self.peak * _SHARES[settings.name](self, place, losses)

    @property
    def total(self) -> int:
        """The number of all steps."""
        return self.steps * self.epochs


def _constant(schedule: Schedule, step: int, losses: Sequence[float]) -> float:
    return 1.0


def _linear(schedule: Schedule, step: int, losses: Sequence[float]) -> float:
    """Linear decay to zero after the last step (Ren et al. 2021)."""
    return 1.0 - step / schedule.total


def _polynomial(schedule: Schedule, step: int, losses: Sequence[float]) -> float:
    settings = schedule.used.schedule
    left: float = (1.0 - step / schedule.total) ** settings.power
    return settings.end_factor + (1.0 - settings.end_factor) * left


def _cosine(schedule: Schedule, step: int, losses: Sequence[float]) -> float:
    """Cosine decay without restarts (Loshchilov and Hutter 2017, equation 5).

    If it is shorter than the trial, the rate rises again afterwards, as in PyTorch.
    """
    end, wave = schedule.used.schedule.end_factor, schedule.used.schedule.decay_steps
    share = step / schedule.total if wave is None else (step - schedule.warmup) / wave
    return end + (1.0 - end) * (1.0 + math.cos(math.pi * share)) / 2.0


def _multi_step(schedule: Schedule, step: int, losses: Sequence[float]) -> float:
    """Step decay: a factor of the peak after each milestone, or one more power of ``factor``."""
    settings = schedule.used.schedule
    done = step if settings.milestone_unit == "step" else step // schedule.steps
    passed = bisect_right(settings.milestones, done)
    if settings.factors:
        return (1.0, *settings.factors)[passed]
    return float(settings.factor**passed)


def _plateau(schedule: Schedule, step: int, losses: Sequence[float]) -> float:
    settings = schedule.used.schedule
    return max(settings.end_factor, float(settings.factor ** _plateaus(settings, losses)))


def _plateaus(settings: ScheduleSettings, losses: Sequence[float]) -> int:
    """Return the number of reductions: plateaus of the loss longer than ``patience``."""
    best, waited, found = math.inf, 0, 0
    for loss in losses:
        if settings.threshold_mode == "relative":
            wanted = best * (1.0 - settings.threshold)
        else:
            wanted = best - settings.threshold
        if loss < wanted:
            best, waited = loss, 0
        else:
            waited += 1
        if waited > settings.patience:
            found, waited = found + 1, 0
    return found


_SHARES: dict[str, Callable[[Schedule, int, Sequence[float]], float]] = {
    "constant": _constant,
    "linear": _linear,
    "polynomial": _polynomial,
    "multi_step": _multi_step,
    "cosine": _cosine,
    "plateau": _plateau,
}
"""Learning rate after the warm-up as a fraction of the peak, by schedule."""
