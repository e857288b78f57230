"""Operations of one layer for one sample: a function a kind of layer, in Python integers.

Convention (Ren et al. 2021): a multiply-accumulate is 2 operations;
an addition, subtraction, multiplication or comparison is 1; a division or square root is 4; an
exponential is 8. fvcore and ptflops count a multiply-accumulate as 1.

Where the paper is not consistent with itself (softmax, global average pooling and the backward
pass of batch normalisation, three small rows of its Table 3), and for layers that it does not
have, docs/decisions/counting.md says which reading is taken here and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from aiperf_hpc.graph import (
    Add,
    AtrousConv2D,
    BatchNorm,
    BiasedConv2D,
    BoxShifts,
    ChannelAffine,
    ClassScores,
    Concat,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    Dense,
    DepthwiseConv2D,
    Detector,
    Dropout,
    Embedding,
    FanOutConv2D,
    FanOutDense,
    Flatten,
    GlobalAveragePool2D,
    GlorotDense,
    ImagePool2D,
    Input,
    IntegerInput,
    Layer,
    LeakyReLU,
    MaxPool2D,
    MaxPool3D,
    NearestResize2D,
    PositionwiseDense,
    ProposalHead,
    Proposals,
    RegionAlign,
    RegionAverage,
    RegionConv2D,
    RegionFlatten,
    ReLU,
    SameMaxPool2D,
    Scale,
    Shape,
    Softmax,
    Tanh,
    Tile,
    UniformConv2D,
)

MAC = 2
ADD = MULTIPLY = COMPARE = 1
DIVIDE = 4
EXP = 8


@dataclass(frozen=True, slots=True)
class LayerContext:
    """A layer where it stands: what it reads, what it makes, what trains below it."""

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    input_gradient: bool
    """Whether something before this layer is trained, so that its inputs need gradients."""

    @property
    def elements(self) -> int:
        """How many numbers it makes."""
        return math.prod(self.output)

    @property
    def parameters(self) -> dict[str, Shape]:
        """The shape of each of its trainable parameters."""
        return self.layer.parameters(*self.inputs)


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one layer for one sample."""

    forward: int
    backward: int = 0
    """Operations of the gradients and the update together."""
    update: int = 0
    """The part of ``backward`` that applies the gradients to the weights."""


Formula = Callable[[LayerContext], Operations]

TABLE: dict[type[Layer], Formula] = {}
"""Formulas by their layers' classes. A class that is not here cannot be counted."""


def counts(*layers: type[Layer]) -> Callable[[Formula], Formula]:
    """Register a function as the count of layers of exactly these classes."""

    def register(formula: Formula) -> Formula:
        TABLE.update(dict.fromkeys(layers, formula))
        return formula

    return register


@counts(
    Input,
    IntegerInput,
    Flatten,
    Dropout,
    Concat,
    Tile,
    NearestResize2D,
    RegionFlatten,
    Proposals,
    Detector,
)
def nothing(context: LayerContext) -> Operations:
    """Return zero: what is there is taken as it is, or put elsewhere.

    A dropout is nothing too: it is the identity in validation, where the forward count is
    credited; that it draws and multiplies in training is not credited. So are choices of boxes,
    which are comparisons: how many of them it takes is the data's to say.
    """
    del context
    return Operations(0)


@counts(Embedding)
def embedding(context: LayerContext) -> Operations:
    """Return zero forward, which looks rows up; an addition an element for their gradients, and
    2 a weight for the update, which is of the whole table."""
    (table,) = context.layer.parameters(*context.inputs).values()
    update = MAC * math.prod(table)
    return Operations(0, ADD * context.elements + update, update)


@counts(
    AtrousConv2D,
    BiasedConv2D,
    Conv2D,
    Conv3D,
    DepthwiseConv2D,
    FanOutConv2D,
    RegionConv2D,
    UniformConv2D,
)
def convolution(context: LayerContext) -> Operations:
    """Return 2 k² Ci Co, or 2 k³ Ci Co, at each place of the output, and as much for the update.

    Of a depthwise one, 2 k² C: each channel is convolved by itself. A bias counts as a dense
    layer's does: 2 Co in the update, nothing forward.
    """
    kernel = math.prod(context.parameters["kernel"])
    return _trained(context, MAC * kernel * math.prod(context.output[:-1]))


@counts(ConvTranspose2D)
def transposed_convolution(context: LayerContext) -> Operations:
    """Return 2 k² Ci Co at each place of the input, and as much for the update."""
    kernel = math.prod(context.parameters["kernel"])
    return _trained(context, MAC * kernel * math.prod(context.inputs[0][:-1]))


