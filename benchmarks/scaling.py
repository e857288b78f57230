"""Weak scaling of the benchmark's control in simulation: 1 to 4,096 nodes in powers of 4.

python benchmarks/scaling.py [--to 4096] [--hours 1] [--folder runs/scaling] [--json]

Each size is a run directory of its own below the folder, kept and not simulated again; the
largest one's report gets the section on scaling.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from aiperf_hpc.results.report.scaling import Scaling, read_scaling
from aiperf_hpc.run.paths import RunPaths


def main() -> None:
    """Simulate what is missing, make the report, print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=int, default=4096, help="the most nodes, a power of 4")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path("runs/scaling"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    sizes = [4**power for power in range(16) if 4**power <= options.to]
    took = {nodes: _simulated(options.folder / f"n{nodes}", nodes, options.hours)
            for nodes in sizes}  # fmt: skip
    folders = [options.folder / f"n{nodes}" for nodes in sizes]
    _run("aiperf_hpc.cli", "report", str(folders[-1]), "--scaling", *map(str, folders[:-1]))
    _say(read_scaling([RunPaths(folder) for folder in folders]), took, as_json=options.json)


def _simulated(folder: Path, nodes: int, hours: float) -> dict[str, float] | None:
    """Simulate a run; return its wall and CPU seconds and MiB, or None when it is there."""
    if RunPaths(folder).report_json.exists():
        return None
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    _run("aiperf_hpc.simulation", str(folder), "--nodes", str(nodes), "--hours", str(hours))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.monotonic() - began, "cpu": cpu, "peak_mib": after.ru_maxrss / 1024}


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=sys.stderr)


def _say(scaling: Scaling, took: dict[int, dict[str, float] | None], *, as_json: bool) -> None:
    if as_json:
        rows = [{**point.model_dump(), "simulation": took[point.nodes]} for point in scaling.points]
        print(json.dumps(rows, indent=1))
        return
    print(
        "| nodes | OPS | OPS of a node | efficiency | train and evaluate | wall s | CPU s | MiB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for point in scaling.points:
        spent = took[point.nodes]
        cost = [f"{spent[key]:.0f}" for key in ("wall", "cpu", "peak_mib")] if spent else ["–"] * 3
        print(
            f"| {point.nodes:,} | {point.ops:.4g} | {point.ops_per_node:.4g} | "
            f"{point.efficiency:.4f} | {point.train_evaluate_share:.4f} | {' | '.join(cost)} |"
        )


if __name__ == "__main__":
    main()
