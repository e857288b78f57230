"""The ranks' comparison of weights: our checksum beside a CRC-32 of copies, as it was before.

    python benchmarks/checksum.py [--repeats 20]    # a table in Markdown

ResNet-50 for 1,000 classes, 25.6 million parameters, on the CPU: milliseconds for both engines,
median (least to most), in turns within one process.
"""

from __future__ import annotations

import argparse
import os
import time
import zlib
from collections.abc import Callable

import numpy as np
from side_by_side import machine, spread

from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import RankNetwork
from aiperf_hpc.trial import Hyperparameters


def of_copies(network: RankNetwork) -> int:
    """Copy all weights to the host, and compute a CRC-32 of the parameters."""
    digest = 0
    for name, array in sorted(network.weights().items()):
        if not name.endswith(("/mean", "/variance")):
            digest = zlib.crc32(np.ascontiguousarray(array).data, digest)
    return digest


def of_weights(network: RankNetwork) -> int:
    """Have the network compute its checksum, and wait for it."""
    return network.checksum()()


def milliseconds(action: Callable[[RankNetwork], int], network: RankNetwork) -> float:
    """Return how long it takes."""
    began = time.perf_counter()
    action(network)
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    cores = len(os.sched_getaffinity(0))
    graph = resnet50((224, 224, 3), 1000)
    weights = initial_weights(graph, np.random.default_rng(0))
    print(f"{machine()}, {cores} cores; {repeats} times, median (least to most)\n")
    print("| engine | CRC-32 of copies, ms | checksum where the weights are, ms |\n|---|---|---|")
    for name in ("tensorflow", "torch"):
        used = Hyperparameters(batch_size=8, learning_rate=0.1)
        network = load_engine(name, cores).build(graph, weights, used)
        of_weights(network)  # TensorFlow traces it.
        pairs = [
            (milliseconds(of_copies, network), milliseconds(of_weights, network))
            for _ in range(repeats)
        ]
        before, after = zip(*pairs, strict=True)
        print(f"| {name} | {spread(before)} | {spread(after)} |")
        network.close()


if __name__ == "__main__":
    main()
