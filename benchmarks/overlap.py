"""When gradients are final within a backward pass, and what of their reduction it hides.

    python benchmarks/overlap.py [RESULT.json] [--rounds 3] [--gigabytes 0 0.5] [--blocks 1,1,1,1]

ResNet-50 of small images, or one of its kind with fewer blocks, by the engine ``torch`` on two
ranks over gloo, a core each: eager, compiled whole, and compiled in parts, a bucket of gradients
each, which is what ranks do. The ways take turns, each run by processes of its own; what is
compiled is kept for all rounds. On one host gloo reduces on the cores that compute, which overlap
can save nothing of: so there is a made-up link, too, which sums as gloo does, and before that takes
the time that it has for its gigabytes a second, on no core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from aiperf_hpc.morphism.networks.resnet import RESNET50_BLOCKS, resnet50
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.data.base import Batch, labelled_images
from aiperf_hpc.replica.engines.torch.engine import Placement, TorchEngine
from aiperf_hpc.replica.parallel.collectives.base import Buffer, Pending
from aiperf_hpc.replica.parallel.collectives.torch_distributed import TorchCollective
from aiperf_hpc.replica.parallel.cores import share_cores
from aiperf_hpc.replica.parallel.data_parallel import DataParallelNetwork
from aiperf_hpc.replica.parallel.step_clock import PARTS
from aiperf_hpc.replica.runtime.kernel_caches import own_kernel_caches
from aiperf_hpc.trial import Hyperparameters

Blocks = tuple[int, int, int, int]
RANKS, IMAGE, CLASSES, BATCH = 2, 32, 10, 64
WARM_UP, STEPS = 3, 15
WAYS = {"eager": (False, False), "whole": (True, False), "parts": (True, True)}
"""Whether it is compiled, and whether in parts."""


class Delayed(NamedTuple):
    """A sum that is there at a time at the earliest."""

    inner: Pending
    there: float

    def wait(self) -> Buffer:
        """Return it."""
        total = self.inner.wait()
        time.sleep(max(0.0, self.there - time.perf_counter()))
        return total


class Link(TorchCollective):
    """gloo behind a made-up link; it notes when it was given each bucket."""

    def __init__(self, gigabytes: float) -> None:
        super().__init__()
        self._gigabytes = gigabytes
        self._free = 0.0
        self.given: list[float] = []

    def start_allreduce_sum(self, buffer: Buffer) -> Any:  # noqa: ANN401 -- a pending sum
        """Sum, at the earliest when the link has brought what it was given until now."""
        now = time.perf_counter()
        self.given.append(now)
        pending = super().start_allreduce_sum(buffer)
        if not self._gigabytes:
            return pending
        self._free = max(now, self._free) + 4 * len(buffer) / (1e9 * self._gigabytes)
        return Delayed(pending, self._free)


def part_of(rank: int) -> Batch:
    """Return a rank's part of the batch that all steps train on."""
    rng = np.random.default_rng(rank)
    images = rng.standard_normal((BATCH, IMAGE, IMAGE, 3)).astype(np.float32)
    labels = rng.integers(0, CLASSES, BATCH).astype(np.int32)
    return labelled_images(images, labels, BATCH * RANKS)


def built(link: Link, way: str, blocks: Blocks) -> DataParallelNetwork:
    """Return a network that is warm: rank 0 compiles, and the other finds it compiled."""
    compiled, parted = WAYS[way]
    here = Placement(torch.device("cpu"), 1, compiled=compiled, parted=parted)
    graph = resnet50((IMAGE, IMAGE, 3), CLASSES, blocks=blocks)
    weights = initial_weights(graph, np.random.default_rng(0))
    used = Hyperparameters(batch_size=BATCH, learning_rate=0.01)
    for rank in range(RANKS):
        if rank == link.rank:
            network = TorchEngine(here, CLASSIFICATION).build(graph, weights, used)
            network.warm(BATCH, halves=True)
        link.barrier()
    return DataParallelNetwork(network, graph, weights, link, CLASSIFICATION)


def work(way: str, gigabytes: float, blocks: Blocks) -> None:
    """Do one rank's part of one measurement; rank 0 prints it."""
    link = Link(gigabytes)
    share_cores(link)
    torch.set_num_threads(1)
    network, batch = built(link, way, blocks), part_of(link.rank)
    seconds, given = list[float](), list[list[float]]()
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            network.drain_training()
            network.step_times[:] = 0.0
            seconds.clear()
            given.clear()
        link.given.clear()
        begun = time.perf_counter()
        network.train_step(lambda: batch, 0.01)
        seconds.append(time.perf_counter() - begun)
        given.append([each - begun for each in link.given])
    loss = network.drain_training()
    times = dict(zip(("steps", *PARTS), network.step_times.tolist(), strict=True))
    found = {"seconds": seconds, "given": given, "loss": loss, "times": times}
    if link.rank == 0:
        sys.stdout.write(f"\n{json.dumps(found)}\n")
        sys.stdout.flush()
    network.close()
    link.close()


def run(way: str, gigabytes: float, blocks: Blocks) -> dict[str, Any]:
    """Start the ranks of one measurement; return what rank 0 found."""
    command = [*rank_starter(RANKS, "torch"), sys.executable, __file__, "--work", way]
    command += ["--gigabytes", str(gigabytes), "--blocks", ",".join(map(str, blocks))]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(way: str, rounds: list[dict[str, Any]]) -> str:
    """Return a way's line of the table."""
    seconds = [each for found in rounds for each in found["seconds"]]
    middle = statistics.median(seconds)
    last = [[t / each[-1] for t in each] for found in rounds for each in found["given"]]
    places = [statistics.median(column) for column in zip(*last, strict=True)]
    steps = sum(found["times"]["steps"] for found in rounds)
    parts = {p: sum(found["times"][p] for found in rounds) / steps for p in PARTS}
    idle = parts["wait"] + parts["reduce"]
    return (
        f"| {way} | {BATCH * RANKS / middle:.1f} | {1e3 * middle:.0f} | "
        f"{1e3 * parts['wait']:.0f} | {1e3 * parts['reduce']:.0f} | "
        f"{100 * idle / sum(parts.values()):.1f} % | "
        f"{', '.join(f'{place:.2f}' for place in places)} |"
    )


def _blocks(text: str) -> Blocks:
    first, second, third, fourth = map(int, text.split(","))
    return first, second, third, fourth


def main() -> None:
    """Run the command line: a table a link, of medians over all steps of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[0.0, 0.5])
    parser.add_argument("--blocks", type=_blocks, default=RESNET50_BLOCKS, help="of each stage")
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.gigabytes[0], options.blocks)
        return
    found: dict[float, dict[str, list[dict[str, Any]]]] = {}
    with own_kernel_caches(os.environ):
        for gigabytes in options.gigabytes:
            rounds = found[gigabytes] = {way: [] for way in WAYS}
            for number in range(options.rounds):
                for way in list(WAYS) if number % 2 else reversed(WAYS):
                    rounds[way].append(run(way, gigabytes, options.blocks))
    for gigabytes, ways in found.items():
        print(f"\n{gigabytes:g} GB/s" if gigabytes else "\ngloo alone")
        print("| | images/s | step, ms | wait | reduce | of the step | buckets given at |")
        print("|---|---|---|---|---|---|---|")
        for way, results in ways.items():
            print(row(way, results), flush=True)
    if options.result:
        options.result.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
