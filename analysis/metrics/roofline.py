"""The roofline model and its extensions: attainable performance of a workload, and its limit.

Williams, Waterman and Patterson 2009 ("Roofline: an insightful visual performance model", CACM
52(4)) bound the rate of a kernel by the machine's peak and by its memory bandwidth times the
kernel's operations per byte. MLPerf HPC (Farrell et al. 2021, outlook) extends the model to the
network and to storage, each with its own intensity. Every bound assumes that data movement and
computation of a workload overlap completely.
"""

from __future__ import annotations

from collections.abc import Mapping

COMPUTE, MEMORY, NETWORK, STORAGE = "compute", "memory", "network", "storage"


def attainable(peak: float, bounds: Mapping[str, float]) -> tuple[float, str]:
    """Return the attainable rate and its limit: ``compute`` or the name of a bound.

    Args:
        peak: peak rate, operations per second.
        bounds: intensity x bandwidth of each kind of bytes, operations per second.
    """
    rates = {COMPUTE: peak, **bounds}
    bound = min(rates, key=rates.__getitem__)
    return rates[bound], bound


def steps_of(samples: int, batch_size: int, epoch_samples: int) -> int:
    """Return the steps for a number of samples; the last batch of an epoch may be smaller."""
    epochs, rest = divmod(samples, epoch_samples)
    return epochs * -(-epoch_samples // batch_size) + -(-rest // batch_size)
