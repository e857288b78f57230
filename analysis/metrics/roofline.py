"""The roofline model and its extensions: attainable performance of a workload, and its limit.

Williams, Waterman and Patterson 2009 ("Roofline: an insightful visual performance model", CACM
52(4)) bound the rate of a kernel by the machine's peak and by its memory bandwidth times the
kernel's operations per byte. MLPerf HPC (Farrell et al. 2021, outlook) extends the model to the
network and to storage, each with its own intensity. Every bound assumes that data movement and
computation of a workload overlap completely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

COMPUTE, MEMORY, NETWORK, STORAGE = "compute", "memory", "network", "storage"


class Bound(NamedTuple):
    """Limit by one kind of bytes."""

    name: str
    intensity: float
    """Operations per byte."""
    bandwidth: float
    """Bandwidth, bytes per second."""

    @property
    def rate(self) -> float:
        """Rate at this limit, operations per second."""
        return self.intensity * self.bandwidth


class Attainable(NamedTuple):
    """The highest rate within all bounds."""

    rate: float
    """Attainable rate, operations per second."""
    bound: str
    """The lowest limit: ``compute`` or the name of a bound."""


def attainable(peak: float, bounds: Sequence[Bound] = ()) -> Attainable:
    """Return min(peak, intensity x bandwidth of each bound) and the name of this limit.

    Args:
        peak: peak rate, operations per second.
        bounds: limits by each kind of bytes.
    """
    rates = [Attainable(peak, COMPUTE), *(Attainable(b.rate, b.name) for b in bounds)]
    return min(rates, key=lambda found: found.rate)


def steps_of(samples: int, batch_size: int, epoch_samples: int) -> int:
    """Return the steps for a number of samples; the last batch of an epoch may be smaller."""
    epochs, rest = divmod(samples, epoch_samples)
    return epochs * -(-epoch_samples // batch_size) + -(-rest // batch_size)
