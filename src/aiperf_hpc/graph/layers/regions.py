"""Layers of a two-stage detector such as Faster R-CNN (Ren et al. 2015).

Boxes are (top, left, bottom, right) in pixels of the sample, with bottom and right exclusive.
Regions of a sample have the shape (regions, height, width, channels) or (regions, features).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from aiperf_hpc.graph.layers.base import (
    ChannelRole,
    Distribution,
    InitialValue,
    Layer,
    Shape,
    image,
    is_size,
    layer_class,
    require,
    require_number,
    volume,
)

BOX = 4
"""Number of values of a box."""
SHARED_KERNEL = 3
"""Kernel size of the first convolution of a proposal head."""
RATIOS = (0.5, 1.0, 2.0)
"""Ratios of height to width of the anchors."""
LEVEL = 3
"""Number of values of a feature level: rows, columns and stride in pixels."""

Level = tuple[int, int, int]


@layer_class
class ProposalHead(Layer):
    """The head of a region proposal network, with the same weights on all levels.

    A 3 x 3 convolution with a ReLU is followed by two 1 x 1 convolutions; all have a bias. The
    inputs are the features of the levels, (height, width, channels). The output has a row per
    anchor with a score and four shifts, (anchors, 5), ordered by level, row, column and anchor.
    """

    inputs: ClassVar[tuple[int, int | None]] = (1, None)
    initial_values: ClassVar[Mapping[str, InitialValue]] = {
        f"{part}_{what}": value
        for part in ("shared", "score", "box")
        for what, value in (("kernel", Distribution.NORMAL_HUNDREDTH), ("bias", 0.0))
    }
    decayed: ClassVar[frozenset[str]] = frozenset({"shared_kernel", "score_kernel", "box_kernel"})
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    unfolds_input: ClassVar[bool] = True

    channels: int
    """Channels of the 3 x 3 convolution."""
    anchors: int
    """Number of anchors per position."""

    def places(self, *inputs: Shape) -> int:
        """Return the number of positions on all levels. Raises GraphError if channels differ."""
        require(
            len({image(shape)[2] for shape in inputs}) == 1,
            f"proposal_head: levels must have the same channels, got {inputs}",
        )
        return sum(math.prod(shape[:2]) for shape in inputs)

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.places(*inputs) * self.anchors, 1 + BOX

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        read, made, anchors = image(inputs[0])[2], self.channels, self.anchors
        return {
            "shared_kernel": (SHARED_KERNEL, SHARED_KERNEL, read, made),
            "shared_bias": (made,),
            "score_kernel": (1, 1, made, anchors),
            "score_bias": (anchors,),
            "box_kernel": (1, 1, made, BOX * anchors),
            "box_bias": (BOX * anchors,),
        }


@layer_class
class Proposals(Layer):
    """The region proposals for the second stage, a fixed number per sample.

    The ``before`` anchors with the highest scores of each level are shifted and filtered by
    non-maximum suppression with the threshold ``overlap``; then the best of all levels are
    selected. In training, the ground-truth boxes are added to the best ``kept`` proposals, and
    ``count`` are sampled, at most a quarter of them on a ground-truth box. Missing ones are empty.

    The inputs are the rows of a ``ProposalHead`` and the ground-truth boxes, (boxes, 5), which are
    not read in inference. The output has no gradient.
    """

    inputs: ClassVar[tuple[int, int | None]] = (2, 2)
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED

    count: int
    before: int
    kept: int
    levels: tuple[Level, ...]
    """Rows, columns and stride in pixels of each level."""
    sizes: tuple[int, ...]
    """Sides of square anchors in pixels: one per level, or all for the only level."""
    height: int
    """Height of a sample in pixels."""
    width: int
    overlap: float = 0.7

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(map(tuple, self.levels)))
        object.__setattr__(self, "sizes", tuple(self.sizes))
        Layer.__post_init__(self)
        described = all(len(level) == LEVEL and all(map(is_size, level)) for level in self.levels)
        require(bool(self.levels) and described, "proposals: a level is rows, columns and a stride")
        require(
            bool(self.sizes) and all(map(is_size, self.sizes)),
            "proposals: sizes of anchors are whole numbers of pixels",
        )
        require(
            len(self.levels) in (1, len(self.sizes)),
            f"proposals: {len(self.sizes)} sizes are not one for each of {len(self.levels)} levels",
        )
        above_zero = math.nextafter(0.0, 1.0)
        require_number(self, "overlap", above_zero, 1.0, "above 0 and at most 1")

    @property
    def of_a_level(self) -> tuple[tuple[int, ...], ...]:
        """Anchor sizes of each level."""
        return (self.sizes,) if len(self.levels) == 1 else tuple((size,) for size in self.sizes)

    @property
    def anchors(self) -> tuple[int, ...]:
        """Number of anchors of each level."""
        return tuple(
            rows * columns * len(sizes) * len(RATIOS)
            for (rows, columns, _), sizes in zip(self.levels, self.of_a_level, strict=True)
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        rows, boxes = inputs
        wanted = (sum(self.anchors), 1 + BOX)
        require(rows == wanted, f"proposals: needs rows {wanted} of all anchors, got {rows}")
        fits = len(boxes) == 2 and boxes[1] == BOX + 1
        require(fits, f"proposals: needs true boxes (boxes, 5), got {boxes}")
        return self.count, BOX


@layer_class
class RegionAlign(Layer):
    """RoIAlign: size x size features of each box by bilinear interpolation (He et al. 2017).

    Each feature is the mean of 2 x 2 samples. With several levels, a box uses the level on which
    its size is about 14 to 28 positions (Lin et al. 2017, equation 1). The inputs are boxes,
    (regions, 4), and the features of the levels.
    """

    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    samples: ClassVar[int] = 2
    """Number of samples per feature along each axis."""

    size: int
    strides: tuple[int, ...]
    """Stride of each level in pixels."""

    def __post_init__(self) -> None:
        Layer.__post_init__(self)
        object.__setattr__(self, "strides", tuple(self.strides))
        require(
            bool(self.strides) and all(map(is_size, self.strides)),
            f"region_align: strides are whole numbers of pixels, got {self.strides}"[:200],
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        boxes, *levels = inputs
        require(
            len(boxes) == 2 and boxes[1] == BOX,
            f"region_align: needs boxes (regions, 4) first, got {boxes}",
        )
        channels = {image(shape)[2] for shape in levels}
        require(
            len(channels) == 1 and len(levels) == len(self.strides),
            f"region_align: needs {len(self.strides)} levels of the same channels, got {levels}",
        )
        return boxes[0], self.size, self.size, channels.pop()


@layer_class
class RegionAverage(Layer):
    """Mean over the height and width of each region: (regions, channels)."""

    def output_shape(self, *inputs: Shape) -> Shape:
        regions, _, _, channels = volume(inputs[0])
        return regions, channels


@layer_class
class RegionFlatten(Layer):
    """Each region as a vector with the channels last: (regions, height x width x channels)."""

    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        regions, *rest = volume(inputs[0])
        return regions, math.prod(rest)


@layer_class
class Detector(Layer):
    """All results of a detector in one vector, because a graph has one output.

    The inputs are the rows of a ``ProposalHead``, (anchors, 5), boxes, (regions, 4), class scores,
    (regions, classes), and shifts, (regions, 4 classes), including unused ones of the background.
    The output is their concatenation.
    """

    inputs: ClassVar[tuple[int, int | None]] = (4, 4)
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        rows, boxes, scores, shifts = inputs
        regions = boxes[0]
        fits = all(len(shape) == 2 for shape in inputs) and rows[1] == 1 + BOX and boxes[1] == BOX
        same = fits and scores[0] == shifts[0] == regions and shifts[1] == BOX * scores[1]
        require(
            same,
            "detector: needs rows (anchors, 5), boxes (regions, 4), scores (regions, classes) and "
            f"shifts (regions, 4 classes), got {inputs}",
        )
        return (sum(math.prod(shape) for shape in inputs),)