@counts(Dense, FanOutDense, GlorotDense)
def dense(context: LayerContext) -> Operations:
    """Return 2 Ci Co forward, and 2 (Ci + 1) Co for the update of weights and bias."""
    return _trained(context, MAC * math.prod(context.parameters["kernel"]))


@counts(PositionwiseDense, ClassScores, BoxShifts)
def positionwise_dense(context: LayerContext) -> Operations:
    """Return 2 Ci Co for each vector forward, and as ``dense`` for the update."""
    vectors = context.output[0]
    return _trained(context, MAC * vectors * math.prod(context.parameters["kernel"]))


@counts(ProposalHead)
def proposal_head(context: LayerContext) -> Operations:
    """Return what its three convolutions take at all places; nothing for the ReLU between them.

    Those of 1 x 1 always need the gradient by what they read: the one before them is trained.
    """
    sizes = {name: math.prod(shape) for name, shape in context.parameters.items()}
    places = sum(math.prod(shape[:2]) for shape in context.inputs)
    shared = MAC * places * sizes["shared_kernel"]
    behind = MAC * places * (sizes["score_kernel"] + sizes["box_kernel"])
    update = MAC * sum(sizes.values())
    gradients = (1 + int(context.input_gradient)) * shared + 2 * behind
    return Operations(shared + behind, gradients + update, update)


@counts(RegionAlign)
def region_align(context: LayerContext) -> Operations:
    """Return a multiply-accumulate for each of 4 x 4 weighted places an element."""
    return Operations(MAC * 4 * RegionAlign.samples**2 * context.elements)


@counts(RegionAverage)
def region_average(context: LayerContext) -> Operations:
    """Return an addition an input element and a division a channel of each region."""
    return Operations(ADD * math.prod(context.inputs[0]) + DIVIDE * context.elements)


def _trained(context: LayerContext, forward: int) -> Operations:
    """Return this with the update, 2 a parameter, and the gradients.

    The gradient by the weights and, where it is needed, that by the inputs each cost as much as
    the forward pass. A layer below which nothing is trained computes no gradient by its inputs.
    """
    update = MAC * sum(math.prod(shape) for shape in context.parameters.values())
    gradients = 1 + int(context.input_gradient)
    return Operations(forward, gradients * forward + update, update)


@counts(BatchNorm)
def batch_norm(context: LayerContext) -> Operations:
    """Return 7 an element."""
    return Operations(7 * context.elements)


@counts(ChannelAffine)
def channel_affine(context: LayerContext) -> Operations:
    """Return a multiplication and an addition an element."""
    return Operations((MULTIPLY + ADD) * context.elements)


@counts(ReLU)
def relu(context: LayerContext) -> Operations:
    """Return a comparison an element."""
    return Operations(COMPARE * context.elements)


@counts(LeakyReLU)
def leaky_relu(context: LayerContext) -> Operations:
    """Return a comparison and a multiplication an element."""
    return Operations((COMPARE + MULTIPLY) * context.elements)


@counts(Tanh)
def tanh(context: LayerContext) -> Operations:
    """Return what 1 - 2 / (exp(2x) + 1) takes an element, the cheapest form of it: 15."""
    return Operations((MULTIPLY + EXP + ADD + DIVIDE + ADD) * context.elements)


@counts(Scale)
def scale(context: LayerContext) -> Operations:
    """Return a multiplication an element."""
    return Operations(MULTIPLY * context.elements)


@counts(Add)
def add(context: LayerContext) -> Operations:
    """Return an addition an element for each input after the first."""
    return Operations(ADD * (len(context.inputs) - 1) * context.elements)


@counts(MaxPool2D, SameMaxPool2D, MaxPool3D)
def max_pool(context: LayerContext) -> Operations:
    """Return a comparison for each element of the window, k² or k³, an element."""
    axes = len(context.output) - 1
    return Operations(COMPARE * context.layer.window.kernel**axes * context.elements)


@counts(GlobalAveragePool2D, ImagePool2D)
def global_average_pool2d(context: LayerContext) -> Operations:
    """Return an addition an input element and one division a channel."""
    height, width, channels = context.inputs[0]
    return Operations(ADD * height * width * channels + DIVIDE * channels)


@counts(Softmax)
def softmax(context: LayerContext) -> Operations:
    """Return an exponential, an addition and a division a class: 13 a class."""
    return Operations((EXP + ADD + DIVIDE) * context.elements)
