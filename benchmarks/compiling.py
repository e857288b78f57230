"""What compiling the next network takes from the thread that launches a training's steps.

    python benchmarks/compiling.py [--rounds 3] [--blocks 1,1,1,1]

Beside one thread that makes ResNet-50 ready, or one of its kind with fewer blocks, as a replica
does, another launches operations of one
number, which take about no time by themselves: on an accelerator that is what the host does of a
step. What counts is how long 600 launches are blocked: neither computing nor waiting for a
processor, by Linux's own account of the thread, so that other work on the machine is left out as
far as it does not stop the thread that has the lock. Made ready: not at all; by the thread alone;
by the thread once another process has compiled; the two with Python's switch interval as it is by
default too. Every way has a process and empty folders for kernels of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.morphism.networks.resnet import RESNET50_BLOCKS, resnet50
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.main import SWITCH_SECONDS
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.replica.runtime.kernel_caches import own_kernel_caches
from aiperf_hpc.trial import Hyperparameters

LAUNCHES, BATCH = 600, 16
ALONE_SECONDS = 5.0
Blocks = tuple[int, int, int, int]


class Way(NamedTuple):
    """How the next network is made ready."""

    beside: bool
    ahead: bool
    switch_seconds: float


WAYS = {
    "nothing is compiled": Way(False, False, SWITCH_SECONDS),
    "the thread compiles, 5 ms": Way(True, False, 0.005),
    "the thread compiles": Way(True, False, SWITCH_SECONDS),
    "another process compiles, 5 ms": Way(True, True, 0.005),
    "another process compiles": Way(True, True, SWITCH_SECONDS),
}


def scheduled() -> float:
    """Return the seconds that this thread has computed, and waited for a processor (proc(5))."""
    computed, waited, _ = Path("/proc/thread-self/schedstat").read_text("ascii").split()
    return (int(computed) + int(waited)) / 1e9


def launched(number: torch.Tensor) -> float:
    """Return for how many seconds some launches were blocked."""
    begun, before = time.perf_counter(), scheduled()
    for _ in range(LAUNCHES):
        number.add_(1.0)
    return max(0.0, time.perf_counter() - begun - (scheduled() - before))


def make_ready(blocks: Blocks, *, ahead: bool) -> None:
    """Compile, build and warm the next network."""
    lower_priority()
    graph = resnet50((32, 32, 3), 10, blocks=blocks)
    settings = EngineConfig(name="torch", device="cpu", compile="always")
    engine = load_engine("torch", len(os.sched_getaffinity(0)), settings=settings)
    if ahead:
        engine.compile_ahead(graph, "fp32", BATCH)
    weights = initial_weights(graph, np.random.default_rng(0))
    used = Hyperparameters(batch_size=BATCH, learning_rate=0.1)
    network = engine.build(graph, weights, used)
    network.warm(BATCH)
    network.close()


def measured(way: Way, blocks: Blocks) -> dict[str, float]:
    """Launch beside the making of a network; return what became of the launches."""
    sys.setswitchinterval(way.switch_seconds)
    torch.set_num_threads(1)
    number = torch.zeros(1)
    launched(number)
    thread = threading.Thread(target=partial(make_ready, blocks, ahead=way.ahead), daemon=True)
    begun, before, times = time.perf_counter(), scheduled(), list[float]()
    if way.beside:
        thread.start()
    while thread.is_alive() if way.beside else time.perf_counter() < begun + ALONE_SECONDS:
        times.append(launched(number))
    taken, blocked = time.perf_counter() - begun, sum(times)
    return {
        "longest": max(times),
        "seconds": taken,
        "blocked": blocked,
        "share": blocked / (blocked + scheduled() - before),
    }


def in_a_process_of_its_own(name: str, blocks: Blocks) -> dict[str, float]:
    """Measure one way with nothing compiled yet."""
    environment = dict(os.environ)
    with own_kernel_caches(environment):
        command = [sys.executable, __file__, "--way", name]
        command += ["--blocks", ",".join(map(str, blocks))]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {found}", file=sys.stderr, flush=True)
    return found


def _blocks(text: str) -> Blocks:
    first, second, third, fourth = map(int, text.split(","))
    return first, second, third, fourth


def main() -> None:
    """Run the command line: the median of some rounds, a line a way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=_blocks, default=RESNET50_BLOCKS, help="of each stage")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measured(WAYS[options.way], options.blocks)))
        return
    rounds = [
        {name: in_a_process_of_its_own(name, options.blocks) for name in WAYS}
        for _ in range(options.rounds)
    ]
    print(f"{options.rounds} rounds, PyTorch {torch.__version__}; medians\n")
    print(f"| | {LAUNCHES} launches blocked at most, ms | beside, s | blocked, s | blocked |")
    print("|---|---|---|---|---|")
    for name in WAYS:
        found = {
            key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]
        }
        print(
            f"| {name} | {1e3 * found['longest']:.0f} | {found['seconds']:.1f} "
            f"| {found['blocked']:.1f} | {found['share']:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
