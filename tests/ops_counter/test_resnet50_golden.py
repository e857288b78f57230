"""ResNet-50 v1 at 224 x 224, against sums written out here and the tables of Ren et al. (2021)."""

from __future__ import annotations

import pytest

from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import GraphCount, count
from aiperf_hpc.ops_counter.layers import Operations

STAGES = (  # blocks, width, channels in, side of the output
    (3, 64, 64, 56),
    (4, 128, 256, 28),
    (6, 256, 512, 14),
    (3, 512, 1024, 7),
)


def convolutions() -> list[tuple[int, int, int, int]]:
    """(kernel, channels in, channels out, side of the output) of all 53."""
    found = [(7, 3, 64, 112)]
    for blocks, width, inputs, side in STAGES:
        found.append((1, inputs, 4 * width, side))  # The projection of the first block.
        for block in range(blocks):
            found.append((1, inputs if block == 0 else 4 * width, width, side))
            found.append((3, width, width, side))
            found.append((1, width, 4 * width, side))
    return found


@pytest.fixture(scope="module")
def counted() -> GraphCount:
    return count(resnet50())


def test_each_kind_of_layer_against_sums_written_out(counted: GraphCount) -> None:
    """An addition or a comparison is 1 operation, a division 4, an exponential 8."""
    forward = [2 * k * k * i * o * side * side for k, i, o, side in convolutions()]
    kernels = sum(2 * k * k * i * o for k, i, o, _ in convolutions())
    backward = 2 * sum(forward) - forward[0] + kernels  # No gradient by the image.
    norms = 7 * sum(o * side * side for _, _, o, side in convolutions())
    sums = sum(blocks * 4 * width * side * side for blocks, width, _, side in STAGES)
    relus = 64 * 112 * 112 + sum(
        blocks * (width + width + 4 * width) * side * side for blocks, width, _, side in STAGES
    )
    assert (sum(forward), backward) == (7_711_850_496, 15_234_582_912)
    assert (norms, relus, sums) == (74_109_952, 9_081_856, 5_519_360)
    dense = Operations(4_096_000, 2 * 4_096_000 + 2 * 2049 * 1000, 2 * 2049 * 1000)
    assert (dense.forward, dense.backward) == (2 * 2048 * 1000, 12_290_000)
    assert counted.by_kind() == {
        "input": Operations(0),
        "conv2d": Operations(sum(forward), backward, kernels),
        "batch_norm": Operations(norms),
        "relu": Operations(relus),
        "max_pool2d": Operations(3 * 3 * 56 * 56 * 64),
        "add": Operations(sums),
        "global_average_pool2d": Operations(7 * 7 * 2048 + 4 * 2048),
        "dense": dense,
        "softmax": Operations((8 + 1 + 4) * 1000),
    }


def test_the_totals_of_table_3_in_all_printed_digits(counted: GraphCount) -> None:
    assert f"{counted.forward:.2e}" == "7.81e+09"
    assert f"{counted.backward:.2e}" == "1.52e+10"
    assert f"{counted.backward / counted.forward:.4f}" == "1.9531"
    assert f"{counted.training:.2e}" == "2.31e+10"
