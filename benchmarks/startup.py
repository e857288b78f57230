"""What it costs until a process of ours can begin: beside plain Python and plain TensorFlow.

    python benchmarks/startup.py [FILE.json]      # a table in Markdown, two minutes

Each is a process from its start to its end, measured in turns. Processor time, user and system, of
all its threads, because the wall's depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from side_by_side import in_turns, machine, save, spread

SUBJECTS = {
    "python -c pass": ["-c", "pass"],
    "aiperf --help": ["-m", "aiperf_hpc.cli", "--help"],
    "import tensorflow": ["-c", "import tensorflow"],
    "our TensorFlow, without Keras": ["-c", "import aiperf_hpc.replica.tensorflow_import"],
}


def measured(arguments: list[str]) -> Callable[[], float]:
    """Return what runs Python once and returns its processor time, seconds."""

    def measure() -> float:
        before = _used()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return _used() - before

    return measure


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="where the seconds go, JSON")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    seconds = in_turns({n: measured(a) for n, a in SUBJECTS.items()}, options.rounds)
    sys.stdout.write(f"{machine()}\n\n| process | processor seconds |\n|---|---|\n")
    for name, each in seconds.items():
        sys.stdout.write(f"| `{name}` | {spread(each)} |\n")
    plain, own = (median(seconds[name]) for name in list(SUBJECTS)[2:])
    sys.stdout.write(f"\nTensorFlow with Keras takes {plain / own:.2f} times as long.\n")
    save(options.file, machine(), seconds)


if __name__ == "__main__":
    main()
