"""Compare the speed of this checkout with another one, e.g. the commit before a change.

    git worktree add ../before COMMIT
    python benchmarks/against.py ../before [FILE.json]    # a table in Markdown, 15 minutes

Both are measured in turns, each measurement in a process of its own, with the same interpreter and
packages: training steps of both engines, starting the command line and a replica, growing and
storing a candidate, and reading a run of a million records, which the other checkout writes.
Processor seconds of all threads, because the wall's depend on what else the machine does. A ratio
above one means that this checkout is the faster one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from side_by_side import Cost, cost, heading, in_turns, machine, row, save, spread

HERE = Path(__file__).resolve().parents[1]
LEAST = 0.97
"""The ratio below which this checkout counts as slower."""

STEPS = """
import sys, time, statistics
import numpy as np
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.data import base
from aiperf_hpc.replica.engines import base as engines, load_engine
from aiperf_hpc.trial import Hyperparameters
name, precision = sys.argv[1:]
graph = resnet50((32, 32, 3), 10, stem="cifar", base_width=16)
used = Hyperparameters(batch_size=32, optimizer="sgd", learning_rate=0.01, momentum=0.9,
                       weight_decay=1e-4, label_smoothing=0.0, precision=precision)
rng = np.random.default_rng(0)
given = (graph, initial_weights(graph, rng), used)
# Earlier versions pass graph, weights and hyperparameters separately.
given = [engines.NetworkState(*given)] if hasattr(engines, "NetworkState") else given
network = load_engine(name, 2).build(*given)
# Before batches had named arrays, a batch was images and labels.
batch = getattr(base, "labelled_images", base.Batch)(
    rng.standard_normal((32, 32, 32, 3), np.float32), np.zeros(32, np.int32))
def step():
    began = time.process_time()
    network.train_step(batch, 0.01)
    network.drain_training()
    return time.process_time() - began
for _ in range(5):
    step()
print(statistics.median(step() for _ in range(25)))
"""
CANDIDATE = """
import sys, tempfile, time, statistics
from pathlib import Path
import numpy as np
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.operators.morphisms import Deeper
from aiperf_hpc.morphism.operators.morphisms import Wider
from aiperf_hpc.morphism.weights.weight_file import (
    initial_weights, load_checkpoint, save_checkpoint)
from aiperf_hpc.ops_counter.count import count
graph, rng = resnet50(), np.random.default_rng(0)
folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
save_checkpoint(folder / "parent", graph, initial_weights(graph, rng), lambda _: None)
def candidate():
    began = time.process_time()
    parent, weights = load_checkpoint(folder / "parent")
    for kind in (Deeper, Wider):
        step = kind.sample(parent, rng)
        child = step.child(parent)
        weights, parent = step.weights(parent, weights, rng), child
    count(child), child.hash
    save_checkpoint(folder / "child", child, weights, lambda _: None)
    return time.process_time() - began
candidate()
print(statistics.median(candidate() for _ in range(7)))
for file in folder.iterdir():
    file.unlink()
folder.rmdir()
"""


def printed(code: str, *arguments: str) -> Callable[[Path], float]:
    """Return a function that runs code in a checkout and returns the seconds that it prints."""
    return lambda checkout: float(python(checkout, "-c", code, *arguments).output)


def taken(*arguments: str) -> Callable[[Path], float]:
    """Return a function that runs Python in a checkout and returns its processor seconds."""
    return lambda checkout: python(checkout, *arguments).processor


def python(checkout: Path, *arguments: str) -> Cost:
    """Run Python in a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return cost([sys.executable, *arguments], environment)


def cases(run: Path) -> dict[str, Callable[[Path], float]]:
    """Return the measurements by name; ``run`` has a million records."""
    steps = {
        f"training step, {engine}, {precision}": printed(STEPS, engine, precision)
        for engine in ("tensorflow", "torch")
        for precision in ("fp32", "bf16")
    }
    return steps | {
        "`aiperf --help`": taken("-m", "aiperf_hpc.cli", "--help"),
        "importing a replica": taken("-c", "import aiperf_hpc.replica.replica"),
        "a candidate of ResNet-50": printed(CANDIDATE),
        "`aiperf status`": taken("-m", "aiperf_hpc.cli", "status", str(run), "--json"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("file", type=Path, nargs="?", help="where the seconds go, JSON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replicas", type=int, default=4096, help="of the run that is read")
    parser.add_argument("--only", default="", help="what a measurement's name contains")
    options = parser.parse_args()
    checkouts = {"other": options.other.resolve(), "this": HERE}
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        writer = str(checkouts["other"] / "benchmarks" / "synthetic_run.py")
        python(checkouts["other"], writer, str(run), "--replicas", str(options.replicas))
        print(f"{machine()}, {options.rounds} rounds, processor seconds\n")
        heading("", "other", "this", "other / this")
        for name, measure in cases(run).items():
            if options.only in name:
                each = {which: partial(measure, checkout) for which, checkout in checkouts.items()}
                found[name] = in_turns(each, options.rounds)
                other, this = found[name]["other"], found[name]["this"]
                ratio = median(other) / median(this)
                slower = "" if ratio >= LEAST else " slower"
                row(name, spread(other), spread(this), f"{ratio:.3f}{slower}")
    save(options.file, machine(), found)


if __name__ == "__main__":
    main()
