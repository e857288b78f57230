"""ResNet-50 v1 at 224 x 224, against sums written out here and the tables of Ren et al. (2021)."""

from __future__ import annotations

import pytest

from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import GraphCount, count

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


def test_convolutions_forward(counted: GraphCount) -> None:
    written_out = sum(2 * k * k * i * o * side * side for k, i, o, side in convolutions())
    assert written_out == 7_711_850_496
    assert counted.by_kind()["conv2d"].forward == 7_711_850_496


def test_convolutions_backward(counted: GraphCount) -> None:
    total = 2 * 7 * 7 * 3 * 64 * 112 * 112 + 2 * 7 * 7 * 3 * 64  # No gradient by the image.
    for k, i, o, side in convolutions()[1:]:
        total += 2 * (2 * k * k * i * o * side * side) + 2 * k * k * i * o
    assert total == 15_234_582_912
    assert counted.by_kind()["conv2d"].backward == 15_234_582_912


def test_convolutions_update(counted: GraphCount) -> None:
    assert counted.by_kind()["conv2d"].update == sum(
        2 * k * k * i * o for k, i, o, _ in convolutions()
    )


def test_dense(counted: GraphCount) -> None:
    dense = counted.by_kind()["dense"]
    assert dense.forward == 2 * 2048 * 1000 == 4_096_000
    assert dense.backward == 2 * (2 * 2048 * 1000 + 2049 * 1000) == 12_290_000
    assert dense.update == 2 * 2049 * 1000


def test_batch_norms(counted: GraphCount) -> None:
    elements = sum(o * side * side for _, _, o, side in convolutions())
    assert 7 * elements == 74_109_952
    norm = counted.by_kind()["batch_norm"]
    assert (norm.forward, norm.backward, norm.update) == (74_109_952, 0, 0)


def test_relus(counted: GraphCount) -> None:
    elements = 64 * 112 * 112
    for blocks, width, _, side in STAGES:
        elements += blocks * (width + width + 4 * width) * side * side
    relu = counted.by_kind()["relu"]
    assert elements == 9_081_856
    assert (relu.forward, relu.backward) == (9_081_856, 0)


def test_adds(counted: GraphCount) -> None:
    elements = sum(blocks * 4 * width * side * side for blocks, width, _, side in STAGES)
    add = counted.by_kind()["add"]
    assert elements == 5_519_360
    assert (add.forward, add.backward) == (5_519_360, 0)


def test_max_pool(counted: GraphCount) -> None:
    pool = counted.by_kind()["max_pool2d"]
    assert 3 * 3 * 56 * 56 * 64 == 1_806_336
    assert (pool.forward, pool.backward) == (1_806_336, 0)


def test_global_average_pool_adds_and_divides(counted: GraphCount) -> None:
    pool = counted.by_kind()["global_average_pool2d"]
    assert (pool.forward, pool.backward) == (7 * 7 * 2048 + 4 * 2048, 0)


def test_softmax_takes_an_exponential_an_addition_and_a_division(counted: GraphCount) -> None:
    softmax = counted.by_kind()["softmax"]
    assert (softmax.forward, softmax.backward) == ((8 + 1 + 4) * 1000, 0)


def test_nothing_else_is_counted(counted: GraphCount) -> None:
    kinds = counted.by_kind()
    assert set(kinds) == {
        "input", "conv2d", "batch_norm", "relu", "max_pool2d", "add",
        "global_average_pool2d", "dense", "softmax",
    }  # fmt: skip
    assert kinds["input"].forward == 0
    assert counted.forward == (
        7_711_850_496 + 4_096_000 + 74_109_952 + 9_081_856 + 5_519_360 + 1_806_336
        + 108_544 + 13_000
    )  # fmt: skip
    assert counted.backward == 15_234_582_912 + 12_290_000
    assert counted.training == counted.forward + counted.backward


def test_the_totals_of_table_3_in_all_printed_digits(counted: GraphCount) -> None:
    assert f"{counted.forward:.2e}" == "7.81e+09"
    assert f"{counted.backward:.2e}" == "1.52e+10"
    assert f"{counted.backward / counted.forward:.4f}" == "1.9531"
    assert f"{counted.training:.2e}" == "2.31e+10"


def test_an_epoch_of_table_a1_in_all_printed_digits(counted: GraphCount) -> None:
    training, validation = 1_281_167, 50_000
    assert f"{training * counted.forward:.2e}" == "1.00e+16"
    assert f"{training * counted.backward:.2e}" == "1.95e+16"
    assert f"{training * counted.training:.2e}" == "2.95e+16"
    assert f"{validation * counted.forward:.2e}" == "3.90e+14"
    assert f"{training * counted.training + validation * counted.forward:.2e}" == "2.99e+16"
