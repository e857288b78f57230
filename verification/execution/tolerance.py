"""How far what is found again may be from what was recorded, and why no nearer.

docs/decisions/execution.md has the measurements that these numbers rest on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

TIME_FACTOR: Final = 2.0
"""An epoch that takes more than so many times what was recorded, on the same device, was not
executed in the time that was recorded; less tells a machine that was busy with something else."""
TIME_SLACK: Final = 10.0
"""Seconds besides: of epochs of a few seconds, what else a machine does is most."""
LEAST_LOSS: Final = 0.1
"""Losses below it may differ by the share of it that they may differ by: near zero a share of the
loss itself is nothing."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What may differ."""

    flips: float
    """Share of the samples whose class may be another: those that two classes come close for."""
    loss: float
    """Of the validation loss of the same weights, relative."""
    trained_loss: float
    """Of the mean loss of a training epoch, relative."""
    trained_deviations: float
    """Of the quality after a training epoch, in deviations of what so many samples can tell."""

    @property
    def parted(self) -> Tolerance:
        """That of a training which parts from the recorded one at its first step."""
        return replace(self, **_PARTED)

    def samples(self, samples: int) -> int:
        """Return how many of so many samples may be of another class."""
        return math.ceil(self.flips * samples)


EXACT: Final = Tolerance(flips=0.0, loss=1e-6, trained_loss=0.02, trained_deviations=2.0)
"""On the CPU, by the same framework, processor and number of threads: the same code adds up in the
same order, so that evaluations are equal to the last digits that a record has. A recorded training
loss is a mean over stretches of some seconds, in which a last, smaller batch weighs by its samples
or as a step."""
_PARTED: Final = {"trained_loss": 0.10, "trained_deviations": 5.0}
"""Of two trainings of one epoch from one state, which part by rounding, or by what a dropout draws,
at the first step and go on to, most of all in a trial's first epochs."""
ROUNDED: Final = {
    "fp32": Tolerance(flips=0.0002, loss=1e-4, **_PARTED),
    "bf16": Tolerance(flips=0.002, loss=1e-2, **_PARTED),
    "fp16": Tolerance(flips=0.002, loss=1e-2, **_PARTED),
}
"""Elsewhere, by precision: another order of additions, and on accelerators also in the same place,
where libraries choose their kernels by what is fastest at the moment."""


def deviation(share: float, samples: int) -> float:
    """Return the standard deviation of a share that so many samples show."""
    share = min(max(share, 1.0 / samples), 1.0 - 1.0 / samples)
    return math.sqrt(share * (1.0 - share) / samples)
