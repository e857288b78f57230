"""1 x 1 convolutions on a CPU, three ways: as they are, over one row of all pixels, as a product.

python benchmarks/pointwise.py                  # those of ResNet-50 at 32², batches of 128, bf16
python benchmarks/pointwise.py --size 224 --batch 16 --precision fp32

Each way is the forward pass, the gradient of what is read and that of the weights, by PyTorch and
its oneDNN: the best of several, as a share of the best convolution's operations a second. Strided
ones read what is left of their images.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable

import torch
from side_by_side import machine
from torch import Tensor
from training import Case, convolution_peak, network

from aiperf_hpc.graph import Conv2D, Graph
from aiperf_hpc.replica.engines.torch.device import keep_freed_memory

REPEATS = 8
Pass = Callable[[], object]


def best(call: Pass) -> float:
    """Return the least seconds of some calls."""
    seconds = []
    for _ in range(2 + REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds[2:])


def shapes(graph: Graph) -> Counter[tuple[int, int, int]]:
    """Return how often a side, and channels read and made, occur."""
    found: Counter[tuple[int, int, int]] = Counter()
    for node in graph.nodes:
        if isinstance(node.layer, Conv2D) and node.layer.kernel == 1:
            ((side, _, channels),) = graph.input_shapes(node.name)
            found[math.ceil(side / node.layer.stride), channels, node.layer.channels] += 1
    return found


def images(of: Tensor, samples: int, height: int, width: int) -> Tensor:
    """Return rows of channels as channels-last images, of the same memory."""
    return of.view(samples, height, width, -1).permute(0, 3, 1, 2)


def convolution(x: Tensor, kernel: Tensor, slope: Tensor) -> tuple[Pass, Pass, Pass]:
    """Return the passes of a convolution; all tensors are channels-last images."""

    def backward(mask: list[bool]) -> Pass:
        options = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        return lambda: torch.ops.aten.convolution_backward(slope, x, kernel, None, *options, mask)

    return (
        lambda: torch.conv2d(x, kernel),
        backward([True, False, False]),
        backward([False, True, False]),
    )


def product(x: Tensor, kernel: Tensor, slope: Tensor) -> tuple[Pass, Pass, Pass]:
    """Return the passes of a product of matrices, (pixels, channels) by (made, channels)."""
    return lambda: x @ kernel.t(), lambda: slope @ kernel, lambda: slope.t() @ x


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    keep_freed_memory()
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    peak = max(convolution_peak(options.precision, options.cores))
    print(f"{machine()}, {options.cores} cores; {options.precision}, {peak / 1e9:.0f} GOPS\n")
    print("| side | channels | times | as it is: ms, share | one row: ms, share | product |")
    print("|---|---|---|---|---|---|")
    sums = [0.0, 0.0, 0.0]
    graph = network(Case(options.size, options.batch, options.precision, 0))
    for (side, read, made), times in sorted(shapes(graph).items(), reverse=True):
        rows = options.batch * side**2
        x, kernel, slope = (
            torch.randn(*shape).to(kind) for shape in ((rows, read), (made, read), (rows, made))
        )
        weights = images(kernel, made, 1, 1)
        ways = (
            convolution(
                images(x, options.batch, side, side),
                weights,
                images(slope, options.batch, side, side),
            ),
            convolution(images(x, 1, 1, rows), weights, images(slope, 1, 1, rows)),
            product(x, kernel, slope),
        )
        seconds = [sum(map(best, way)) for way in ways]
        sums = [a + times * b for a, b in zip(sums, seconds, strict=True)]
        operations = 3 * 2 * rows * read * made
        cells = [f"{s * 1e3:.2f}, {operations / s / peak:.0%}" for s in seconds]
        print(f"| {side} | {read} to {made} | {times} | {' | '.join(cells)} |")
    print(f"| | | all | {' | '.join(f'{s * 1e3:.1f}' for s in sums)} |")


if __name__ == "__main__":
    main()
