"""When gradients are final within a backward pass, and what of their reduction it hides.

    python benchmarks/overlap.py [RESULT.json] [--rounds 5] [--gigabytes 0 0.5] [--blocks 1,1,1,1]

ResNet-50 of small images, or one of its kind with fewer blocks, by the engine ``torch`` on two
ranks over gloo, a core each: eager, compiled whole, and compiled in parts, a bucket of gradients
each, which is what ranks do. The three networks are trained in turns by the same two processes, a
few steps a turn. On one host gloo reduces on the cores that compute, which overlap can save nothing
of: so there is a made-up link, too, which sums as gloo does, and before that takes the time that it
has for its gigabytes a second, on no core.
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
STEPS = 4
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


def turn(link: Link, network: DataParallelNetwork, batch: Batch) -> dict[str, Any]:
    """Train for some steps; return what each took, when its buckets were given, and the memory."""
    seconds, given = list[float](), list[list[float]]()
    network.drain_training()
    network.step_times[:] = 0.0
    Path("/proc/self/clear_refs").write_text("5", "utf-8")  # The peak begins anew.
    for _ in range(STEPS):
        link.given.clear()
        begun = time.perf_counter()
        network.train_step(lambda: batch, 0.01)
        seconds.append(time.perf_counter() - begun)
        given.append([each - begun for each in link.given])
    loss = network.drain_training()
    times = dict(zip(("steps", *PARTS), network.step_times.tolist(), strict=True))
    return {"seconds": seconds, "given": given, "loss": loss, "times": times, "peak": peak()}


def peak() -> float:
    """Return the most resident memory since it was begun anew, in MB."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


def work(gigabytes: float, blocks: Blocks, rounds: int) -> None:
    """Do one rank's part of all measurements over a link; rank 0 prints what it finds."""
    link = Link(gigabytes)
    share_cores(link)
    torch.set_num_threads(1)
    batch = part_of(link.rank)
    networks = {way: built(link, way, blocks) for way in WAYS}
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in list(WAYS) if number % 2 else reversed(WAYS):
            result = turn(link, networks[way], batch)
            if number:  # The first one is to warm up.
                found[way].append(result)
                print(f"{way}: {statistics.median(result['seconds']):.3f} s", file=sys.stderr)
    if link.rank == 0:
        sys.stdout.write(f"\n{json.dumps(found)}\n")
        sys.stdout.flush()
    link.close()


def run(gigabytes: float, blocks: Blocks, rounds: int) -> dict[str, Any]:
    """Start the ranks of all measurements over a link; return what rank 0 found."""
    command = [*rank_starter(RANKS, "torch"), sys.executable, __file__, "--work"]
    command += ["--gigabytes", str(gigabytes), "--blocks", ",".join(map(str, blocks))]
    command += ["--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, encoding="utf-8")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(way: str, rounds: list[dict[str, Any]]) -> str:
    """Return a way's line of the table."""
    middle = statistics.median(each for found in rounds for each in found["seconds"])
    last = [[t / each[-1] for t in each] for found in rounds for each in found["given"]]
    places = [statistics.median(column) for column in zip(*last, strict=True)]
    steps = sum(found["times"]["steps"] for found in rounds)
    parts = {p: sum(found["times"][p] for found in rounds) / steps for p in PARTS}
    idle = parts["wait"] + parts["reduce"]
    return (
        f"| {way} | {BATCH * RANKS / middle:.1f} | {1e3 * middle:.0f} | "
        f"{1e3 * parts['wait']:.0f} | {1e3 * parts['reduce']:.0f} | "
        f"{100 * idle / sum(parts.values()):.1f} % | "
        f"{', '.join(f'{place:.2f}' for place in places)} | "
        f"{statistics.median(found['peak'] for found in rounds):.0f} |"
    )


def _blocks(text: str) -> Blocks:
    first, second, third, fourth = map(int, text.split(","))
    return first, second, third, fourth


def main() -> None:
    """Run the command line: a table a link, of medians over all steps of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[0.0, 0.5])
    parser.add_argument("--blocks", type=_blocks, default=RESNET50_BLOCKS, help="of each stage")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.gigabytes[0], options.blocks, options.rounds)
        return
    found: dict[float, dict[str, list[dict[str, Any]]]] = {}
    with own_kernel_caches(os.environ):
        for gigabytes in options.gigabytes:
            ways = found[gigabytes] = run(gigabytes, options.blocks, options.rounds)
            print(f"\n{gigabytes:g} GB/s" if gigabytes else "\ngloo alone")
            print("| | images/s | step, ms | wait | reduce | of it | buckets given at | peak, MB |")
            print("|---|---|---|---|---|---|---|---|")
            for way, results in ways.items():
                print(row(way, results), flush=True)
    if options.result:
        options.result.write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
