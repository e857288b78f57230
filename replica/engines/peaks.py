"""Peak rates of all devices of this machine, or of one rank's device before training.

    python -m aiperf_hpc.replica.engines.peaks --engine torch --result peaks.json

Measures matrix products and convolutions in each precision, and memory kernels, in ascending sizes
until the time limit. Started by ``aiperf peaks``; writes JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aiperf_hpc.config import RunConfig
from aiperf_hpc.extras import ENGINES
from aiperf_hpc.host.machine import available_bytes, last_level_cache_bytes
from aiperf_hpc.replica.engines.base import first_line
from aiperf_hpc.replica.engines.simulated import SimulatedEngine
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.streams import print_in_any_locale
from aiperf_hpc.trial import DevicePeak


class Work(NamedTuple):
    """A call to measure."""

    size: str
    """Size of the operands, as printed."""
    amount: int
    """Number of operations of one call, or of bytes read and written."""
    run: Callable[[], object]
    """Executes the call, and may return before the device has finished."""


Make = Callable[[], Work]


class Images(NamedTuple):
    """Images of a 3 x 3 convolution with stride 1 and equally many input and output channels."""

    batch: int
    channels: int
    side: int

    @property
    def operations(self) -> int:
        """Operations of the convolution: 2 for each multiply-add, including the padding."""
        return 2 * 9 * self.channels**2 * self.batch * self.side**2

    def __str__(self) -> str:
        return f"{self.batch} x {self.side} x {self.side} x {self.channels}, 3 x 3"


SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Orders of the square matrices."""
IMAGES = (
    Images(8, 64, 32),
    Images(16, 128, 28),
    Images(32, 256, 28),
    Images(64, 512, 28),
    Images(256, 512, 28),
)
MEMORY_PARTS = 6
"""Divisor of the free memory that gives the limit of one measurement."""
CACHES = 4
"""Minimum ratio of an array's size to the last-level cache, as STREAM requires."""
LEAST_ARRAY = 64 * 2**20
LARGE_ARRAYS = (256 * 2**20, 2**30)
"""Sizes in bytes of arrays on accelerators, which do not report their cache sizes."""
CALL_SECONDS = 0.01
"""Minimum seconds of one repetition, which consists of several calls if they are short."""
LEAST, MOST = 3, 25
"""Minimum and maximum number of repetitions per size."""
ELEMENT_BYTES = 4
RANK_KERNELS = ("matrix product", "convolution")
"""Kernels of ``aiperf peaks`` whose rates are operations per second."""
NO_MEMORY = "too little memory is free"


