"""Cost of one layer for one sample: its operations and its memory traffic.

The table ``COSTS`` has the formulas of each layer, in Python integers; ``memory.py`` describes the
memory model.

Convention (Ren et al. 2021): a multiply-accumulate is 2 operations;
an addition, subtraction, multiplication or comparison is 1; a division or square root is 4; an
exponential is 8. fvcore and ptflops count a multiply-accumulate as 1.

The paper is inconsistent in three small rows of its Table 3 (softmax, global average pooling and
the backward pass of batch normalization), and does not cover every layer.
docs/decisions/counting.md states and explains the interpretation used here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiperf_hpc.graph import Layer, Shape, layers

MAC = 2
ADD = MULTIPLY = COMPARE = 1
DIVIDE = 4
EXP = 8


@dataclass(frozen=True, slots=True)
class LayerContext:
    """A layer in its context: shapes of inputs, output and parameters."""

    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    input_gradient: bool
    """Whether its inputs need gradients because an earlier layer is trainable."""
    fused: bool = False
    """Whether the layer is fused with others, which moves less; see ``memory.py``."""

    @property
    def elements(self) -> int:
        """Number of elements of its output."""
        return math.prod(self.output)

    @property
    def parameters(self) -> dict[str, Shape]:
        """Shape of each of its trainable parameters."""
        return self.layer.parameters(*self.inputs)


class Operations(NamedTuple):
    """Operations of one layer for one sample."""

    forward: int
    backward: int = 0
    """Operations of the gradients and the update."""
    update: int = 0
    """Operations of the weight update, included in ``backward``."""


Formula = Callable[[LayerContext], Operations]


def nothing(context: LayerContext) -> Operations:
    """Return zero: data is passed on or moved.

    Dropout counts as zero as well: it is the identity in validation, and its sampling and
    multiplications in training are not credited. So does the selection of boxes, because its number
    of comparisons depends on the data.
    """
    return Operations(0)


def embedding(context: LayerContext) -> Operations:
    """Return zero for the forward lookup, 1 addition per element for the gradients of the rows,
    and 2 per weight for the update of the whole table."""
    (table,) = context.layer.parameters(*context.inputs).values()
    update = MAC * math.prod(table)
    return Operations(0, ADD * context.elements + update, update)


def product(context: LayerContext) -> Operations:
    """Return 2 operations per element of the kernel and output position, and the gradients.

    A convolution has 2 k² Ci Co (2-D) or 2 k³ Ci Co (3-D) per position, a depthwise one 2 k² C, and
    a dense layer 2 Ci Co per vector. A bias counts 2 Co in the update, nothing forward.
    """
    kernel = math.prod(context.parameters["kernel"])
    return _trained(context, MAC * kernel * math.prod(context.output[:-1]))


def transposed_convolution(context: LayerContext) -> Operations:
    """Return 2 k² Ci Co per input position, and the gradients."""
    kernel = math.prod(context.parameters["kernel"])
    return _trained(context, MAC * kernel * math.prod(context.inputs[0][:-1]))


def proposal_head(context: LayerContext) -> Operations:
    """Return the sum of its three convolutions over all positions; the ReLU counts as zero.

    The 1 x 1 convolutions always need input gradients, because the one before them is trainable.
    """
    sizes = {name: math.prod(shape) for name, shape in context.parameters.items()}
    places = sum(math.prod(shape[:2]) for shape in context.inputs)
    shared = MAC * places * sizes["shared_kernel"]
    behind = MAC * places * (sizes["score_kernel"] + sizes["box_kernel"])
    update = MAC * sum(sizes.values())
    gradients = (1 + int(context.input_gradient)) * shared + 2 * behind
    return Operations(shared + behind, gradients + update, update)


def region_align(context: LayerContext) -> Operations:
    """Return a multiply-accumulate for each of 4 x 4 weighted positions per element."""
    return Operations(MAC * 4 * layers.RegionAlign.samples**2 * context.elements)


def _trained(context: LayerContext, forward: int) -> Operations:
    """Return the forward count with gradients and the update, 2 per parameter.

    The weight gradient costs as much as the forward pass, and so does the input gradient, which is
    only computed if an earlier layer is trainable.
    """
    update = MAC * sum(math.prod(shape) for shape in context.parameters.values())
    gradients = 1 + int(context.input_gradient)
    return Operations(forward, gradients * forward + update, update)


def add(context: LayerContext) -> Operations:
    """Return an addition per element for each input after the first."""
    return Operations(ADD * (len(context.inputs) - 1) * context.elements)


def max_pool(context: LayerContext) -> Operations:
    """Return a comparison per element of the window, k² or k³, for each output element."""
    axes = len(context.output) - 1
    return Operations(COMPARE * context.layer.window.kernel**axes * context.elements)


def average(context: LayerContext) -> Operations:
    """Return an addition per input element and a division per channel of the output."""
    return Operations(ADD * math.prod(context.inputs[0]) + DIVIDE * context.elements)


def per_element(operations: int) -> Formula:
    """Return the formula for operations per element of the output, forward; none backward."""
    return lambda context: Operations(operations * context.elements)


class Moved(NamedTuple):
    """Elements of activations and their gradients that a layer moves per sample."""

    forward: int
    backward: int = 0


TrafficFormula = Callable[[LayerContext], Moved]
"""Returns the traffic of a layer in its context."""


def _read(context: LayerContext) -> int:
    return sum(math.prod(shape) for shape in context.inputs)


def pointwise(forward: int, parameters: int, inputs: int) -> TrafficFormula:
    """Return the formula of a pointwise layer, which moves nothing if it is fused.

    Args:
        forward: elements moved per element of the output.
        parameters: backward, for the gradients of its parameters.
        inputs: backward, for the gradient of its input, if it is needed.
    """

    def moved(context: LayerContext) -> Moved:
        if context.fused:
            return Moved(0)
        backward = parameters + inputs * int(context.input_gradient)
        return Moved(forward * context.elements, backward * context.elements)

    return moved


def nothing_traffic(context: LayerContext) -> Moved:
    """Return zero: the next layers read the samples, and a view moves nothing."""
    return Moved(0)


def product_traffic(context: LayerContext) -> Moved:
    """Return input and output forward, for the weight gradient, and for the input gradient.

    The weight gradient reads the input and the output's gradient. The input gradient reads the
    output's gradient and is written. No unfolded copy of the input is counted.
    """
    both = _read(context) + context.elements
    return Moved(both, both * (1 + int(context.input_gradient)))


def tile_traffic(context: LayerContext) -> Moved:
    """Return the output written forward, unless its reader repeats it, and its gradient read."""
    return Moved(
        0 if context.fused else context.elements, context.elements * int(context.input_gradient)
    )


def add_traffic(context: LayerContext) -> Moved:
    """Return each input and the output; if fused, each input but the one being written.

    The gradient of each input is that of the output, the same tensor, so nothing moves.
    """
    return Moved(
        _read(context) - context.elements if context.fused else _read(context) + context.elements
    )


def max_pool_traffic(context: LayerContext) -> Moved:
    """Return input and output forward; backward the input read again and its gradient written."""
    read, made = _read(context), context.elements
    return Moved(read + made, (2 * read + made) * int(context.input_gradient))


def average_traffic(context: LayerContext) -> Moved:
    """Return input and output, forward and backward."""
    both = _read(context) + context.elements
    return Moved(both, both * int(context.input_gradient))


def copied_traffic(context: LayerContext) -> Moved:
    """Return input and output forward, and their gradients backward."""
    both = 0 if context.fused else _read(context) + context.elements
    return Moved(both, both * int(context.input_gradient))


def proposals_traffic(context: LayerContext) -> Moved:
    """Return input and output once; the sorted part is small."""
    return Moved(_read(context) + context.elements)


def region_align_traffic(context: LayerContext) -> Moved:
    """Return 4 positions of each of 2 x 2 samples read and one element written; backward, the
    gradients of these positions read and written."""
    read = 4 * layers.RegionAlign.samples**2 * context.elements
    return Moved(read + context.elements, (2 * read + context.elements))


def embedding_traffic(context: LayerContext) -> Moved:
    """Return indices read, rows read and written forward; backward gradients read and added."""
    return Moved(_read(context) + 2 * context.elements, _read(context) + 3 * context.elements)


class Cost(NamedTuple):
    """Formulas of one class of layers."""

    operations: Formula
    traffic: TrafficFormula


_ACTIVATION: Final = pointwise(2, 0, 3)
"""Backward also reads the output, for the slope."""
COSTS: Final[Mapping[type[Layer], Cost]] = {
    layers.Add: Cost(add, add_traffic),
    layers.AtrousConv2D: Cost(product, product_traffic),
    # Forward reads for the moments, reads again and writes. Backward reads input and gradient for
    # scale and shift, and needs their sums before the input's gradient.
    layers.BatchNorm: Cost(per_element(7), pointwise(3, 2, 3)),
    layers.ChannelAffine: Cost(per_element(MULTIPLY + ADD), pointwise(2, 2, 2)),
    # If fused, each input is written in place.
    layers.Concat: Cost(nothing, pointwise(2, 0, 2)),
    layers.Conv2D: Cost(product, product_traffic),
    layers.Conv3D: Cost(product, product_traffic),
    layers.ConvTranspose2D: Cost(transposed_convolution, product_traffic),
    layers.Dense: Cost(product, product_traffic),
    layers.DepthwiseConv2D: Cost(product, product_traffic),
    layers.Detector: Cost(nothing, copied_traffic),
    # Its traffic includes the mask.
    layers.Dropout: Cost(nothing, pointwise(3, 0, 3)),
    layers.Embedding: Cost(embedding, embedding_traffic),
    layers.Flatten: Cost(nothing, nothing_traffic),
    layers.GlobalAveragePool2D: Cost(average, average_traffic),
    layers.ImagePool2D: Cost(average, average_traffic),
    layers.Input: Cost(nothing, nothing_traffic),
    layers.LeakyReLU: Cost(per_element(COMPARE + MULTIPLY), _ACTIVATION),
    layers.MaxPool2D: Cost(max_pool, max_pool_traffic),
    layers.MaxPool3D: Cost(max_pool, max_pool_traffic),
    layers.NearestResize2D: Cost(nothing, copied_traffic),
    layers.PositionwiseDense: Cost(product, product_traffic),
    layers.ProposalHead: Cost(proposal_head, product_traffic),
    layers.Proposals: Cost(nothing, proposals_traffic),
    layers.ReLU: Cost(per_element(COMPARE), _ACTIVATION),
    layers.RegionAlign: Cost(region_align, region_align_traffic),
    layers.RegionAverage: Cost(average, average_traffic),
    layers.RegionConv2D: Cost(product, product_traffic),
    layers.RegionFlatten: Cost(nothing, nothing_traffic),
    layers.Scale: Cost(per_element(MULTIPLY), pointwise(2, 0, 2)),
    layers.Softmax: Cost(per_element(EXP + ADD + DIVIDE), _ACTIVATION),
    # The cheapest form, 1 - 2 / (exp(2x) + 1).
    layers.Tanh: Cost(per_element(MULTIPLY + EXP + ADD + DIVIDE + ADD), _ACTIVATION),
    layers.Tile: Cost(nothing, tile_traffic),
}
"""Formulas by layer class. Layers of other classes cannot be counted."""
