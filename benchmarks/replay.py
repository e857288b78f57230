"""How long it takes to read a large run: its score, `aiperf status`, `report` and `verify`.

python benchmarks/replay.py            # 1,024 and 4,096 replicas; the latter 1,000,000 records
python benchmarks/replay.py --json

Cold is a new process, from its start to its end, with the files in the page cache. Tailed is a
loaded view that reads 10,000 new records and computes the score and all its points again. Each
number is the median of the repeats; processor seconds count, too, because machines are shared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from synthetic_run import EPOCHS, NAME, SECONDS, Moment, Written, epoch_events, lines_of, write_run

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

ADDED = 10_000
COLD = """
import sys
from pathlib import Path
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.results.views.run_view import RunView
view = RunView(RunPaths(Path(sys.argv[1])))
view.refresh()
print(view.final(), len(view.score()))
"""
Row = dict[str, str | float]


def cold(command: list[str], repeats: int) -> Row:
    """Run a command to its end; return median wall and processor seconds, most memory."""
    walls, processors, memory = [], [], 0
    for _ in range(repeats):
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        walls.append(time.perf_counter() - began)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{command} ended with status {process.returncode}")
        processors.append(used.ru_utime + used.ru_stime)
        memory = max(memory, used.ru_maxrss)
    return _row(walls, processors, memory)


def tailed(written: Written, repeats: int) -> Row:
    """Return the median seconds to read ``ADDED`` new records and score them, and the memory."""
    view = RunView(written.paths)
    view.refresh()
    view.final()
    seqs = dict(written.lines)
    walls, processors = [], []
    for turn in range(repeats):
        before = view.history.record_count
        _append(written.paths, seqs, EPOCHS[-1] + 1 + turn)
        wall, processor = time.perf_counter(), time.process_time()
        view.refresh()
        view.final()
        view.score()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
        read = view.history.record_count - before
        if read != ADDED or view.history.problems:
            raise SystemExit(f"{read} new records were read, {ADDED} were written")
    return _row(walls, processors, 0)


def _append(paths: RunPaths, seqs: dict[str, int], epoch: int) -> None:
    """Write ``ADDED`` records, an epoch's four at a time, to evenly spread replicas."""
    events = epoch_events(f"{NAME}-t{len(EPOCHS)}", epoch, 200)
    moments = [Moment(SECONDS, event.model_dump_json()) for event in events]
    names, turns = list(seqs), ADDED // len(moments)
    for turn in range(turns):
        name = names[turn % len(names)]
        with paths.replica_journal(name).open("a", encoding="utf-8") as file:
            file.write(lines_of(moments, name, time.time(), seqs[name]))
        seqs[name] += len(moments)


def _row(walls: list[float], processors: list[float], memory: int) -> Row:
    return {
        "wall s": round(statistics.median(walls), 2),
        "processor s": round(statistics.median(processors), 2),
        "memory MB": round(memory * 1.024e-3),
    }


def measure(replicas: int, repeats: int) -> list[Row]:
    """Write a run of so many replicas and measure all readings of it."""
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        written = write_run(Path(folder), replicas)
        aiperf = [python, "-m", "aiperf_hpc.cli"]
        readings: dict[str, Callable[[], Row]] = {
            "score, cold": lambda: cold([python, "-c", COLD, folder], repeats),
            "aiperf status": lambda: cold([*aiperf, "status", folder], repeats),
            "aiperf report": lambda: cold([*aiperf, "report", folder], repeats),
            "aiperf verify": lambda: cold([*aiperf, "verify", folder], repeats),
            # Last: it adds records that the report does not know.
            f"score, {ADDED} records later": lambda: tailed(written, repeats),
        }
        size: Row = {"replicas": replicas, "records": written.records}
        return [{"reading": name, **size, **read()} for name, read in readings.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how long runs take to read.")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = [row for n in options.replicas for row in measure(n, options.repeats)]
    if options.json:
        print(json.dumps({"load average": os.getloadavg()[0], "readings": rows}, indent=1))
        return
    print(f"| {' | '.join(rows[0])} |")
    print("|---" * len(rows[0]) + "|")
    for row in rows:
        print("| " + " | ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values())
              + " |")  # fmt: skip


if __name__ == "__main__":
    main()
