"""The peak of one rank's device, measured in the rank's own process before it trains."""

from __future__ import annotations

import importlib
import time

from aiperf_hpc.config import RunConfig
from aiperf_hpc.replica.engines.peak_timing import first_line, kernels_of, sweep
from aiperf_hpc.replica.engines.simulated import SimulatedEngine
from aiperf_hpc.trial import DevicePeak

KERNELS = ("matrix product", "convolution")
"""Those of ``aiperf peaks`` whose rates are operations a second."""


def rank_peak(config: RunConfig, cores: int, device: int) -> DevicePeak | None:
    """Measure what a rank's device computes in a second, in the precision of the training.

    The engine was loaded before, so that frameworks have the threads and devices that it set.

    Args:
        config: the run's; ``peak_seconds`` says for how long.
        cores: logical CPUs of this rank.
        device: which of the host's accelerators is this rank's.

    Returns:
        What was measured; None where the run is not to measure, or its engine computes nothing.
    """
    if not config.peak_seconds or config.engine.name == SimulatedEngine.name:
        return None
    engine = f"aiperf_hpc.replica.engines.{config.engine.name}"
    kernels = importlib.import_module(f"{engine}.peak_kernels")
    begun = time.monotonic()
    rates: dict[str, float] = {}
    absent: dict[str, str] = {}
    with kernels.device_of_rank(config.engine.device, device, cores) as found:
        precision = kernels.used_precision(found, config.training.precision)
        for kernel, of, makes in kernels_of(found):
            if kernel not in KERNELS or of != precision:
                continue
            try:
                each = sweep(makes, found.finish, config.peak_seconds / len(KERNELS))
                rates[kernel] = max(rate for size in each for rate in size.rates)
            except kernels.FAILURES as error:
                absent[kernel] = first_line(error)
            except ValueError:  # There was no size.
                absent[kernel] = "too little memory is free"
    return DevicePeak(
        device=found.name,
        model=found.model,
        threads=found.threads,
        precision=precision,
        rates=rates,
        absent=absent,
        seconds=time.monotonic() - begun,
    )
