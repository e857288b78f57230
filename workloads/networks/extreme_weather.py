"""Faster R-CNN on weather maps, a substitute for the network of HPC AI500's benchmark.

The benchmark's code is not public; its paper names Faster R-CNN in TensorFlow. This network follows
the closest public program, tensorpack's (examples/FasterRCNN), in its two variants: on the features
of ResNet-50's fourth stage (C4), and on a feature pyramid (FPN, Lin et al. 2017). The backbone has
its strides in the 3 x 3 convolutions and reads 16 channels. Its normalizations are trained, because
there are no pretrained weights.
"""

from __future__ import annotations

from aiperf_hpc.config import ExtremeWeatherConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Distribution, Graph, Node, Shape, layers
from aiperf_hpc.graph.layers.regions import RATIOS
from aiperf_hpc.morphism.resnet import EXPANSION, ResNetBuilder

INPUT, BOXES = "image", "boxes"
"""Names of the network's inputs: maps and, only in training, ground-truth boxes."""
STRIDES = (4, 8, 16, 32, 64)
"""Strides of the pyramid's levels in pixels; the last level is only for proposals."""
C4_STRIDE = 16
FPN_SIZE, C4_SIZE = 7, 14
"""Size of a region's features along each axis."""
LEAST_SIDE = 64
"""Minimum height and width in pixels, the stride of the coarsest features."""


def extreme_weather(
    image: Shape, boxes: Shape, classes: int, settings: ExtremeWeatherConfig
) -> Graph:
    """Return the network for maps of a shape (height, width, channels).

    Args:
        image: shape of a sample.
        boxes: shape of its ground-truth boxes, (boxes, 5).
        classes: number of classes of a box.
        settings: configurable sizes.

    Raises:
        GraphError: the network does not support maps of that shape.
    """
    if len(image) != 3 or min(image[:2]) < LEAST_SIDE:
        raise GraphError(
            f"a map of {image}: height and width must be at least {LEAST_SIDE}, the stride of the "
            "network's coarsest features"
        )
    made = _Network(image, boxes, settings)
    (made.with_pyramid if settings.variant == "fpn" else made.with_fourth_stage)(classes)
    return made.graph()


class _Network(ResNetBuilder):
    """A network under construction; each method returns the name of the last node that it adds."""

    def __init__(self, image: Shape, boxes: Shape, settings: ExtremeWeatherConfig) -> None:
        self._settings = settings
        self._image = image
        super().__init__(
            Node(INPUT, layers.Input(image)), Node(BOXES, layers.Input(boxes, "int32"))
        )
        self._sizes: dict[str, tuple[int, int]] = {}
        """Height and width of the outputs of the stages."""

    def _stage(
        self,
        number: int,
        source: str,
        conv: type[layers.Conv2D | layers.RegionConv2D] = layers.Conv2D,
    ) -> str:
        """Add a stage of ResNet-50, numbered from 2 to 5 as in the names of features (C4)."""
        for block in range(self._settings.blocks[number - 2]):
            strides = (1, 2 if block == 0 and number > 2 else 1)
            name, width = f"s{number}b{block + 1}", self._settings.width * 2 ** (number - 2)
            source = self.bottleneck(name, source, width, strides, block == 0, conv)
        return source

    def _trunk(self, last: int) -> list[str]:
        """Add the stem and the stages up to ``last``; return the names of the stages' outputs."""
        source = self.conv_norm_relu("stem", INPUT, layers.Conv2D(self._settings.width, 7, 2))
        source = self.add("stem_pool", layers.MaxPool2D(3, 2), source)
        found = []
        for number in range(2, last + 1):
            source = self._stage(number, source)
            self._sizes[source] = self._places(STRIDES[number - 2])
            found.append(source)
        return found

    def _places(self, stride: int) -> tuple[int, int]:
        """Return the height and width of features with a stride, each rounded up."""
        height, width, _ = self._image
        return -(-height // stride), -(-width // stride)

    def with_pyramid(self, classes: int) -> None:
        """Add all layers of the variant on a feature pyramid."""
        settings = self._settings
        levels = self._pyramid(self._trunk(5))
        levels.append(self.add("p6", layers.MaxPool2D(1, 2), levels[-1]))
        regions, rows = self._proposed(levels, STRIDES, settings.fpn_channels, len(RATIOS))
        align = layers.RegionAlign(FPN_SIZE, STRIDES[:-1])
        last = self.add("features", align, regions, *levels[:-1])
        last = self.add("flat", layers.RegionFlatten(), last)
        for number in (1, 2):
            last = self.add(
                f"dense{number}", layers.PositionwiseDense(settings.box_head_width), last
            )
            last = self.add(f"dense{number}_relu", layers.ReLU(), last)
        self._detected(rows, regions, last, classes)

    def _pyramid(self, stages: list[str]) -> list[str]:
        """Add the top-down path from coarse to fine features; return its levels, finest first."""
        above, found = "", []
        for number, stage in reversed(list(enumerate(stages, 2))):
            lateral = self._biased(f"lateral{number}", 1, stage)
            if above:
                resized = layers.NearestResize2D(*self._sizes[stage])
                larger = self.add(f"larger{number}", resized, above)
                lateral = self.add(f"merged{number}", layers.Add(), lateral, larger)
            above = lateral
            found.append(self._biased(f"p{number}", 3, lateral))
        return found[::-1]

    def _biased(self, name: str, kernel: int, source: str) -> str:
        layer = layers.Conv2D(
            self._settings.fpn_channels,
            kernel,
            initial=Distribution.GLOROT_UNIFORM,
            bias=True,
        )
        return self.add(name, layer, source)

    def with_fourth_stage(self, classes: int) -> None:
        """Add all layers of the variant on the fourth stage; the fifth is applied per region."""
        features = self._trunk(4)[-1]
        width = EXPANSION * 4 * self._settings.width
        anchors = len(RATIOS) * len(self._settings.anchors)
        regions, rows = self._proposed([features], (C4_STRIDE,), width, anchors)
        last = self.add("features", layers.RegionAlign(C4_SIZE, (C4_STRIDE,)), regions, features)
        last = self._stage(5, last, layers.RegionConv2D)
        self._detected(rows, regions, self.add("average", layers.RegionAverage(), last), classes)

    def _proposed(
        self, levels: list[str], strides: tuple[int, ...], channels: int, anchors: int
    ) -> tuple[str, str]:
        """Add the region proposal network; return the names of its regions and its rows."""
        settings, (height, width, _) = self._settings, self._image
        rows = self.add("proposal_rows", layers.ProposalHead(channels, anchors), *levels)
        proposals = layers.Proposals(
            count=settings.regions_per_image,
            before=settings.pre_nms_top_n,
            kept=settings.post_nms_top_n,
            levels=tuple((*self._places(stride), stride) for stride in strides),
            sizes=settings.anchors,
            height=height,
            width=width,
        )
        return self.add("regions", proposals, rows, BOXES), rows

    def _detected(self, rows: str, regions: str, features: str, classes: int) -> None:
        score = layers.PositionwiseDense(classes + 1, Distribution.NORMAL_HUNDREDTH)
        shift = layers.PositionwiseDense(4 * (classes + 1), Distribution.NORMAL_THOUSANDTH)
        scores, shifts = self.add("scores", score, features), self.add("shifts", shift, features)
        self.add("detected", layers.Detector(), rows, regions, scores, shifts)
