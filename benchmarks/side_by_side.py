"""The driver of all comparisons: cases run in turns, each in its own process if requested."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

Measured = TypeVar("Measured")
MARK = "RESULT "
"""What the line of a worker's result begins with: frameworks print lines of their own."""
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def signal_when_parent_ends(number: signal.Signals) -> None:
    """Request a signal for this process as soon as its parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def in_turns(cases: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """Measure each case once a round, every other round in the opposite order."""
    found: dict[str, list[Measured]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in list(cases)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(cases[name]())
    return found


def work(file: str, *arguments: object, starter: Sequence[str] = ()) -> Any:  # noqa: ANN401 -- JSON
    """Run a benchmark's program as a worker; return the result that it reports."""
    done = subprocess.run(
        [*starter, sys.executable, file, "--work", *map(str, arguments)],
        env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return result_of(done.stdout)


def report(result: object) -> None:
    """Print a worker's result for the process that started it."""
    sys.stdout.write(f"\n{MARK}{json.dumps(result)}\n")
    sys.stdout.flush()


def result_of(output: str) -> Any:  # noqa: ANN401 -- JSON
    """Return the result in a worker's standard output."""
    (line,) = (line for line in output.splitlines() if line.startswith(MARK))
    return json.loads(line.removeprefix(MARK))


class Cost(NamedTuple):
    """The resources of a command from its start to its end."""

    wall: float
    processor: float
    """Seconds of all threads and of the processes that it waited for."""
    memory: float
    """The most that was resident, in MB."""
    output: str


def cost(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end. Exits if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment)
    assert process.stdout is not None  # noqa: S101 -- for the type checker
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with status {process.returncode}")
    wall = time.perf_counter() - began
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1.024e-3, output)


class Rate(NamedTuple):
    """The rate of an input pipeline."""

    samples: float
    """Samples a second."""
    processor: float
    """Milliseconds a sample, of all processes and threads."""


def rate(batches: Iterator[int], filling: int, most: int | None = None) -> Rate:
    """Read batches, given by their sizes, after those that fill the pipeline."""
    for _ in range(filling):
        next(batches)
    busy, began = processor_seconds(), time.perf_counter()
    samples = sum(islice(batches, most))
    seconds = time.perf_counter() - began
    return Rate(samples / seconds, 1e3 * (processor_seconds() - busy) / samples)


def processor_seconds() -> float:
    """Return the processor time so far of this process and of its children."""
    import psutil  # Here because gpu.py has to name the packages that are missing.

    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the median, and in brackets the least and the most."""
    figures = (median(values), min(values), max(values))
    middle, low, high = (f"{float(f'{value:.{digits}g}'):,g}" for value in figures)
    return f"{middle} ({low} to {high})"


def row(*cells: object) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def heading(*names: str) -> None:
    """Print the first lines of a Markdown table."""
    row(*names)
    print("|---" * len(names) + "|")


def ratios(others: Iterable[float], ours: Iterable[float]) -> str:
    """Return the spread of the ratios of the rounds."""
    return spread([other / own for other, own in zip(others, ours, strict=True)])


def machine() -> str:
    """Return the processor's name."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        names = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        return next(names, platform.machine())


def save(path: Path | None, machine: str, found: Mapping[str, object]) -> None:
    """Write all that was measured as JSON, where a file is given."""
    if path is not None:
        path.write_text(
            json.dumps({"machine": machine, "measured": found}, indent=1) + "\n", "utf-8"
        )
