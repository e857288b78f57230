"""Checks of re-executed values, and their tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from aiperf_hpc.trial import Value

FEWER_STEPS: Final = 0.1
"""Maximum fraction of the repeated steps that a record may lack, if any may differ."""
LEAST_LOSS: Final = 0.1
"""Minimum loss to which relative tolerances refer: near zero, a fraction of the loss itself would
allow no difference."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed differences between recorded and re-executed values."""

    flips: float
    """Fraction of samples whose predicted class may change because two classes are close."""
    loss: float
    """Relative tolerance of the validation loss of the same weights."""
    batch_loss: float
    """Relative tolerance of that of some batches."""
    trained_loss: float
    """Relative tolerance of the mean loss of a training epoch."""
    trained_deviations: float
    """Tolerance of the quality after a training epoch, in standard deviations of the sample."""
    train_losses: tuple[float, ...]
    """Relative tolerances of the first intervals' training losses; others are not compared."""
    movement: float
    """Relative tolerance of the distance that the weights move in a training epoch."""
    kernels: float
    """Relative tolerance of the kernels' median distance, which random differences between single
    arrays hardly change."""
    apart: float | None = None
    """Maximum distance between recorded and repeated weights, as a fraction of their movement."""
    steps: int = 0
    """Number of steps that an optimizer may leave out because gradients are not finite.

    Unmeasured. A repeated epoch begins with the initial loss scale, 2^16, which each of these steps
    halves, while the recorded one has usually reached its own. So the record may have this many
    steps more, but only ``FEWER_STEPS`` fewer.
    """

    @property
    def first(self) -> Tolerance:
        """The tolerance for the first epoch of a trial, in which rounding errors grow fastest."""
        one, two, four = self.train_losses
        losses = (one, two, 10.0 * four)
        return replace(self, train_losses=losses, movement=FIRST_MOVEMENT, kernels=FIRST_MOVEMENT)

    @property
    def dropping(self) -> Tolerance:
        """The tolerance for a network with dropout, whose random choices differ."""
        parted = {**_PARTED, "movement": DROPOUT_MOVEMENT, "kernels": DROPOUT_MOVEMENT}
        return replace(self, train_losses=(), apart=None, **parted)

    def samples(self, samples: int) -> int:
        """Return the number of samples whose predicted class may change."""
        return math.ceil(self.flips * samples)


INTERVALS: Final = 64
"""Number of intervals, more than any epoch has."""
EXACT: Final = Tolerance(
    flips=0.0,
    loss=1e-6,
    batch_loss=1e-5,
    trained_loss=0.02,
    trained_deviations=2.0,
    train_losses=(1e-3,) * INTERVALS,
    movement=0.01,
    kernels=0.01,
    apart=0.01,
)
"""Tolerance on the CPU with the same framework, processor and number of threads: the same code adds
up in the same order, so that all values are equal to the recorded digits. Earlier versions weighted
a smaller last batch in the mean training loss by its samples or as a step."""
_PARTED: Final[dict[str, Any]] = {
    "trained_loss": 0.10,
    "trained_deviations": 5.0,
    "movement": 0.08,
    "kernels": 0.05,
}
"""Tolerance of an epoch trained twice from the same state: both diverge from the first step on by
rounding or dropout, most of all in the first epoch of a trial."""
FIRST_MOVEMENT: Final = 0.3
DROPOUT_MOVEMENT: Final = 0.2
_HALF: Final = Tolerance(
    flips=0.002, loss=1e-2, batch_loss=1e-2, train_losses=(1e-2, 1.5e-2, 1.5e-2), **_PARTED
)
ROUNDED: Final = {
    "fp32": Tolerance(
        flips=0.0002,
        loss=1e-4,
        batch_loss=3e-4,
        train_losses=(1e-4, 1e-3, 3e-3),
        **{**_PARTED, "kernels": 0.02},
    ),
    "bf16": _HALF,
    "fp16": replace(_HALF, steps=16, kernels=_HALF.movement),
}
"""Tolerance in all other cases, by precision: additions in another order. This applies also to the
same accelerator, where libraries choose the currently fastest kernels."""


class Verdict(StrEnum):
    """Result of a check, or of all checks of a trial."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_COMPARED = "not compared"
    NOT_EXECUTABLE = "not re-executable"


class Check(Value):
    """A recorded value compared with its re-execution."""

    name: str
    recorded: float | int | None
    reexecuted: float | int | None
    tolerance: str
    """Description of the tolerance, or the reason why nothing was compared."""
    verdict: Verdict


def relative(what: str, recorded: float, again: float, share: float) -> Check:
    """Return the check of a loss or quality with a relative tolerance."""
    most = share * max(abs(recorded), LEAST_LOSS)
    return compare(what, recorded, again, most, f"{100.0 * share:g}%")


def compare(what: str, recorded: float, again: float, most: float, tolerance: str) -> Check:
    """Return the check of two values that may differ by ``most``."""
    right = math.isfinite(again - recorded) and abs(again - recorded) <= most
    return judged(what, recorded, again, tolerance, right)


def judged(
    what: str, recorded: float | None, again: float | None, tolerance: str, right: bool | None
) -> Check:
    """Return a check; ``right`` is None if the values were not compared."""
    verdict = Verdict.NOT_COMPARED
    if right is not None:
        verdict = Verdict.PASSED if right else Verdict.FAILED
    return Check(
        name=what, recorded=recorded, reexecuted=again, tolerance=tolerance, verdict=verdict
    )