class PeakDevice(ABC):
    """One device of this machine in a framework."""

    arrays: dict[str, int]
    """Number of arrays that each memory kernel reads and writes."""

    def __init__(self, name: str, model: str, threads: int | None, *, has_tf32: bool) -> None:
        self.name = name
        """Name of the device, such as cpu or cuda:0."""
        self.model = model
        self.threads = threads
        """Number of CPU threads, or None for an accelerator."""
        self.precisions = ("fp32", *(("tf32",) if has_tf32 else ()), "bf16", "fp16")

    @property
    def memory_bytes(self) -> int | None:
        """Free bytes of the device's memory, or None if it uses the host's memory."""
        return None

    @abstractmethod
    def allows_tf32(self) -> bool:
        """Return whether the framework is currently allowed to compute fp32 in TF32."""

    @abstractmethod
    def multiply(self, n: int, precision: str) -> Callable[[], object]:
        """Return a function that multiplies two n x n matrices."""

    @abstractmethod
    def convolve(self, images: Images, precision: str) -> Callable[[], object]:
        """Return a function that executes the forward pass of a channels-last convolution."""

    @abstractmethod
    def move(self, kernel: str, elements: int) -> Callable[[], object]:
        """Return a kernel of ``arrays`` for arrays of this many fp32 elements."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until the device has finished all work."""

    def used_precision(self, precision: str) -> str:
        """Return the precision of matrix products in training: tf32 for fp32 if allowed."""
        is_tf32 = precision == "fp32" and "tf32" in self.precisions and self.allows_tf32()
        return "tf32" if is_tf32 else precision

    def product(self, n: int, precision: str) -> Work:
        """Return the product of two n x n matrices, with 2 n^3 operations."""
        return Work(f"{n} x {n}", 2 * n**3, self.multiply(n, precision))

    def convolution(self, images: Images, precision: str) -> Work:
        """Return a convolution of images."""
        return Work(str(images), images.operations, self.convolve(images, precision))

    def movement(self, kernel: str, size: int) -> Work:
        """Return a memory kernel for arrays of ``size`` bytes."""
        run = self.move(kernel, size // ELEMENT_BYTES)
        return Work(f"{size / 2**20:g} MiB", self.arrays[kernel] * size, run)

    def kernels(self) -> Iterator[tuple[str, str, list[Make]]]:
        """Yield each kernel with its precision and functions that create its sizes, ascending."""
        limit = (self.memory_bytes or available_bytes()) // MEMORY_PARTS
        # Operands are created in fp32 and then cast, which needs more than 4 bytes per element.
        sides = [n for n in SIDES if 4 * 4 * n * n <= limit]
        images = [i for i in IMAGES if 4 * 4 * i.batch * i.channels * i.side**2 <= limit]
        for precision in self.precisions:
            yield "matrix product", precision, [partial(self.product, n, precision) for n in sides]
            convolutions: list[Make] = [partial(self.convolution, i, precision) for i in images]
            yield "convolution", precision, convolutions
        sizes = [size for size in array_bytes(self.threads is not None) if 3 * size <= limit]
        for kernel in self.arrays:
            yield kernel, "fp32", [partial(self.movement, kernel, size) for size in sizes]


class Rates(NamedTuple):
    """Rates of the repetitions of one size."""

    work: Work
    rates: list[float]
    """Operations or bytes per second."""
    seconds: float
    """The fastest call."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica.engines.peaks")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="for all of it")
    parser.add_argument("--result", type=Path, required=True, help="a file for the JSON")
    options = parser.parse_args(arguments)
    framework = _framework(options.engine)
    devices: list[PeakDevice] = list(framework.devices(len(os.sched_getaffinity(0))))
    sweeps, missing = [], []
    seconds = options.seconds / sum(1 for device in devices for _ in device.kernels())
    for device in devices:
        for kernel, precision, makes in device.kernels():
            entry = {
                "engine": options.engine, "device": device.name, "kernel": kernel,
                "precision": precision,
            }  # fmt: skip
            found, reason = _measured(device, makes, seconds, framework.FAILURES)
            if reason:
                missing.append({"what": " ".join(entry.values()), "reason": reason})
            else:
                rows = [_row(rates) for rates in found]
                sweeps.append({**entry, "readings": rows, "left_out": len(makes) - len(rows)})
    facts = [
        {"engine": options.engine, "name": d.name, "model": d.model, "threads": d.threads}
        for d in devices
    ]
    result = {
        "versions": framework.VERSIONS, "devices": facts, "sweeps": sweeps, "missing": missing,
    }  # fmt: skip
    write_whole(options.result, json.dumps(result))
    return 0


def _measured(
    device: PeakDevice, makes: Sequence[Make], seconds: float, failures: tuple[type[Exception], ...]
) -> tuple[list[Rates], str]:
    """Return the rates of a kernel's sizes, or the reason why it has none."""
    try:
        found = list(sweep(makes, device.finish, seconds))
    except failures as error:
        return [], first_line(error)[:200]
    return found, "" if found else NO_MEMORY


def _framework(engine: str) -> Any:  # noqa: ANN401 -- a module
    return importlib.import_module(f"aiperf_hpc.replica.engines.{engine}.peak_kernels")


def array_bytes(on_cpu: bool) -> list[int]:
    """Return sizes of arrays that exceed all caches."""
    if not on_cpu:
        return list(LARGE_ARRAYS)
    least = max(LEAST_ARRAY, CACHES * (last_level_cache_bytes() or 0))
    return [least, 2 * least]


def sweep(makes: Sequence[Make], finish: Callable[[], None], seconds: float) -> Iterator[Rates]:
    """Yield the rates of each size that can be measured in the time, and always of the first."""
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
    """Return the rates of the calls within a number of seconds, at least ``LEAST``."""
    until = time.perf_counter() + seconds
    _timed(work, finish, 1)  # Warms up caches and clocks, and lets frameworks select kernels.
    calls = max(1, int(CALL_SECONDS / _timed(work, finish, 1)))
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and time.perf_counter() < until):
        times.append(_timed(work, finish, calls) / calls)
    return Rates(work, [work.amount / elapsed for elapsed in times], min(times))


def _timed(work: Work, finish: Callable[[], None], calls: int) -> float:
    finish()
    begun = time.perf_counter()
    for _ in range(calls):
        work.run()
    finish()
    return time.perf_counter() - begun


def _row(measured: Rates) -> dict[str, Any]:
    return {
        "size": measured.work.size,
        "amount": measured.work.amount,
        "median": float(np.median(measured.rates)),
        "best": max(measured.rates),
        "worst": min(measured.rates),
        "repetitions": len(measured.rates),
    }


def rank_peak(config: RunConfig, cores: int, index: int) -> DevicePeak | None:
    """Measure the peak of a rank's device in the precision used in training.

    The engine must be loaded before, because it sets the framework's threads and devices.

    Args:
        config: configuration of the run; ``peak_seconds`` is the duration.
        cores: number of logical CPUs of this rank.
        index: index of this rank's accelerator on the host.

    Returns:
        The peak, or None if the run does not measure it or the engine is simulated.
    """
    if not config.peak_seconds or config.engine.name == SimulatedEngine.name:
        return None
    framework = _framework(config.engine.name)
    begun = time.monotonic()
    rates: dict[str, float] = {}
    absent: dict[str, str] = {}
    with framework.device_of_rank(config.engine.device, index, cores) as device:
        used = device.used_precision(config.training.precision)
        for kernel, precision, makes in device.kernels():
            if kernel not in RANK_KERNELS or precision != used:
                continue
            seconds = config.peak_seconds / len(RANK_KERNELS)
            sizes, reason = _measured(device, makes, seconds, framework.FAILURES)
            if reason:
                absent[kernel] = reason
            else:
                rates[kernel] = max(rate for size in sizes for rate in size.rates)
    return DevicePeak(
        device=device.name,
        model=device.model,
        threads=device.threads,
        precision=used,
        rates=rates,
        absent=absent,
        seconds=time.monotonic() - begun,
    )


if __name__ == "__main__":
    sys.exit(main())
