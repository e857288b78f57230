"""Layers of a detector of two stages, as Faster R-CNN is (Ren et al. 2015).

Boxes are (top, left, bottom, right) in pixels of the sample, the latter two behind the last row and
column. Regions of one sample are (regions, height, width, channels), or (regions, features).
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
"""Numbers of a box."""
SHARED_KERNEL = 3
"""Of the convolution that a proposal head begins with, along each axis."""
RATIOS = (0.5, 1.0, 2.0)
"""The heights of anchors by their widths."""
LEVEL = 3
"""What is said of a level of features: rows, columns, and the pixels from one to the next."""

Level = tuple[int, int, int]


@layer_class
class ProposalHead(Layer):
    """What tells of each anchor whether something is there, and where: on all levels the same.

    A 3 x 3 convolution with a ReLU, and two of 1 x 1 that read it, each with a bias. Reads the
    levels' features, (height, width, channels); gives a row of an anchor's score and four shifts,
    (anchors, 5), by level, row, column and the anchors of a place.
    """

    kind: ClassVar[str] = "proposal_head"
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
    """Of the 3 x 3 convolution."""
    anchors: int
    """Of a place."""

    def places(self, *inputs: Shape) -> int:
        """Return the places of all levels. Raises GraphError where channels differ."""
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
    """The boxes that the second stage looks at: so many for every sample.

    Of each level the ``before`` anchors of the highest scores, each where its shifts put it,
    without those that lie on one of a higher score by more than ``overlap``; of all levels together
    the best ones. In training the true boxes are put to the best ``kept`` of them, and ``count``
    are drawn: a quarter at most of those that lie on a true box. Where there are fewer, the rest
    are empty.

    Reads the rows of a ``ProposalHead``, and the true boxes, (boxes, 5), which in inference are not
    read. What it gives has no gradient.
    """

    kind: ClassVar[str] = "proposals"
    inputs: ClassVar[tuple[int, int | None]] = (2, 2)
    channel_role: ClassVar[ChannelRole] = ChannelRole.FIXED

    count: int
    before: int
    kept: int
    levels: tuple[Level, ...]
    """Of each: rows, columns, and the pixels from one to the next."""
    sizes: tuple[int, ...]
    """Sides of square anchors in pixels: one a level, or, where there is one, all of it."""
    height: int
    """Of a sample, in pixels."""
    width: int
    overlap: float = 0.7

    def __post_init__(self) -> None:
        for name, value in (
            ("levels", tuple(tuple(level) for level in self.levels)),
            ("sizes", tuple(self.sizes)),
        ):
            object.__setattr__(self, name, value)
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
        """The sizes of each level's anchors."""
        return (self.sizes,) if len(self.levels) == 1 else tuple((size,) for size in self.sizes)

    @property
    def anchors(self) -> tuple[int, ...]:
        """The number of each level's anchors."""
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
    """Each box's features, size x size of them, by bilinear interpolation (He et al. 2017).

    The mean of 2 x 2 samples for each. Of several levels a box has that on which it is some 14 to
    28 places large (Lin et al. 2017, equation 1). Reads boxes, (regions, 4), and the levels'
    features.
    """

    kind: ClassVar[str] = "region_align"
    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    samples: ClassVar[int] = 2
    """Along each axis of one of its values."""

    size: int
    strides: tuple[int, ...]
    """The pixels from one place to the next, of each level."""

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
    """The mean over each region's height and width: (regions, channels)."""

    kind: ClassVar[str] = "region_average"

    def output_shape(self, *inputs: Shape) -> Shape:
        regions, _, _, channels = volume(inputs[0])
        return regions, channels


@layer_class
class RegionFlatten(Layer):
    """Each region as a vector with the channels last: (regions, height x width x channels)."""

    kind: ClassVar[str] = "region_flatten"
    channel_role: ClassVar[ChannelRole] = ChannelRole.REARRANGES
    output_kept: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        regions, *rest = volume(inputs[0])
        return regions, math.prod(rest)


@layer_class
class Detector(Layer):
    """All that a detector says, in one vector, since a graph has one output.

    Reads the rows of a ``ProposalHead``, (anchors, 5), boxes, (regions, 4), their classes' scores,
    (regions, classes), and shifts, (regions, 4 classes), the background's among them, which are of
    no use; gives them behind each other.
    """

    kind: ClassVar[str] = "detector"
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
