"""What of a count cannot be left out: taps inside of what a convolution reads, no updates."""

from __future__ import annotations

from fractions import Fraction

import pytest

from aiperf_hpc.graph import (
    AtrousConv2D,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    Dense,
    DepthwiseConv2D,
    Layer,
    MaxPool2D,
    PositionwiseDense,
    ProposalHead,
    RegionConv2D,
    Shape,
)
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.least_executed import least_executed, share_inside


@pytest.mark.parametrize(
    ("layer", "shape", "share"),
    [
        (Conv2D(8, 7), (7, 7, 4), Fraction(37, 49) ** 2),  # 4 + 5 + 6 + 7 + 6 + 5 + 4 taps of 49.
        (Conv2D(8, 7), (1, 1, 4), Fraction(1, 49)),
        (Conv2D(8, 1), (7, 7, 4), Fraction(1)),
        (Conv2D(8, 3, 2), (8, 8, 4), Fraction(11, 12) ** 2),  # The first of 4 places lacks one.
        (Conv2D(8, 3), (8, 4, 4), Fraction(22, 24) * Fraction(10, 12)),
        (Conv3D(8, 2), (4, 4, 4, 2), Fraction(7, 8) ** 3),  # The last place lacks one, behind.
        (Conv2D(8, 3, bias=True), (4, 4, 4), Fraction(10, 12) ** 2),
        (DepthwiseConv2D(3, 2), (8, 8, 4), Fraction(11, 12) ** 2),
        (DepthwiseConv2D(3, 1, 2), (4, 4, 4), Fraction(8, 12) ** 2),  # 2 + 4 + 2 taps.
        (AtrousConv2D(8, 3, 18), (6, 9, 4), Fraction(1, 9)),  # The middle one alone.
        (AtrousConv2D(8, 3, 6), (9, 48, 4), Fraction(15, 27) * Fraction(132, 144)),
        (ConvTranspose2D(8, 3, 2), (4, 4, 4), Fraction(11, 12) ** 2),  # The first reaches out.
        (RegionConv2D(8, 3), (5, 7, 7, 4), Fraction(19, 21) ** 2),
        (Dense(8), (4,), Fraction(1)),
        (PositionwiseDense(8), (5, 4), Fraction(1)),
        (MaxPool2D(3, 2), (8, 8, 4), Fraction(1)),
        # 9 * 6 kernel elements of 4 * 4 places, 10/12 an axis, and 6 * 15 behind them.
        (
            ProposalHead(6, 3),
            (4, 4, 1),
            (54 * Fraction(10, 12) ** 2 + 90) / 144,
        ),
    ],
)
def test_taps_on_padding_are_left_out(layer: Layer, shape: Shape, share: Fraction) -> None:
    assert share_inside(layer, shape) == share


def test_of_resnet50_at_224_little_is_left_out() -> None:
    graph = resnet50((224, 224, 3), 1000)
    least, counted = least_executed(graph), count(graph)
    updates = sum(layer.operations.update for layer in counted.layers.values())
    assert 0.95 * counted.forward < least.forward < counted.forward
    assert 0.95 * counted.training < least.training < counted.training - updates
