from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from tests.support.networks import sequential

from aiperf_hpc.errors import CountError
from aiperf_hpc.graph import (
    LAYERS,
    Add,
    AtrousConv2D,
    BatchNorm,
    ChannelAffine,
    Concat,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    Graph,
    ImagePool2D,
    Input,
    Layer,
    LeakyReLU,
    MaxPool2D,
    MaxPool3D,
    Node,
    ProposalHead,
    RegionAlign,
    RegionAverage,
    ReLU,
    Scale,
    Shape,
    Tanh,
    Tile,
)
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.layers import COSTS, LayerContext, Operations


def backward(graph: Graph, name: str) -> int:
    return count(graph).layers[name].operations.backward


IMAGE = Node("image", Input((5, 7, 3)))


def conv(name: str, source: str) -> Node:
    """3 x 3, stride 2: from 5 x 7 to 3 x 4."""
    return Node(name, Conv2D(4, 3, 2), (source,))


FORWARD = 2 * 3 * 3 * 3 * 4 * 3 * 4
UPDATE = 2 * 3 * 3 * 3 * 4


@dataclass(frozen=True, slots=True)
class Sigmoid(Layer):
    kind: ClassVar[str] = "sigmoid"

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


@dataclass(frozen=True, slots=True)
class DilatedConv2D(Conv2D):
    kind: ClassVar[str] = "dilated_conv2d"

    dilation: int = 2


@pytest.mark.parametrize("layer", [Sigmoid(), DilatedConv2D(4, 3)])
def test_an_unknown_layer_is_an_error_that_names_the_node(layer: Layer) -> None:
    graph = Graph((IMAGE, Node("strange", layer, ("image",)), Node("relu", ReLU(), ("strange",))))
    with pytest.raises(CountError, match=f"node 'strange': .*'{layer.kind}'"):
        count(graph)


def test_every_layer_of_the_vocabulary_has_a_formula() -> None:
    assert set(COSTS) == set(LAYERS.values())


def test_a_huge_graph_is_counted_without_rounding() -> None:
    side = 2**31 - 1
    graph = Graph((Node("image", Input((side, side, 3))), Node("conv", Conv2D(5, 7), ("image",))))
    assert count(graph).forward == 2 * 49 * 3 * 5 * side * side


def test_layers_have_their_names_shapes_and_parameters() -> None:
    graph = Graph((IMAGE, conv("conv", "image"), Node("norm", BatchNorm(), ("conv",))))
    layers = count(graph).layers.items()
    names = [(name, c.kind, c.output, c.parameters) for name, c in layers]
    assert names == [
        ("image", "input", (5, 7, 3), 0),
        ("conv", "conv2d", (3, 4, 4), 3 * 3 * 3 * 4),
        ("norm", "batch_norm", (3, 4, 4), 4 + 4),
    ]


@pytest.mark.parametrize(
    ("below", "gradient"),
    [
        ((), False),
        ((Node("fixed", ReLU(), ("image",)),), False),
        ((Node("fixed", MaxPool2D(3, 1), ("image",)),), False),
        ((Node("norm", BatchNorm(), ("image",)),), True),
        # One trained branch below an addition is enough.
        ((Node("a", Conv2D(3, 1), ("image",)), Node("sum", Add(), ("image", "a"))), True),
    ],
)
def test_a_convolution_has_a_gradient_by_its_input_where_something_below_is_trained(
    below: tuple[Node, ...], gradient: bool
) -> None:
    nodes = (IMAGE, *below)
    graph = Graph((*nodes, conv("conv", nodes[-1].name)))
    assert backward(graph, "conv") == (1 + gradient) * FORWARD + UPDATE


def test_a_dense_layer_on_the_samples_has_no_gradient_by_them() -> None:
    graph = sequential(samples=Input((6,)), first=Dense(5), second=Dense(2))
    assert backward(graph, "first") == 2 * 6 * 5 + 2 * (6 + 1) * 5
    assert backward(graph, "second") == 2 * (2 * 5 * 2) + 2 * (5 + 1) * 2


def test_an_addition_of_three_is_two_additions() -> None:
    graph = Graph((IMAGE, Node("sum", Add(), ("image", "image", "image"))))
    assert count(graph).forward == 2 * 5 * 7 * 3


VOLUME = Node("volume", Input((6, 5, 7, 3)))


