"""The roofline model and its extensions: what a machine lets a workload attain, and what limits it.

Williams, Waterman and Patterson 2009 ("Roofline: an insightful visual performance model", CACM
52(4)) bound the rate of a kernel by the machine's peak and by its memory's bandwidth times the
operations that the kernel does for each byte. MLPerf HPC (Farrell et al. 2021, outlook) extends
that to the network and to storage, each with an intensity of its own. Every bound supposes that
all of a workload's moving and computing goes on at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

COMPUTE, MEMORY, NETWORK, STORAGE = "compute", "memory", "network", "storage"


class Bound(NamedTuple):
    """What bytes of one kind allow."""

    name: str
    intensity: float
    """Operations for each byte."""
    bandwidth: float
    """Bytes a second."""

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.intensity * self.bandwidth


class Attainable(NamedTuple):
    """The highest rate that all bounds allow."""

    rate: float
    """Operations a second."""
    bound: str
    """What is reached first: ``compute``, or a bound's name."""


def attainable(peak: float, bounds: Sequence[Bound] = ()) -> Attainable:
    """Return min(peak, intensity x bandwidth of each bound) and which of them it is.

    Args:
        peak: operations a second.
        bounds: the limits of each kind of bytes.
    """
    rates = [Attainable(peak, COMPUTE), *(Attainable(b.rate, b.name) for b in bounds)]
    return min(rates, key=lambda found: found.rate)


def steps_of(samples: int, batch_size: int, epoch_samples: int) -> int:
    """Return the steps of so many samples in batches; the last one of an epoch may be smaller."""
    epochs, rest = divmod(samples, epoch_samples)
    return epochs * -(-epoch_samples // batch_size) + -(-rest // batch_size)
