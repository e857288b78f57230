"""DeepCAM's network, layer by layer as in MLPerf HPC's reference, with output stride 16.

[mlcommons/hpc, deepcam/src/deepCam/architecture/deeplab_xception.py]

DeepLabv3+ (Chen et al. 2018) has three parts: an Xception encoder of separable convolutions, which
reduces an image by a factor of 16; parallel convolutions with four dilations and the image mean;
and a decoder of transposed convolutions, which also reads features at a quarter of the image size.
A separable convolution is a depthwise convolution followed directly by a 1 x 1 convolution. The
reference's activation is in place, so the decoder's low-level input is the activation of block 1.
"""

from __future__ import annotations

from aiperf_hpc.config import DeepCAMConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Distribution, Graph, GraphBuilder, Node, Shape, layers

INPUT, TARGETS = "image", "mask"
"""Names of the network's input and of the targets of its output."""
STRIDE = 16
"""Reduction factor from the image to the smallest map."""
WIDTH = 32
"""Channels of the reference's first convolution; the numbers below are for this width."""
ENTRY, MIDDLE, LAST, EXIT = (64, 128, 256), 728, 1024, (1536, 1536, 2048)
"""Channels of the entry flow, the middle blocks, the following block and the exit flow."""
RATES = (6, 12, 18)
"""Dilations of the parallel 3 x 3 convolutions."""
EXIT_RATE = 2
"""Dilation of the exit flow."""
DECODER, LOW = 256, 48
"""Channels of the decoder, and of its projection of the low-level features."""


def deepcam(image: Shape, classes: int, settings: DeepCAMConfig) -> Graph:
    """Return the network for images of a shape (height, width, channels).

    Args:
        image: shape of a sample; height and width are multiples of 16.
        classes: number of classes of a pixel.
        settings: configurable sizes.

    Raises:
        GraphError: the network does not support images of that shape.
    """
    if len(image) != 3 or any(side % STRIDE for side in image[:2]):
        raise GraphError(
            f"an image of {image}: height and width must be multiples of {STRIDE}, by which the "
            "network makes it smaller"
        )
    made = _Network(image, settings.width)
    low = made.entry()
    for number in range(4, 4 + settings.middle_blocks):
        made.middle_block(f"block{number}")
    made.exit(f"block{4 + settings.middle_blocks}")
    made.pyramid()
    made.decoder(low, classes)
    return made.graph()


