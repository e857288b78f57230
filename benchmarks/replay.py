"""Time to read a large run: its score, `aiperf status`, `report` and `verify`.

python benchmarks/replay.py            # 1,024 and 4,096 replicas; the latter 1,000,000 records

Each reading is a new process, from its start to its end, with the files in the page cache.
Processor seconds count, too, because machines are shared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from side_by_side import cost, heading, machine, row, spread
from synthetic_run import write_run

SCORE = """
import sys
from pathlib import Path
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.results.views.run_view import RunView
view = RunView.read(RunPaths(Path(sys.argv[1])))
print(view.final(), len(view.series.official()))
"""
READINGS = {
    "score": ["-c", SCORE],
    **{
        f"`aiperf {name}`": ["-m", "aiperf_hpc.cli", name]
        for name in ("status", "report", "verify")
    },
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how long runs take to read.")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}; {options.repeats} repeats\n")
    heading("reading", "replicas", "records", "wall s", "processor s", "memory MB")
    for replicas in options.replicas:
        with tempfile.TemporaryDirectory() as folder:
            records = write_run(Path(folder), replicas).records
            for name, arguments in READINGS.items():
                command = [sys.executable, *arguments, folder]
                costs = [cost(command) for _ in range(options.repeats)]
                wall = spread([each.wall for each in costs])
                processor = spread([each.processor for each in costs])
                memory = max(each.memory for each in costs)
                row(name, replicas, f"{records:,}", wall, processor, f"{memory:.0f}")


if __name__ == "__main__":
    main()