@pytest.mark.parametrize(
    ("layer", "operations"),
    [
        (LeakyReLU(), (1 + 1) * 6 * 5 * 7 * 3),
        (Scale(1.2), 6 * 5 * 7 * 3),
        (Tanh(), (1 + 8 + 1 + 4 + 1) * 6 * 5 * 7 * 3),
        (MaxPool3D(2, 2), 8 * 3 * 3 * 4 * 3),
        (MaxPool3D(3, 2), 27 * 3 * 3 * 4 * 3),
        (Dropout(0.5), 0),
        (Flatten(), 0),
    ],
)
def test_layers_without_parameters_cost_what_the_convention_says(
    layer: Layer, operations: int
) -> None:
    graph = Graph((VOLUME, Node("layer", layer, ("volume",))))
    counted = count(graph)
    assert counted.forward == operations
    assert counted.backward == 0


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_volumes_is_counted_at_its_output(bias: bool) -> None:
    """A bias is in the update, as a dense layer's is."""
    volume, first = Input((6, 5, 7, 3)), Conv3D(4, 3, 2, bias=bias)
    graph = sequential(volume=volume, first=first, second=Conv3D(2, 2))
    layers = count(graph).layers
    forward, update = 2 * 27 * 3 * 4 * (3 * 3 * 4), 2 * (27 * 3 + int(bias)) * 4
    assert layers["first"].operations.forward == forward
    assert layers["first"].operations.update == update
    assert backward(graph, "first") == forward + update
    assert layers["second"].operations.forward == 2 * 8 * 4 * 2 * (3 * 3 * 4)
    assert backward(graph, "second") == 2 * (2 * 8 * 4 * 2 * 3 * 3 * 4) + 2 * 8 * 4 * 2


@pytest.mark.parametrize(
    ("layer", "kernel", "places"),
    [
        (DepthwiseConv2D(3, 2), 9 * 3, 3 * 4),
        (DepthwiseConv2D(3, 1, 2), 9 * 3, 5 * 7),
        (AtrousConv2D(4, 3, 6), 9 * 3 * 4, 5 * 7),
        (Conv2D(4, 3, bias=True), 9 * 3 * 4, 5 * 7),
        (ConvTranspose2D(4, 3, 2), 9 * 3 * 4, 5 * 7),
    ],
)
def test_a_convolution_is_counted_at_the_places_where_its_kernel_lies(
    layer: Layer, kernel: int, places: int
) -> None:
    """A transposed one at those of its input. Behind a normalisation there is a gradient by it."""
    nodes = (IMAGE, Node("norm", BatchNorm(), ("image",)), Node("conv", layer, ("norm",)))
    found = count(Graph(nodes)).layers["conv"].operations
    assert found.forward == 2 * kernel * places
    assert found.update == 2 * (kernel + 4 * getattr(layer, "bias", False))
    assert found.backward == 2 * found.forward + found.update


def test_what_is_copied_costs_nothing_and_a_scale_with_a_shift_two_an_element() -> None:
    nodes = (
        IMAGE,
        Node("affine", ChannelAffine(), ("image",)),
        Node("pool", ImagePool2D(), ("affine",)),
        Node("tile", Tile(5, 7), ("pool",)),
        Node("concat", Concat(), ("image", "tile")),
    )
    forward = {name: c.operations.forward for name, c in count(Graph(nodes)).layers.items()}
    elements = 5 * 7 * 3
    assert forward == {
        "image": 0, "affine": 2 * elements, "pool": elements + 4 * 3, "tile": 0, "concat": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "inputs", "input_gradient", "expected"),
    [
        # 9 x 2 x 6 = 108 shared weights and 6 x 3 + 6 x 12 = 90 behind them on 20 places, which
        # always need the gradient by what they read; 6 + 3 + 12 biases are in the update.
        (ProposalHead(6, 3), ((4, 4, 2), (2, 2, 2)), False,
         Operations(40 * 198, 40 * 108 + 80 * 90 + 2 * 219, 2 * 219)),
        (ProposalHead(6, 3), ((4, 4, 2), (2, 2, 2)), True,
         Operations(40 * 198, 80 * 198 + 2 * 219, 2 * 219)),
        # Each of 5 x 7 x 7 x 3 = 735 elements is a weighted sum of 4 places of 4 samples.
        (RegionAlign(7, (8,)), ((5, 4), (10, 12, 3)), True, Operations(2 * 16 * 735)),
        (RegionAverage(), ((5, 7, 7, 3),), True, Operations(735 + 4 * 5 * 3)),
    ],
)  # fmt: skip
def test_layers_of_a_detector_are_counted_at_all_places_and_regions(
    layer: Layer, inputs: tuple[Shape, ...], input_gradient: bool, expected: Operations
) -> None:
    context = LayerContext(layer, inputs, layer.output_shape(*inputs), input_gradient)
    assert COSTS[type(layer)].operations(context) == expected
