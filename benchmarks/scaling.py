"""Weak scaling of the benchmark's control in simulation: 1 to 4,096 nodes in powers of 4.

python benchmarks/scaling.py [--to 4096] [--hours 1] [--folder runs/scaling]

Each size is a run directory of its own below the folder, kept and not simulated again; the
largest one's report gets the section on scaling.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from side_by_side import Cost, cost, heading, row

from aiperf_hpc.results.report.scaling import read_scaling
from aiperf_hpc.run.paths import RunPaths


def main() -> None:
    """Simulate what is missing, make the report, print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=int, default=4096, help="the most nodes, a power of 4")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path("runs/scaling"))
    options = parser.parse_args()
    sizes = [4**power for power in range(16) if 4**power <= options.to]
    folders = [options.folder / f"n{nodes}" for nodes in sizes]
    costs = {
        nodes: simulated(options.folder / f"n{nodes}", nodes, options.hours) for nodes in sizes
    }
    run("report", str(folders[-1]), "--scaling", *map(str, folders[:-1]))
    heading("nodes", "OPS", "OPS of a node", "efficiency", "train and evaluate",
            "wall s", "processor s", "memory MB")  # fmt: skip
    for point in read_scaling([RunPaths(folder) for folder in folders]).points:
        spent = costs[point.nodes]
        row(
            f"{point.nodes:,}",
            f"{point.ops:.4g}",
            f"{point.ops_per_node:.4g}",
            f"{point.efficiency:.4f}",
            f"{point.train_evaluate_fraction:.4f}",
            *([f"{each:.0f}" for each in spent[:3]] if spent else [""] * 3),
        )


def simulated(folder: Path, nodes: int, hours: float) -> Cost | None:
    """Simulate a run unless it is there."""
    if RunPaths(folder).report_json.exists():
        return None
    sizes = "--nodes", str(nodes), "--hours", str(hours)
    return run("simulate", str(folder), *sizes)


def run(*arguments: str) -> Cost:
    """Run a command of the package."""
    return cost([sys.executable, "-m", "aiperf_hpc.cli", *arguments])


if __name__ == "__main__":
    main()
