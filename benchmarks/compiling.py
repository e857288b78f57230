"""What compiling the next network takes from the thread that launches a training's steps.

    python benchmarks/compiling.py [--rounds 3]

Beside one thread that makes ResNet-50 ready, as a replica does, another launches operations of one
number, which take about no time by themselves: on an accelerator that is what the host does of a
step. Each time is that of 600 launches. Made ready: not at all; by the thread alone; by the thread
once another process has compiled; the two with Python's switch interval as it is by default too.
Every way has a process and empty folders for kernels of its own.
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
from typing import NamedTuple

import numpy as np
import torch

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.main import SWITCH_SECONDS
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.replica.runtime.kernel_caches import own_kernel_caches
from aiperf_hpc.trial import Hyperparameters

LAUNCHES, BATCH = 600, 16
ALONE_SECONDS = 5.0


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


def launched(number: torch.Tensor) -> float:
    """Return the seconds of some launches."""
    begun = time.perf_counter()
    for _ in range(LAUNCHES):
        number.add_(1.0)
    return time.perf_counter() - begun


def make_ready(*, ahead: bool) -> None:
    """Compile, build and warm the next network."""
    lower_priority()
    graph = resnet50((32, 32, 3), 10)
    settings = EngineConfig(name="torch", device="cpu", compile="always")
    engine = load_engine("torch", len(os.sched_getaffinity(0)), settings=settings)
    if ahead:
        engine.compile_ahead(graph, "fp32", BATCH)
    weights = initial_weights(graph, np.random.default_rng(0))
    used = Hyperparameters(batch_size=BATCH, learning_rate=0.1)
    network = engine.build(graph, weights, used)
    network.warm(BATCH)
    network.close()


def measured(way: Way) -> dict[str, float]:
    """Launch beside the making of a network; return what became of the launches."""
    sys.setswitchinterval(way.switch_seconds)
    torch.set_num_threads(1)
    number = torch.zeros(1)
    launched(number)
    alone = statistics.median(launched(number) for _ in range(200))
    thread = threading.Thread(target=make_ready, kwargs={"ahead": way.ahead}, daemon=True)
    begun, times = time.perf_counter(), list[float]()
    if way.beside:
        thread.start()
    while thread.is_alive() if way.beside else time.perf_counter() < begun + ALONE_SECONDS:
        times.append(launched(number))
    taken = time.perf_counter() - begun
    return {
        "alone": alone,
        "median": statistics.median(times),
        "longest": max(times),
        "seconds": taken,
        "lost": taken - alone * len(times),
    }


def in_a_process_of_its_own(name: str) -> dict[str, float]:
    """Measure one way with nothing compiled yet."""
    environment = dict(os.environ)
    with own_kernel_caches(environment):
        command = [sys.executable, __file__, "--way", name]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run the command line: the median of some rounds, a line a way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measured(WAYS[options.way])))
        return
    rounds = [{name: in_a_process_of_its_own(name) for name in WAYS} for _ in range(options.rounds)]
    print(f"{options.rounds} rounds, PyTorch {torch.__version__}; medians\n")
    print(f"| | {LAUNCHES} launches, ms | the longest, ms | beside, s | lost, s | lost |")
    print("|---|---|---|---|---|---|")
    for name in WAYS:
        found = {
            key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]
        }
        share = statistics.median(one[name]["lost"] / one[name]["seconds"] for one in rounds)
        print(
            f"| {name} | {1e3 * found['median']:.2f} | {1e3 * found['longest']:.0f} "
            f"| {found['seconds']:.1f} | {found['lost']:.1f} | {share:.0%} |"
        )


if __name__ == "__main__":
    main()
