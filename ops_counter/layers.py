"""The costs of one layer for one sample: its operations, and the elements it moves.

A function a layer for each, in Python integers; ``traffic.py`` has the model of the memory.

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
from typing import NamedTuple

from aiperf_hpc.graph import Layer, Shape, layers

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

OPERATIONS: dict[type[Layer], Formula] = {}
"""Formulas by their layers' classes. A class that is not here cannot be counted."""


def counts(*layers: type[Layer]) -> Callable[[Formula], Formula]:
    """Register a function as the count of layers of exactly these classes."""

    def register(formula: Formula) -> Formula:
        OPERATIONS.update(dict.fromkeys(layers, formula))
        return formula

    return register


@counts(
    layers.Input,
    layers.Flatten,
    layers.Dropout,
    layers.Concat,
    layers.Tile,
    layers.NearestResize2D,
    layers.RegionFlatten,
    layers.Proposals,
    layers.Detector,
)
def nothing(context: LayerContext) -> Operations:
    """Return zero: what is there is taken as it is, or put elsewhere.

    A dropout is nothing too: it is the identity in validation, where the forward count is
    credited; that it draws and multiplies in training is not credited. So are choices of boxes,
    which are comparisons: how many of them it takes is the data's to say.
    """
    del context
    return Operations(0)


@counts(layers.Embedding)
def embedding(context: LayerContext) -> Operations:
    """Return zero forward, which looks rows up; an addition an element for their gradients, and
    2 a weight for the update, which is of the whole table."""
    (table,) = context.layer.parameters(*context.inputs).values()
    update = MAC * math.prod(table)
    return Operations(0, ADD * context.elements + update, update)


@counts(
    layers.AtrousConv2D,
    layers.Conv2D,
    layers.Conv3D,
    layers.DepthwiseConv2D,
    layers.RegionConv2D,
)
def convolution(context: LayerContext) -> Operations:
    """Return 2 k² Ci Co, or 2 k³ Ci Co, at each place of the output, and as much for the update.

    Of a depthwise one, 2 k² C: each channel is convolved by itself. A bias counts as a dense
    layer's does: 2 Co in the update, nothing forward.
    """
    kernel = math.prod(context.parameters["kernel"])
    return _trained(context, MAC * kernel * math.prod(context.output[:-1]))


@counts(layers.ConvTranspose2D)
def transposed_convolution(context: LayerContext) -> Operations:
    """Return 2 k² Ci Co at each place of the input, and as much for the update."""
    kernel = math.prod(context.parameters["kernel"])
    return _trained(context, MAC * kernel * math.prod(context.inputs[0][:-1]))


@counts(layers.Dense)
def dense(context: LayerContext) -> Operations:
    """Return 2 Ci Co forward, and 2 (Ci + 1) Co for the update of weights and bias."""
    return _trained(context, MAC * math.prod(context.parameters["kernel"]))


@counts(layers.PositionwiseDense)
def positionwise_dense(context: LayerContext) -> Operations:
    """Return 2 Ci Co for each vector forward, and as ``dense`` for the update."""
    vectors = context.output[0]
    return _trained(context, MAC * vectors * math.prod(context.parameters["kernel"]))


@counts(layers.ProposalHead)
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


@counts(layers.RegionAlign)
def region_align(context: LayerContext) -> Operations:
    """Return a multiply-accumulate for each of 4 x 4 weighted places an element."""
    return Operations(MAC * 4 * layers.RegionAlign.samples**2 * context.elements)


@counts(layers.RegionAverage)
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


@counts(layers.BatchNorm)
def batch_norm(context: LayerContext) -> Operations:
    """Return 7 an element."""
    return Operations(7 * context.elements)


@counts(layers.ChannelAffine)
def channel_affine(context: LayerContext) -> Operations:
    """Return a multiplication and an addition an element."""
    return Operations((MULTIPLY + ADD) * context.elements)


@counts(layers.ReLU)
def relu(context: LayerContext) -> Operations:
    """Return a comparison an element."""
    return Operations(COMPARE * context.elements)


@counts(layers.LeakyReLU)
def leaky_relu(context: LayerContext) -> Operations:
    """Return a comparison and a multiplication an element."""
    return Operations((COMPARE + MULTIPLY) * context.elements)


@counts(layers.Tanh)
def tanh(context: LayerContext) -> Operations:
    """Return what 1 - 2 / (exp(2x) + 1) takes an element, the cheapest form of it: 15."""
    return Operations((MULTIPLY + EXP + ADD + DIVIDE + ADD) * context.elements)


@counts(layers.Scale)
def scale(context: LayerContext) -> Operations:
    """Return a multiplication an element."""
    return Operations(MULTIPLY * context.elements)


@counts(layers.Add)
def add(context: LayerContext) -> Operations:
    """Return an addition an element for each input after the first."""
    return Operations(ADD * (len(context.inputs) - 1) * context.elements)


@counts(layers.MaxPool2D, layers.MaxPool3D)
def max_pool(context: LayerContext) -> Operations:
    """Return a comparison for each element of the window, k² or k³, an element."""
    axes = len(context.output) - 1
    return Operations(COMPARE * context.layer.window.kernel**axes * context.elements)


@counts(layers.GlobalAveragePool2D, layers.ImagePool2D)
def global_average_pool2d(context: LayerContext) -> Operations:
    """Return an addition an input element and one division a channel."""
    height, width, channels = context.inputs[0]
    return Operations(ADD * height * width * channels + DIVIDE * channels)