class _Network(GraphBuilder):
    """A network under construction; each method appends nodes to the last one."""

    def __init__(self, image: Shape, width: int) -> None:
        super().__init__(Node(INPUT, layers.Input(image)))
        self._width = width
        self._map = (image[0] // STRIDE, image[1] // STRIDE)

    def entry(self) -> str:
        """Add the entry flow to the smallest map; return the name of the low-level features."""
        narrow, _, wide = ENTRY
        self._normed("conv1", layers.Conv2D(self._scaled(WIDTH), 3, 2))
        self._relu("conv1")
        self._normed("conv2", layers.Conv2D(self._scaled(narrow), 3))
        self._relu("conv2")
        self._entry_block("block1", ENTRY[1])
        low = self._relu("block1")
        for name, channels in (("block2", wide), ("block3", MIDDLE)):
            self._entry_block(name, channels)
            self._relu(name)
        return low

    def middle_block(self, name: str) -> None:
        """Add a residual block of three separable convolutions."""
        read = self.last
        for part in "ab":
            self._relu(self._separable(f"{name}{part}", MIDDLE, normed=True))
        self._separable(f"{name}c", MIDDLE, normed=True)
        self.add(f"{name}_add", layers.Add(), self.last, read)
        self._relu(name)

    def exit(self, name: str) -> None:
        """Add the block after the middle blocks, and the exit flow."""
        read = self.last
        self._relu(self._separable(f"{name}a", MIDDLE, normed=True))
        self._separable(f"{name}b", LAST, normed=True)
        self._separable(f"{name}c", LAST)
        self._shortcut(name, read, LAST, stride=1)
        for number, channels in enumerate(EXIT, 3):
            self._relu(self._separable(f"conv{number}", channels, normed=True, rate=EXIT_RATE))

    def pyramid(self) -> None:
        """Add atrous spatial pyramid pooling (ASPP): parallel branches at several scales."""
        read, channels = self.last, self._scaled(DECODER)
        self._normed("aspp1", layers.Conv2D(channels, 1), read)
        parts = [self._relu("aspp1")]
        for number, rate in enumerate(RATES, 2):
            self._normed(f"aspp{number}", layers.AtrousConv2D(channels, 3, rate), read)
            parts.append(self._relu(f"aspp{number}"))
        self.add("pool", layers.ImagePool2D(), read)
        self.add("pool_conv", layers.Conv2D(channels, 1, initial=Distribution.FAN_IN_UNIFORM))
        self.add("pool_affine", layers.ChannelAffine())
        self._relu("pool")
        parts.append(self.add("pool_tile", layers.Tile(*self._map)))
        self.add("aspp", layers.Concat(), *parts)
        self._normed("merge", layers.Conv2D(channels, 1, initial=Distribution.FAN_IN_UNIFORM))
        self._relu("merge")

    def decoder(self, low: str, classes: int) -> None:
        """Add the decoder to the image size, with the low-level features."""
        channels = self._scaled(DECODER)
        self._up("up1")
        high = self._up("up2")
        self._normed(
            "low",
            layers.Conv2D(self._scaled(LOW), 1, initial=Distribution.FAN_IN_UNIFORM),
            low,
        )
        self.add("decoder", layers.Concat(), high, self._relu("low"))
        for part in "ab":
            self._normed(
                f"fuse{part}",
                layers.Conv2D(channels, 3, initial=Distribution.FAN_IN_UNIFORM),
            )
            self._relu(f"fuse{part}")
        self.add(
            "fusec",
            layers.Conv2D(channels, 1, initial=Distribution.FAN_IN_UNIFORM, bias=True),
        )
        self._up("up3")
        self.add("logits", layers.ConvTranspose2D(classes, 3, 2))
        self.add("probabilities", layers.Softmax())

    def _scaled(self, channels: int) -> int:
        return max(1, channels * self._width // WIDTH)

    def _normed(self, name: str, layer: layers.Layer, *inputs: str) -> str:
        self.add(name, layer, *inputs)
        self.add(f"{name}_norm", layers.BatchNorm())
        return name

    def _relu(self, name: str) -> str:
        return self.add(f"{name}_relu", layers.ReLU())

    def _up(self, name: str) -> str:
        """Add a transposed convolution that doubles the sides of the map."""
        self._normed(name, layers.ConvTranspose2D(self._scaled(DECODER), 3, 2))
        return self._relu(name)

    def _separable(
        self, name: str, channels: int, *, normed: bool = False, stride: int = 1, rate: int = 1
    ) -> str:
        self.add(f"{name}_depthwise", layers.DepthwiseConv2D(3, stride, rate))
        add = self._normed if normed else self.add
        return add(name, layers.Conv2D(self._scaled(channels), 1))

    def _entry_block(self, name: str, channels: int) -> None:
        """Add a block that halves the map, without a final activation."""
        read = self.last
        self._relu(self._separable(f"{name}a", channels, normed=True))
        self._separable(f"{name}b", channels, normed=True)
        self._separable(f"{name}c", channels, stride=2)
        self._shortcut(name, read, channels, stride=2)

    def _shortcut(self, name: str, read: str, channels: int, stride: int) -> None:
        made = self.last
        self._normed(f"{name}_skip", layers.Conv2D(self._scaled(channels), 1, stride), read)
        self.add(f"{name}_add", layers.Add(), made, self.last)
