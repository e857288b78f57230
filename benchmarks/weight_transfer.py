"""How long a child's weights take: every kind of morphism, drawn at random on ResNet-50.

python benchmarks/weight_transfer.py        # on one core; a table in Markdown

The network is that of the preset ``imagenet``: base width 64, 1000 classes, 25.6 million weights.
Time is that of ``Morphism.weights``, wall and processor: on a shared machine they differ. Zeros
that numpy asks of the system are made when they are first touched, so that the last figures add
the reading of every page of what is new, which whoever stores the child pays otherwise.

Memory that this machine has never used before may have to be given to it by its host first: the
largest transfer is made once before all others and stated apart.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import NamedTuple

import numpy as np
from side_by_side import machine

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.operators.base import Morphism
from aiperf_hpc.morphism.operators.deeper import Deeper
from aiperf_hpc.morphism.operators.kernel_size import KernelSize
from aiperf_hpc.morphism.operators.registry import MORPHISMS
from aiperf_hpc.morphism.operators.skip import Skip
from aiperf_hpc.morphism.operators.wider import Wider
from aiperf_hpc.morphism.weights.checkpoint import Array, Weights, initial_weights

PAGE = 4096 // 4
"""Floats in a page of memory."""
REPEATS = 20
"""Repetitions of the largest morphisms."""


class Timed(NamedTuple):
    """Milliseconds of one transfer."""

    wall: float
    processor: float
    read: float
    """The wall time with the reading of every page of what is new."""
    morphism: Morphism


def timed(graph: Graph, weights: Weights, morphism: Morphism, rng: np.random.Generator) -> Timed:
    """Transfer once."""
    began, busy = time.perf_counter(), time.thread_time()
    inherited = morphism.weights(graph, weights, rng)
    wall, busy = time.perf_counter() - began, time.thread_time() - busy
    for name, array in inherited.items():
        if array is not weights.get(name):
            _read(array)
    return Timed(wall * 1e3, busy * 1e3, (time.perf_counter() - began) * 1e3, morphism)


def _read(array: Array) -> float:
    return float(array.ravel(order="K")[::PAGE].sum())


LARGEST = (
    Deeper("s4b3_relu", 3),  # 3x3 from 2,048 to 2,048 channels: 151 MB, nearly all of them zeros.
    KernelSize("s4b1_shortcut_conv", 3),  # 1,024 to 2,048 channels, 75 MB.
    Skip("s3b6_relu", "s4b3_relu"),  # A projection from 1,024 to 2,048 channels, 8 MB.
    Wider("s4b1_c_conv", 4096),  # Seven kernels, 75 MB.
)
"""The morphism of each kind that moves most."""


def row(label: str, found: list[Timed]) -> str:
    """Return one line of the table."""
    figures = [
        figure([getattr(one, what) for one in found])
        for what in ("wall", "processor", "read")
        for figure in (median, max)
    ]
    worst = max(found, key=lambda one: one.wall).morphism
    return " | ".join((f"| {label}", *(f"{f:.1f}" for f in figures), f"{worst} |"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=200, help="morphisms of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(options.seed)
    graph = resnet50()
    weights = initial_weights(graph, rng)
    print(f"{machine()}, one core; numpy {np.__version__}; milliseconds\n")
    first = timed(graph, weights, LARGEST[-1], rng)
    print(f"the first: {first.wall:.1f} wall, {first.processor:.1f} processor\n")
    kinds = ("wall", "processor", "read")
    print("| kind |", " | ".join(f"{k}, median | worst" for k in kinds), "| the worst |")
    print("|---" * 8 + "|")
    for kind in sorted(MORPHISMS):
        drawn = (MORPHISMS[kind].sample(graph, rng) for _ in range(options.number))
        print(row(kind, [timed(graph, weights, one, rng) for one in drawn]), flush=True)
    for morphism in LARGEST:
        found = [timed(graph, weights, morphism, rng) for _ in range(REPEATS)]
        print(row(f"{morphism.kind}, the largest", found), flush=True)


if __name__ == "__main__":
    main()
