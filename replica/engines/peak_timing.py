"""The peaks of every device of this machine, by one engine's framework.

    python -m aiperf_hpc.replica.engines.peak_timing --engine torch --result peaks.json

Products of matrices and convolutions in each precision, and kernels that move memory, of sizes
that ascend while there is time. Started by ``aiperf peaks``; writes JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aiperf_hpc.extras import ENGINES
from aiperf_hpc.host.machine import available_bytes, last_level_cache_bytes
from aiperf_hpc.replica.engines.peak_work import Images, PeakDevice, Work
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import print_in_any_locale

SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Sides of the matrices."""
IMAGES = (
    Images(8, 64, 32),
    Images(16, 128, 28),
    Images(32, 256, 28),
    Images(64, 512, 28),
    Images(256, 512, 28),
)
SHARE = 6
"""The part of the free memory that one measurement may take."""
CACHES = 4
"""How much larger than the last cache an array is at least, as STREAM demands."""
LEAST_ARRAY = 64 * 2**20
LARGE_ARRAYS = (256 * 2**20, 2**30)
"""Arrays on accelerators, whose caches they do not tell."""
CALL_SECONDS = 0.01
"""What one repetition takes at least: short calls are repeated within it."""
LEAST, MOST = 3, 25
"""Repetitions of a size."""


class Rates(NamedTuple):
    """The rates of the repetitions of one size."""

    work: Work
    rates: list[float]
    """Operations or bytes a second."""
    seconds: float
    """Of one call, the fastest."""


Make = Callable[[], Work]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica.engines.peak_timing")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="for all of it")
    parser.add_argument("--result", type=Path, required=True, help="a file for the JSON")
    options = parser.parse_args(arguments)
    kernels = importlib.import_module(f"aiperf_hpc.replica.engines.{options.engine}.peak_kernels")
    devices: list[PeakDevice] = list(kernels.devices(len(os.sched_getaffinity(0))))
    sweeps, missing = [], []
    each = options.seconds / sum(1 for device in devices for _ in kernels_of(device))
    for device in devices:
        for kernel, precision, makes in kernels_of(device):
            what = {"device": device.name, "kernel": kernel, "precision": precision}
            try:
                found = [_row(rates) for rates in sweep(makes, device.finish, each)]
            except kernels.FAILURES as error:
                missing.append({**what, "reason": first_line(error)})
                continue
            if found:
                left_out = len(makes) - len(found)
                sweeps.append({**what, "readings": found, "left_out": left_out})
            else:
                missing.append({**what, "reason": "too little memory is free"})
    facts = [
        {"name": d.name, "model": d.model, "threads": d.threads} for d in devices
    ]  # fmt: skip
    result = {
        "engine": options.engine, "versions": kernels.VERSIONS, "devices": facts,
        "sweeps": sweeps, "missing": missing,
    }  # fmt: skip
    write_whole(options.result, json.dumps(result))
    return 0


def kernels_of(device: PeakDevice) -> Iterator[tuple[str, str, list[Make]]]:
    """Yield each kernel of a device with its precision, and what makes its sizes, ascending."""
    limit = (device.memory_bytes or available_bytes()) // SHARE
    for precision in device.precisions:
        yield "matrix product", precision, _products(device, precision, limit)
        yield "convolution", precision, _convolutions(device, precision, limit)
    for name, make in device.memory():
        arrays = [size for size in array_bytes(device.threads is not None) if 3 * size <= limit]
        yield name, "fp32", [partial(make, size) for size in arrays]


def _products(device: PeakDevice, precision: str, limit: int) -> list[Make]:
    # Made in fp32, then cast: 4 bytes an element and some.
    sides = [n for n in SIDES if 4 * 4 * n * n <= limit]
    return [partial(device.product, n, precision) for n in sides]


def _convolutions(device: PeakDevice, precision: str, limit: int) -> list[Make]:
    fitting = [i for i in IMAGES if 4 * 4 * i.batch * i.channels * i.side**2 <= limit]
    return [partial(device.convolution, images, precision) for images in fitting]


def array_bytes(on_cpu: bool) -> list[int]:
    """Return the sizes of arrays that no cache holds."""
    if not on_cpu:
        return list(LARGE_ARRAYS)
    least = max(LEAST_ARRAY, CACHES * (last_level_cache_bytes() or 0))
    return [least, 2 * least]


def sweep(makes: Sequence[Make], finish: Callable[[], None], seconds: float) -> Iterator[Rates]:
    """Yield the rates of each size that can be measured in the time; of the first in any case."""
    until = time.perf_counter() + seconds
    before: Rates | None = None
    for number, make in enumerate(makes):
        left = until - time.perf_counter()
        work = make()
        if before is not None:
            call = before.seconds * work.amount / before.work.amount
            if call * (LEAST + 1) > left:
                return
        before = repeat(work, finish, left / (len(makes) - number))
        yield before


def repeat(work: Work, finish: Callable[[], None], seconds: float) -> Rates:
    """Return the rates of calls within some seconds, of a few calls at least."""
    until = time.perf_counter() + seconds
    _timed(work, finish, 1)  # Warms caches, clocks and what frameworks choose at the first call.
    calls = max(1, int(CALL_SECONDS / _timed(work, finish, 1)))
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and time.perf_counter() < until):
        times.append(_timed(work, finish, calls) / calls)
    return Rates(work, [work.amount / taken for taken in times], min(times))


def _timed(work: Work, finish: Callable[[], None], calls: int) -> float:
    finish()
    begun = time.perf_counter()
    for _ in range(calls):
        work.run()
    finish()
    return time.perf_counter() - begun


def _row(found: Rates) -> dict[str, Any]:
    return {
        "size": found.work.size,
        "amount": found.work.amount,
        "median": float(np.median(found.rates)),
        "best": max(found.rates),
        "worst": min(found.rates),
        "repetitions": len(found.rates),
    }


def first_line(error: Exception) -> str:
    """Return the first line of what a framework says is wrong, cut to 200 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


if __name__ == "__main__":
    sys.exit(main())
