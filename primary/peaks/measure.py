"""Measurement of one machine: devices by engine, then the all-reduce, then storage.

The measurements run sequentially to avoid interference. A failed measurement is listed with its
reason and does not affect the others.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil
from pydantic import BaseModel

from aiperf_hpc import __version__
from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import AIPerfError, UsageError, reason_of
from aiperf_hpc.extras import COLLECTIVES, ENGINES
from aiperf_hpc.formatting import duration, percent, si, size, utc_text
from aiperf_hpc.host.machine import available_bytes, cpu_model
from aiperf_hpc.host.processes import run_in_session
from aiperf_hpc.primary import allreduce
from aiperf_hpc.primary.peaks.storage import QUICK, WHOLE, measure_storage
from aiperf_hpc.run.peaks import (
    PRODUCTS,
    AllReduce,
    Device,
    MeasuredRate,
    NotMeasured,
    Peaks,
    Storage,
    Sweep,
)

KERNEL_SECONDS, QUICK_KERNEL_SECONDS = 24.0, 4.0
"""Total time for the kernels of all engines, without the startup of the frameworks."""
PATIENCE = 60.0
"""Seconds by which a process may exceed its time."""
MOST_RANKS = 8
"""Maximum ranks on a machine without accelerators: more would only share its resources."""


class Plan(NamedTuple):
    """Plan of the measurements."""

    engines: tuple[str, ...]
    quick: bool
    data: Path | None
    """Folder of the files to read; None to write a temporary file."""
    ranks: int | None
    """Ranks of the all-reduce; None for one per accelerator or per core."""


class _EngineResult(BaseModel):
    """Result of ``replica.engines.peaks``."""

    versions: dict[str, str]
    devices: tuple[Device, ...]
    sweeps: tuple[Sweep, ...]
    missing: tuple[NotMeasured, ...]


def plan(engine: str | None, *, quick: bool, data: Path | None, ranks: int | None) -> Plan:
    """Return the plan: by default all installed engines, or only the first if quick.

    Raises:
        UsageError: the engine or the folder does not exist, or the engine is not installed.
    """
    if engine is not None:
        _require(engine)
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: no such folder")
    if ranks is not None and ranks < 2:
        raise UsageError(f"--ranks {ranks}: at least two are required")
    there = [name for name, package in ENGINES.items() if package.installed]
    # The engine of the run first.
    there.sort(key=lambda name: name != EngineConfig().name)
    chosen = there[:1] if quick else there
    return Plan((engine,) if engine else tuple(chosen), quick, data, ranks)


def _require(engine: str) -> None:
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: known are {', '.join(ENGINES)}")
    package = ENGINES[engine]
    if not package.installed:
        raise UsageError(
            f"--engine {engine}: needs the package '{package.package}': {package.remedy}"
        )


def measure(plan: Plan, out: Path) -> Peaks:
    """Measure this machine; temporary files are created in the existing folder ``out``."""
    begun, utc, load = time.monotonic(), time.time(), os.getloadavg()[0]
    missing: list[NotMeasured] = []
    with TemporaryDirectory(prefix=".aiperf-peaks-", dir=out) as folder:
        engines = list(_engines(plan, Path(folder), missing))
        devices = tuple(device for engine in engines for device in engine.devices)
        reductions = tuple(_reductions(plan, devices, Path(folder), missing))
        storage = _storage(plan, out, missing)
    sweeps = tuple(sweep for engine in engines for sweep in engine.sweeps)
    versions = {"aiperf-hpc": __version__, "python": platform.python_version()}
    for engine in engines:
        versions |= engine.versions
    return Peaks(
        utc=utc,
        seconds=time.monotonic() - begun,
        quick=plan.quick,
        host=socket.gethostname(),
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        load=load,
        rates={
            f"{s.engine} {s.device} {s.kernel} {s.precision}": s.peak.median
            for s in sweeps
            if s.kernel in PRODUCTS
        },
        versions=versions,
        devices=devices,
        sweeps=sweeps,
        allreduce=reductions,
        storage=storage,
        not_measured=tuple(missing),
    )


def _engines(plan: Plan, folder: Path, missing: list[NotMeasured]) -> Iterator[_EngineResult]:
    """Yield the measurements of each engine."""
    seconds = QUICK_KERNEL_SECONDS if plan.quick else KERNEL_SECONDS
    for name in plan.engines:
        try:
            found = _engine(name, seconds / len(plan.engines), folder / f"{name}.json")
        except AIPerfError as error:
            missing.append(NotMeasured(what=f"engine {name}", reason=str(error)))
            continue
        missing += found.missing
        yield found
    for name, package in ENGINES.items():
        if not package.installed:
            missing.append(_not_installed(f"engine {name}", package.remedy))
        elif name not in plan.engines:
            missing.append(
                NotMeasured(what=f"engine {name}", reason="another engine was requested")
            )


def _engine(name: str, seconds: float, path: Path) -> _EngineResult:
    command = [sys.executable, "-m", "aiperf_hpc.replica.engines.peaks"]
    command += ["--engine", name, "--seconds", str(seconds), "--result", str(path)]
    run_in_session(command, seconds + PATIENCE, failed="its process failed: ")
    return _EngineResult.model_validate_json(path.read_bytes())


def _not_installed(what: str, remedy: str) -> NotMeasured:
    return NotMeasured(what=what, reason=f"not installed; {remedy}")


def _reductions(
    plan: Plan, devices: tuple[Device, ...], folder: Path, missing: list[NotMeasured]
) -> Iterator[AllReduce]:
    """Yield the result of the largest size per back end; if quick, only of the first that works."""
    done = ""
    for name, package in COLLECTIVES.items():
        what = f"all-reduce by {name}"
        if not package.installed:
            missing.append(_not_installed(what, package.remedy))
        elif done and plan.quick:
            reason = f"a quick measurement uses one back end, {done}"
            missing.append(NotMeasured(what=what, reason=reason))
        else:
            try:
                yield from _reduced(name, plan, devices, folder, missing)
                done = name
            except AIPerfError as error:
                missing.append(NotMeasured(what=what, reason=str(error)))


def _reduced(
    name: str, plan: Plan, devices: tuple[Device, ...], folder: Path, missing: list[NotMeasured]
) -> Iterator[AllReduce]:
    each = allreduce.plan(
        name,
        ranks=plan.ranks or _local_ranks(devices),
        repetitions=10 if plan.quick else 20,
        largest=1e6 if plan.quick else 1e7,
        quick=plan.quick,
        available=available_bytes(),
    )
    result = allreduce.measure(name, each._replace(only_largest=True), folder, PATIENCE)
    for skipped in result.skipped:
        what = f"all-reduce by {name}, {skipped.dtype}, {skipped.memory}"
        missing.append(NotMeasured(what=what, reason=skipped.reason))
    for m in result.measurements:
        yield AllReduce(
            collective=name,
            ranks=result.ranks,
            memory=m.memory,
            dtype=m.dtype,
            reading=MeasuredRate(
                size=f"{m.bytes / 1e6:g} MB",
                amount=m.bytes,
                median=m.bytes / m.seconds,
                best=m.bytes / m.fastest_seconds,
                worst=m.bytes / m.slowest_seconds,
                repetitions=result.repetitions,
            ),
        )


def _local_ranks(devices: tuple[Device, ...]) -> int:
    """Return one rank per accelerator or, if there are fewer than two, per core; at least two."""
    accelerators: dict[str, int] = {}
    for device in devices:
        accelerators[device.engine] = accelerators.get(device.engine, 0) + (device.threads is None)
    most = max(accelerators.values(), default=0)
    return most if most > 1 else min(MOST_RANKS, max(2, len(os.sched_getaffinity(0))))


def _storage(plan: Plan, scratch: Path, missing: list[NotMeasured]) -> Storage | None:
    try:
        return measure_storage(plan.data, scratch, QUICK if plan.quick else WHOLE)
    except OSError as error:
        reason = reason_of(error)
    except UsageError as error:
        reason = str(error)
    missing.append(NotMeasured(what="storage", reason=reason))
    return None


def lines(peaks: Peaks) -> Iterator[str]:
    """Yield the lines: the machine, one line per kernel, and the missing measurements."""
    kind = "quick, " if peaks.quick else ""
    yield f"{peaks.host}: {peaks.cpu}, {peaks.cores} cores, {size(peaks.memory_bytes)}"
    yield f"{kind}{utc_text(peaks.utc)}, {duration(peaks.seconds)}"
    if peaks.busy:
        yield f"warning: {peaks.busy}"
    for device in peaks.devices:
        threads = "" if device.threads is None else f", {device.threads} threads"
        yield f"{device.engine} {device.name}: {device.model}{threads}"
    yield ""
    yield f"{'what':<46}{'median':>13}{'best':>13}{'spread':>9}  at"
    for sweep in peaks.sweeps:
        unit = "OPS" if sweep.kernel in PRODUCTS else "B/s"
        what = f"{sweep.engine} {sweep.device}, {sweep.kernel}, {sweep.precision}"
        yield _line(what, sweep.peak, unit) + ("; no time for more" if sweep.rising else "")
    for found in peaks.allreduce:
        what = f"all-reduce, {found.collective}, {found.ranks} ranks, {found.memory}, {found.dtype}"
        yield _line(what, found.reading, "B/s")
    if peaks.storage is not None:
        yield _line(f"read, {peaks.storage.file_system}", peaks.storage.peak, "B/s")
        yield f"  {peaks.storage.folder}: files {peaks.storage.files}, {CACHE[peaks.storage.cache]}"
    yield from (f"not measured: {m.what}: {m.reason}" for m in peaks.not_measured)


CACHE = {
    "bypassed": "page cache bypassed (O_DIRECT)",
    "dropped": "page cache dropped before each block",
    "in use": "the page cache could not be bypassed: the rate may be that of memory",
}


def _line(what: str, reading: MeasuredRate, unit: str) -> str:
    return (
        f"{what:<46}{si(reading.median, unit):>13}{si(reading.best, unit):>13}"
        f"{percent(reading.spread, 0):>9}  {reading.size}"
    )
