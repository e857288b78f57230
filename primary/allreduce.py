"""``aiperf allreduce``: all-reduce performance of every installed back end, as JSON and a table.

``replica/parallel/allreduce_timing.py`` measures in one process per rank: no framework is imported
here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.errors import UsageError
from aiperf_hpc.extras import COLLECTIVES, pip_install
from aiperf_hpc.formatting import si, size
from aiperf_hpc.host.processes import run_in_session
from aiperf_hpc.primary.launchers.base import WORKER_BYTES, rank_starter
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import Value

REPETITIONS, LARGEST = 100, 1e8
"""Maximum repetitions, and elements of the largest tensor; the sizes are MLBench's."""
QUICK_REPETITIONS, QUICK_LARGEST = 10, 1e6
TABLE_BYTES = (4, 2**10, 2**20, 2**27)
"""Sizes in bytes; the table has the nearest point of each curve."""


class Measurement(Value):
    """Result for one tensor size; times in seconds, bandwidths in bytes per second."""

    memory: str
    dtype: str
    elements: int
    bytes: int
    seconds: float
    """Median over the repetitions of the mean over the ranks."""
    fastest_seconds: float
    slowest_seconds: float
    algorithm_bandwidth: float
    bus_bandwidth: float


class Skipped(Value):
    """Measurements that were skipped, with the reason."""

    memory: str
    dtype: str
    reason: str


class Result(Value):
    """Results of one back end."""

    collective: str
    ranks: int
    host: str
    repetitions: int
    measurements: tuple[Measurement, ...]
    skipped: tuple[Skipped, ...] = ()


class Curve(NamedTuple):
    """The measurements of one back end, memory and type, smallest first."""

    name: str
    points: list[Measurement]


def remedies() -> dict[str, str]:
    """Return the remedies for the back ends that are not installed."""
    return {name: needs.remedy for name, needs in COLLECTIVES.items() if not needs.installed}


class Plan(NamedTuple):
    """Validated plan of the measurements."""

    names: tuple[str, ...]
    ranks: int
    repetitions: int
    largest: float
    only_largest: bool = False


def plan(
    backends: str | None,
    *,
    ranks: int,
    repetitions: int | None,
    largest: float | None,
    quick: bool,
    available: int,
) -> Plan:
    """Return the measurement plan, with defaults for arguments that are not given.

    Args:
        backends: back ends, separated by commas; all installed ones by default.
        ranks: number of processes.
        repetitions: repetitions of each size.
        largest: elements of the largest tensor.
        quick: reduce the default number of repetitions and the default largest size.
        available: free memory of this machine in bytes.

    Raises:
        UsageError: the measurement is not possible on this machine.
    """
    there = [name for name, needs in COLLECTIVES.items() if needs.installed]
    chosen = there if backends is None else list(dict.fromkeys(backends.split(",")))
    if unknown := sorted(set(chosen) - COLLECTIVES.keys()):
        known = ", ".join(COLLECTIVES)
        raise UsageError(f"--backends {','.join(unknown)}: known are {known}")
    if not chosen:
        raise UsageError(f"no collective is installed: {pip_install('mpi')}, or [torch]")
    if ranks < 2:
        raise UsageError(f"--ranks {ranks}: at least two are required")
    if repetitions is None:
        repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    if repetitions < 1:
        raise UsageError(f"--repetitions {repetitions}: at least 1")
    if largest is None:
        largest = QUICK_LARGEST if quick else LARGEST
    if not 1 <= largest <= LARGEST:  # False for NaN, too.
        raise UsageError(f"--largest {largest:g}: from 1 to {LARGEST:g} elements")
    needed = int(ranks * (WORKER_BYTES + 4 * largest))
    if needed > available:
        raise UsageError(
            f"--ranks {ranks}: they need at least {size(needed)} of memory here, "
            f"{size(available)} are free; lower --ranks or --largest"
        )
    for name in chosen:
        rank_starter(ranks, name)
    return Plan(tuple(chosen), ranks, repetitions, largest)


def measure(name: str, plan: Plan, folder: Path, seconds: float | None = None) -> Result:
    """Measure one back end on ranks of this machine.

    Args:
        name: name of the back end.
        plan: measurement plan.
        folder: folder of the result.
        seconds: time limit.

    Raises:
        UsageError: the back end is not installed, or its ranks failed or exceeded the time limit.
    """
    path = folder / f"{name}.json"
    command = [
        *rank_starter(plan.ranks, name),
        sys.executable,
        "-m",
        "aiperf_hpc.replica.parallel.allreduce_timing",
    ]
    command += ["--collective", name, "--repetitions", str(plan.repetitions)]
    command += ["--largest", str(plan.largest), "--result", str(path)]
    if plan.only_largest:
        command.append("--only-largest")
    ranks = f"the ranks of collective '{name}'"
    late = f"{ranks} did not end within {{:g}} s"
    run_in_session(command, seconds, late=late, failed=f"{ranks} failed: ")
    return Result.model_validate_json(path.read_text("utf-8"))


def curves(results: Sequence[Result]) -> Iterator[Curve]:
    """Yield the curves of the plot."""
    for result in results:
        kinds = dict.fromkeys((m.memory, m.dtype) for m in result.measurements)
        for memory, dtype in kinds:
            points = [m for m in result.measurements if (m.memory, m.dtype) == (memory, dtype)]
            yield Curve(f"{result.collective}, {dtype}, {memory}", points)


def table(results: Sequence[Result], remedies: dict[str, str]) -> list[str]:
    """Return lines with selected sizes of each curve, and the skipped measurements."""
    lines = [f"{'back end':<28}{'tensor':>10}{'time':>11}{'algorithm':>13}{'bus':>13}"]
    for name, points in curves(results):
        nearest = {min(points, key=lambda m: abs(m.bytes - near)).elements for near in TABLE_BYTES}
        for point in points:
            if point.elements in nearest:
                nearest.discard(point.elements)
                lines.append(
                    f"{name:<28}{si(point.bytes, 'B'):>10}{_time(point.seconds):>11}"
                    f"{si(point.algorithm_bandwidth, 'B/s'):>13}"
                    f"{si(point.bus_bandwidth, 'B/s'):>13}"
                )
    for result in results:
        lines += [f"{result.collective}, {s.dtype}, {s.memory}: {s.reason}" for s in result.skipped]
    lines += [f"{name}: not installed; {remedy}" for name, remedy in remedies.items()]
    return lines


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def write(results: Sequence[Result], remedies: dict[str, str], path: Path) -> None:
    """Write all results, and the remedies for back ends that are not installed, as JSON."""
    whole = {
        "results": [result.model_dump() for result in results],
        "not_installed": remedies,
    }
    write_whole(path, json.dumps(whole, indent=1))