@counts(layers.Softmax)
def softmax(context: LayerContext) -> Operations:
    """Return an exponential, an addition and a division a class: 13 a class."""
    return Operations((EXP + ADD + DIVIDE) * context.elements)


class Moved(NamedTuple):
    """Elements of activations and their gradients that one sample moves."""

    forward: int
    backward: int = 0


TrafficFormula = Callable[[LayerContext, bool], Moved]
"""From a layer where it stands, and whether what can be fused is."""

TRAFFIC: dict[type[Layer], TrafficFormula] = {}
"""Traffic formulas by their layers' classes."""


def moves(*layers: type[Layer]) -> Callable[[TrafficFormula], TrafficFormula]:
    """Register a function as the traffic of layers of exactly these classes."""

    def register(formula: TrafficFormula) -> TrafficFormula:
        TRAFFIC.update(dict.fromkeys(layers, formula))
        return formula

    return register


def _read(context: LayerContext) -> int:
    return sum(math.prod(shape) for shape in context.inputs)


def _pointwise(context: LayerContext, fused: bool, forward: int, backward: int) -> Moved:
    """Return so many times the elements, in the backward pass where there is one; none fused."""
    if fused:
        return Moved(0)
    return Moved(
        forward * context.elements, backward * context.elements * int(context.input_gradient)
    )


@moves(layers.Input, layers.Flatten, layers.RegionFlatten)
def nothing_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return zero: samples are read by the layers behind, and a view moves nothing."""
    del context, fused
    return Moved(0)


@moves(
    layers.AtrousConv2D,
    layers.Conv2D,
    layers.Conv3D,
    layers.ConvTranspose2D,
    layers.Dense,
    layers.DepthwiseConv2D,
    layers.PositionwiseDense,
    layers.ProposalHead,
    layers.RegionConv2D,
)
def product_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return input and output forward and for the gradient by the weights; again by the inputs.

    The gradient by the weights reads the input and the output's gradient; that by the inputs reads
    the output's gradient and writes its own. No unfolded copy of the input is counted.
    """
    del fused
    both = _read(context) + context.elements
    return Moved(both, both * (1 + int(context.input_gradient)))


@moves(layers.BatchNorm)
def batch_norm_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return 3 an element forward: read for the moments, read again, written.

    Backward 2 for the gradients of scale and shift, which read input and gradient, and 3 more for
    the input's gradient, which needs their sums first.
    """
    if fused:
        return Moved(0)
    return Moved(3 * context.elements, (2 + 3 * int(context.input_gradient)) * context.elements)


@moves(layers.ChannelAffine)
def channel_affine_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return 2 an element forward; backward 2 for the gradients of scale and shift, which read
    input and gradient, and 2 for the input's gradient."""
    if fused:
        return Moved(0)
    return Moved(2 * context.elements, (2 + 2 * int(context.input_gradient)) * context.elements)


@moves(layers.Concat)
def concat_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return 2 an element forward and backward: a copy, unless each input is made where it is to
    be."""
    return _pointwise(context, fused, 2, 2)


@moves(layers.Tile)
def tile_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return the output written forward, unless who reads it repeats it; its gradient read."""
    return Moved(0 if fused else context.elements, context.elements * int(context.input_gradient))


@moves(layers.ReLU, layers.LeakyReLU, layers.Tanh, layers.Softmax)
def activation_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return 2 an element forward, and 3 backward: the output too says what the slope is."""
    return _pointwise(context, fused, 2, 3)


@moves(layers.Scale)
def scale_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return 2 an element forward, and 2 backward: the slope is the same everywhere."""
    return _pointwise(context, fused, 2, 2)


@moves(layers.Dropout)
def dropout_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return 3 an element forward and 3 backward, the mask of what is kept among them."""
    return _pointwise(context, fused, 3, 3)


@moves(layers.Add)
def add_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return each input and the output; fused, each input but the one that is being made.

    The gradient by each input is the output's, the same tensor: nothing moves.
    """
    return Moved(_read(context) - context.elements if fused else _read(context) + context.elements)


@moves(layers.MaxPool2D, layers.MaxPool3D)
def max_pool_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return input and output forward; backward the input read again and its gradient written."""
    del fused
    read, made = _read(context), context.elements
    return Moved(read + made, (2 * read + made) * int(context.input_gradient))


@moves(layers.GlobalAveragePool2D, layers.ImagePool2D, layers.RegionAverage)
def global_average_pool2d_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return input and output, forward and backward."""
    del fused
    both = _read(context) + context.elements
    return Moved(both, both * int(context.input_gradient))


@moves(layers.NearestResize2D, layers.Detector)
def copied_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return input and output forward, and their gradients backward."""
    both = 0 if fused else _read(context) + context.elements
    return Moved(both, both * int(context.input_gradient))


@moves(layers.Proposals)
def proposals_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return input and output once: what is sorted of them is little."""
    del fused
    return Moved(_read(context) + context.elements)


@moves(layers.RegionAlign)
def region_align_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return 4 places of each of 2 x 2 samples read and one element written; backward the places'
    gradients read and written."""
    del fused
    read = 4 * layers.RegionAlign.samples**2 * context.elements
    return Moved(read + context.elements, (2 * read + context.elements))


@moves(layers.Embedding)
def embedding_traffic(context: LayerContext, fused: bool) -> Moved:
    """Return indices read, rows read and written forward; backward gradients read and added."""
    del fused
    return Moved(_read(context) + 2 * context.elements, _read(context) + 3 * context.elements)
