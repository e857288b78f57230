"""What sampling a node costs: processor time of the sampler as a share of a core.

python benchmarks/telemetry.py [--minutes 5] [--seconds 30] [--children 16] [--counters 4]

The sampler is that of a run, in a process that does nothing else, with children for it to count.
COUNTERS are files as RAPL's, which it reads once a second; 0 for those that the machine has.
Programs that it starts, as npu-smi, are counted too.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.replica.runtime.process_tree import ProcessTree
from aiperf_hpc.telemetry.running import sampled
from aiperf_hpc.telemetry.values import Equipment, Sample

TARGET = 0.005
"""The share of a core that it may take."""


def main() -> int:
    """Sample for some minutes and print what that took; 1 if it was more than the target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="between two samples")
    parser.add_argument("--children", type=int, default=16, help="processes in the run's tree")
    parser.add_argument("--counters", type=int, default=4, help="made-up ones, of RAPL's kind")
    options = parser.parse_args()
    sleep = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    children = [subprocess.Popen(sleep, stdin=subprocess.PIPE) for _ in range(options.children)]
    try:
        with TemporaryDirectory() as folder:
            root = Path(folder) if options.counters else Path("/")
            _make_counters(root, options.counters)
            share = _measure(root, options)
    finally:
        for child in children:
            child.communicate()
    print(f"{share:.3%} of a core (target {TARGET:.1%})")
    return 0 if share <= TARGET else 1


def _make_counters(root: Path, count: int) -> None:
    for number in range(count):
        zone = root / f"sys/class/powercap/intel-rapl:{number}"
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"package-{number}\n", "utf-8")
        (zone / "energy_uj").write_text("1000000\n", "utf-8")
        (zone / "max_energy_range_uj").write_text("262143328850\n", "utf-8")


def _measure(root: Path, options: argparse.Namespace) -> float:
    told: list[Equipment | Sample] = []
    before, begin = _spent(), time.monotonic()
    tree = ProcessTree(psutil.Process())
    with sampled(
        f"benchmark-{time.time_ns()}",
        tree,
        seconds=options.seconds,
        clock=SYSTEM,
        record=told.append,
        root=root,
    ):
        time.sleep(60.0 * options.minutes)
    spent, passed = _spent() - before, time.monotonic() - begin
    samples = [each for each in told if isinstance(each, Sample)]
    (equipment,) = (each for each in told if isinstance(each, Equipment))
    own = sum(sample.cpu_seconds for sample in samples)
    print(f"{len(psutil.pids())} processes on the node, {options.children} of them children")
    print(f"{len(equipment.accelerators)} accelerators, {len(equipment.meters)} meters")
    print(
        f"{len(samples)} samples in {passed:.0f} s, {len(samples[0].model_dump_json())} bytes each"
    )
    print(f"the sampler's thread: {own / passed:.3%} of a core, as its samples record it")
    return spent / passed


def _spent() -> float:
    """Return the processor seconds of this process and of the programs that it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main())
