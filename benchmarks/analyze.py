"""How long `aiperf analyze` takes over a gigabyte of result logs, and in how much memory.

    python benchmarks/analyze.py LOG [--gigabytes G] [--folder DIR] [--rounds N]

LOG is a result log of MLPerf. Its text is repeated to G gigabytes in four ways: as many files of
its own size, as 300 files, as one, and as one with other output. In all but the first the lines
between run_start and run_stop are repeated with later times and epochs, so that no line is the
same as another: such a log has thousands of epochs and more. Other output is a line of a
framework and a line of mllog with a key that no measure needs, after each line of the log.

In each round and way a peer reads the same bytes: one process with a plain loop that hands each
line of mllog to `json.loads` and keeps nothing. Memory is that of all processes together, and the
seconds of processors tell a slow program from a busy machine. Printed are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TIME = re.compile(rb'"time_ms": (\d+)')
EPOCH = re.compile(rb'"epoch_num": (\d+)')
SAMPLES = 20
"""Of memory, a second."""
OTHER_OUTPUT = (
    b"[rank 0] step %d: loss 0.4321, 812.5 samples/s, learning rate 1.25e-03\n"
    b':::MLLOG {"namespace": "worker", "time_ms": 1600000000000, "event_type": "POINT_IN_TIME",'
    b' "key": "gradient_norms", "value": {"all": [0.25, 0.5], "step": %d}, "metadata": {}}\n'
)
PEER = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).iterdir():
    for line in path.open("rb"):
        if line.startswith(b":::MLLOG {"):
            json.loads(line[9:])
"""
COMMANDS = {
    "aiperf analyze": ("-m", "aiperf_hpc.cli", "analyze", "--json"),
    "json.loads of each line": ("-c", PEER),
}


class Cost(NamedTuple):
    """What a command took."""

    seconds: float
    busy: float
    """Seconds of processors."""
    memory: float
    """Bytes of all its processes, at most."""


def main() -> None:
    """Synthesise, measure and print, a line for each way and command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = int(options.gigabytes * 1e9)
    lines = options.log.read_bytes().splitlines(keepends=True)
    mixed = [part for at, line in enumerate(lines) for part in (line, OTHER_OUTPUT % (at, at))]
    for name, files, text in (
        ("many files", None, lines),
        ("hundreds of files", 300, lines),
        ("one file", 1, lines),
        ("one file with other output", 1, mixed),
    ):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            written = synthesise(Path(folder), text, size, files)
            print(f"{name} ({written:,}), {size / 1e9:g} GB", flush=True)
            compare(Path(folder), options.rounds)


def compare(folder: Path, rounds: int) -> None:
    """Measure all commands in turns, and print the medians of each."""
    costs: dict[str, list[Cost]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            costs[name].append(measure(command, folder))
    for name, each in costs.items():
        middle = Cost(*map(statistics.median, zip(*each, strict=True)))
        print(
            f"  {name}: {middle.seconds:.1f} s ({', '.join(f'{one.seconds:.1f}' for one in each)}),"
            f" {middle.busy:.1f} s of processors, {middle.memory / 1e6:,.0f} MB at most",
            flush=True,
        )


def synthesise(folder: Path, lines: list[bytes], size: int, files: int | None) -> int:
    """Write so many bytes of logs, and return in how many files."""
    whole = b"".join(lines)
    if files is None:
        count = -(-size // len(whole))
        for number in range(count):
            (folder / f"result_{number}.txt").write_bytes(whole)
        return count
    for number in range(files):
        with (folder / f"result_{number}.txt").open("wb") as file:
            for part in long_log(lines, size // files):
                file.write(part)
    return files


def long_log(lines: list[bytes], size: int) -> Iterator[bytes]:
    """Yield a log of about so many bytes: a log's epochs again and again, each time later."""
    first = next(at for at, line in enumerate(lines) if b'"epoch_start"' in line)
    last = next(at for at, line in enumerate(lines) if b'"run_stop"' in line)
    middle = b"".join(lines[first:last])
    times = [int(found) for found in TIME.findall(middle)]
    epochs = len(set(EPOCH.findall(middle)))
    yield b"".join(lines[:first])
    repeats = max(1, size // len(middle))
    for number in range(repeats):
        yield later(middle, number * (times[-1] - times[0] + 1), number * epochs)
    yield later(lines[last], repeats * (times[-1] - times[0] + 1), 0)


def later(text: bytes, milliseconds: int, epochs: int) -> bytes:
    """Return log lines with later times and epochs."""
    text = TIME.sub(lambda found: b'"time_ms": %d' % (int(found[1]) + milliseconds), text)
    return EPOCH.sub(lambda found: b'"epoch_num": %d' % (int(found[1]) + epochs), text)


def measure(command: Sequence[str], folder: Path) -> Cost:
    """Measure a command over a folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, *command, str(folder)], stdout=said)
        peak = [0]
        watch = threading.Thread(target=sample, args=(process, peak))
        watch.start()
        status = process.wait()
        seconds = time.monotonic() - started
        watch.join()
    if status != 0:
        raise SystemExit("nothing was analysed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, busy, peak[0])


def sample(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    """Note the most memory that a process and its children have together."""
    while process.poll() is None:
        peak[0] = max(peak[0], sum(resident(pid) for pid in family(process.pid)))
        time.sleep(1 / SAMPLES)


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    try:
        tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    except OSError:
        return []
    return [pid, *(one for child in tasks for one in family(int(child)))]


def resident(pid: int) -> int:
    """Return the bytes that a process holds in memory."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    main()
