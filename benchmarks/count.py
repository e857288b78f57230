"""Time to count a ResNet-50: this package compared with counters for PyTorch.

    python benchmarks/count.py [FILE.json]      # a table in Markdown, a minute

Ours counts graphs that nothing was asked about before: each is read from JSON beforehand, 20 a
round, and their mean is taken. What was counted of a layer in an earlier graph is remembered, as it
is in a search; the first count of a process, which has nothing to remember, is measured in new
processes. Peers run the network once a round, on PyTorch's device ``meta``, which computes nothing,
where they can. PyTorch is required; fvcore, ptflops and torchinfo are measured where they are
installed.

Ours gives forward and backward; so does PyTorch's, whose backward pass is counted too. The others
know the forward pass alone.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from side_by_side import cost, heading, in_turns, machine, row, save, spread
from torch.utils.flop_counter import FlopCounterMode
from torch_resnet50 import resnet50 as torch_resnet50

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import count

GRAPHS = 20
SHAPE = (3, 224, 224)
OURS = "aiperf"
FIRST_SCRIPT = """
import time
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import count
graph = resnet50()
began = time.perf_counter()
count(graph).training
print(time.perf_counter() - began)
"""


def ours() -> Callable[[], float]:
    """Return a function that counts graphs without cached results."""
    text = resnet50().to_json()

    def measure() -> float:
        graphs = [Graph.from_json(text) for _ in range(GRAPHS)]
        began = time.perf_counter()
        for graph in graphs:
            count(graph).training  # noqa: B018 -- summed when it is asked for
        return (time.perf_counter() - began) * 1e3 / GRAPHS

    return measure


def first() -> float:
    """Return the milliseconds of the first count of a new process."""
    return float(cost([sys.executable, "-c", FIRST_SCRIPT]).output) * 1e3


def peer(count_flops: Callable[[], object]) -> Callable[[], float]:
    """Return a function that times a peer."""

    def measure() -> float:
        began = time.perf_counter()
        count_flops()
        return (time.perf_counter() - began) * 1e3

    return measure


def pytorch() -> Callable[[], object]:
    """Return PyTorch's own counter, forward and backward."""
    network, images = _network("meta")

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            network(images).sum().backward()
        return counter.get_total_flops()

    return flops


def fvcore() -> Callable[[], object]:
    """Return fvcore's counter. It traces, which does not work without data."""
    nn = importlib.import_module("fvcore.nn")
    network, images = _network("cpu")

    def flops() -> object:
        analysis = nn.FlopCountAnalysis(network, images)
        analysis.unsupported_ops_warnings(False)
        return analysis.total()

    return flops


def ptflops() -> Callable[[], object]:
    """Return ptflops's counter."""
    package = importlib.import_module("ptflops")
    network, images = _network("meta")
    return lambda: package.get_model_complexity_info(
        network,
        SHAPE,
        as_strings=False,
        print_per_layer_stat=False,
        backend="aten",
        input_constructor=lambda _: {"input": images},
    )


def torchinfo() -> Callable[[], object]:
    """Return torchinfo's counter."""
    package = importlib.import_module("torchinfo")
    network, images = _network("meta")
    return lambda: package.summary(network, input_data=images, verbose=0, device="meta")


PEERS = {
    "torch FlopCounterMode": pytorch,
    "fvcore": fvcore,
    "ptflops": ptflops,
    "torchinfo": torchinfo,
}


def _network(device: str) -> tuple[torch.nn.Module, torch.Tensor]:
    with torch.device(device):
        return torch_resnet50().eval(), torch.zeros(1, *SHAPE)


def main() -> None:
    """Measure all and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?", help="where to write all figures as JSON")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    cases = {OURS: ours(), "aiperf, the first of a process": first}
    for name, make in PEERS.items():
        try:
            cases[f"{name} {version(name.split()[0])}"] = peer(make())
        except ModuleNotFoundError as error:
            print(f"{name} is not measured: the package {error.name} is not installed")
    in_turns(cases, 1)
    found = in_turns(cases, options.rounds)
    print(f"{machine()}; {options.rounds} rounds; milliseconds\n")
    heading("counter", "median (least to most)", "times ours")
    for name, times in found.items():
        row(name, spread(times), f"{median(times) / median(found[OURS]):,.0f}")
    save(options.file, machine(), found)


if __name__ == "__main__":
    main()
