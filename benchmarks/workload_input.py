"""Samples a second of public benchmarks' input pipelines: ours beside plain ones, of equal files.

    python benchmarks/workload_input.py [FILE.json] [--only deepcam] [--size 768] [--rounds 3]

Prints tables in Markdown. Files are written as the benchmarks have them: CosmoFlow's TFRecord files
of a volume each, plain and compressed; DeepCAM's HDF5 files of a map each; a year of Extreme
Weather's maps in one HDF5 file. Ours reads what ``aiperf data prepare`` makes of them, tf.data and
DataLoader the files. All are read in training, in batches, from the page cache; nothing is done
with the batches. Each measurement is a process of its own, cases take turns. On a shared machine
samples a second depend on what else is there; processor time does so less.

ResNet-50's pipeline is that of every run on ImageNet: ``benchmarks/input_pipeline.py``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import input_maps
import input_volumes
import psutil
from input_case import Case
from side_by_side import in_turns, machine, save, spread

FILLING = 3
"""Batches before the clock is started."""
CASES: dict[str, Case] = {**input_volumes.CASES, **input_maps.CASES}


class Measured(NamedTuple):
    """What a process read."""

    samples_a_second: float
    cpu_seconds: float
    """Of a sample, of all threads and processes together."""


def work(case: Case, reader: str, folder: Path) -> None:
    """Read an epoch, and print samples a second and the processor time of one."""
    batches = case.readers[reader](folder)
    for _ in range(FILLING):
        next(batches)
    before, begun = _cpu_seconds(), time.perf_counter()
    read = sum(batches)
    seconds = time.perf_counter() - begun
    sys.stdout.write(f"{read / seconds} {(_cpu_seconds() - before) / read}\n")


def _cpu_seconds() -> float:
    """Return what this process and those that it has started have used until now."""
    process = psutil.Process()
    family = (process, *process.children(recursive=True))
    return sum(sum(each.cpu_times()[:2]) for each in family)


def measured(name: str, reader: str, folder: Path) -> Measured:
    """Return what a process of its own read."""
    done = subprocess.run(
        [sys.executable, __file__, "--work", name, reader, str(folder)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return Measured(*map(float, done.stdout.split()))


def compare(name: str, size: int, rounds: int) -> dict[str, Any]:
    """Let all readers of one kind of files take turns; print a table."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        case.lay_out(Path(folder), size)
        load = os.getloadavg()[0]
        turns = {reader: partial(measured, name, reader, Path(folder)) for reader in case.readers}
        runs = in_turns(turns, rounds)
    told = f"{name}, {size}, batch {case.batch}, load {load:.1f}"
    print(f"\n| {told} | samples/s | processor ms a sample |\n|---|---|---|")
    for reader, each in runs.items():
        rates = spread([one.samples_a_second for one in each])
        costs = spread([1e3 * one.cpu_seconds for one in each])
        print(f"| {reader} | {rates} | {costs} |", flush=True)
    return {**runs, "load": load, "size": size}


def main() -> None:
    """Measure, print tables, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--work", nargs=3, metavar=("CASE", "READER", "FOLDER"))
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--size", type=int, help="a volume's side, a map's rows")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.work:
        name, reader, folder = options.work
        work(CASES[name], reader, Path(folder))
        return
    found = {
        name: compare(name, options.size or CASES[name].size, options.rounds)
        for name in options.only
    }
    save(options.result, machine(), found)


if __name__ == "__main__":
    main()
