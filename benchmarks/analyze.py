"""How long `aiperf analyze` takes over a gigabyte of result logs, and in how much memory.

    python benchmarks/analyze.py LOG [--gigabytes G] [--folder DIR]

LOG is a result log of MLPerf. Its text is repeated to G gigabytes in three ways: as many files of
its own size, as two files, and as one. In those two and in that one the lines between run_start
and run_stop are repeated with later times and epochs, so that no line is the same as another:
such a log has a hundred thousand epochs and more. Memory is that of all processes together, and
the seconds of processors tell a slow program from a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

TIME = re.compile(rb'"time_ms": (\d+)')
EPOCH = re.compile(rb'"epoch_num": (\d+)')
SAMPLES = 20
"""Of memory, a second."""


def main() -> None:
    """Synthesise, measure and print, one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    size = int(options.gigabytes * 1e9)
    lines = options.log.read_bytes().splitlines(keepends=True)
    for name, files in (("many files", None), ("two files", 2), ("one file", 1)):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            written = synthesise(Path(folder), lines, size, files)
            seconds, busy, peak = measure(Path(folder))
            print(
                f"{name} ({written:,}): {size / 1e9:g} GB in {seconds:.1f} s,"
                f" {busy:.1f} s of processors, {peak / 1e6:,.0f} MB at most",
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


def measure(folder: Path) -> tuple[float, float, int]:
    """Measure the command over a folder: seconds, those of processors, and memory at its most."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    command = [sys.executable, "-m", "aiperf_hpc.primary.cli", "analyze", str(folder), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    peak = [0]
    watch = threading.Thread(target=sample, args=(process, peak))
    watch.start()
    said, _ = process.communicate()
    seconds = time.monotonic() - started
    watch.join()
    if process.returncode != 0 or not json.loads(said)["entries"]:
        raise SystemExit("nothing was analysed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, busy, peak[0]


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
