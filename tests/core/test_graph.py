from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from tests.support.detectors import detector
from tests.support.networks import (
    SMALL,
    THIN,
    cosmoflow,
    deepcam,
    flat_images,
    random_chain,
    residual,
    thin_resnet50_v15,
    two_stems,
    volumes,
)

from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import (
    LAYERS,
    SCHEMA_VERSION,
    Add,
    AtrousConv2D,
    BatchNorm,
    ChannelRole,
    Concat,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    Dense,
    DepthwiseConv2D,
    Distribution,
    Dropout,
    Embedding,
    GlobalAveragePool2D,
    Graph,
    Input,
    Layer,
    LeakyReLU,
    MaxPool2D,
    MaxPool3D,
    Node,
    PositionwiseDense,
    ReLU,
    Scale,
    Shape,
    Tile,
)
from aiperf_hpc.morphism.operators.morphisms import grow

IMAGE = Node("image", Input((8, 6, 3)))


def conv(name: str, source: str, channels: int = 4, kernel: int = 3, stride: int = 1) -> Node:
    return Node(name, Conv2D(channels, kernel, stride), (source,))


def document(*nodes: dict[str, object], schema: object = SCHEMA_VERSION) -> str:
    return json.dumps({"schema": schema, "nodes": nodes})


IMAGE_JSON: dict[str, object] = {"name": "image", "kind": "input", "shape": [8, 6, 3]}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            (IMAGE, Node("a", Add(), ("image", "b")), Node("b", ReLU(), ("a",))),
            "'(a|b)' is part of a cycle",
        ),
        ((IMAGE, Node("a", Add(), ("image", "a"))), "'a' is part of a cycle"),
        ((IMAGE, Node("a", ReLU(), ("elsewhere",))), "'a' reads 'elsewhere', which does not exist"),
        ((IMAGE, Node("image", ReLU(), ("image",))), "'image' occurs twice"),
        ((IMAGE, Node("", ReLU(), ("image",))), "node name '' is not valid"),
        ((IMAGE, Node("a", ReLU(), ("image", "image"))), r"'a' \(relu\) has 2 inputs, needs 1"),
        ((IMAGE, Node("a", Add(), ("image",))), r"'a' \(add\) has 1 inputs, needs at least 2"),
        ((IMAGE, Node("a", Input((1,)), ("image",))), r"'a' \(input\) has 1 inputs, needs 0"),
        (
            (IMAGE, conv("a", "image", 4), Node("sum", Add(), ("image", "a"))),
            r"'sum' \(add\): adds inputs of different shapes \(\(8, 6, 3\), \(8, 6, 4\)\)",
        ),
        ((IMAGE, conv("a", "image"), conv("b", "image")), r"exactly one output.*\['a', 'b'\]"),
        ((), "exactly one output"),
        ((Node("v", Input((4,))), conv("a", "v")), r"'a' \(conv2d\): needs an input \(height"),
    ],
)
def test_an_invalid_graph_is_refused_by_the_nodes_name(
    nodes: tuple[Node, ...], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        Graph(nodes)


@pytest.mark.parametrize(
    ("layer", "shape", "needed"),
    [
        (Dense(2), (8, 6, 3), r"\(features,\)"),
        (MaxPool2D(3, 2), (4,), r"\(height, width"),
        (GlobalAveragePool2D(), (4,), r"\(height, width"),
        (Conv3D(2, 3), (8, 6, 3), r"\(depth, height"),
        (MaxPool3D(2, 2), (8, 6, 3), r"\(depth, height"),
    ],
)
def test_a_layer_refuses_inputs_of_other_axes(layer: Layer, shape: Shape, needed: str) -> None:
    with pytest.raises(GraphError, match=f"needs an input {needed}"):
        layer.output_shape(shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv2D(0, 3), "conv2d: channels must be a whole number of at least 1, got 0"),
        (lambda: Conv2D(4, 2), "conv2d: kernel must be odd, got 2"),
        (lambda: Conv2D(4, 3, 0), "stride"),
        (lambda: Conv2D(True, 3), "channels"),
        (lambda: Conv2D(np.int64(4), 3), "channels"),  # type: ignore[arg-type]
        (lambda: MaxPool2D(4, 2), "max_pool2d: kernel must be odd, got 4"),
        (lambda: LeakyReLU(-0.1), "leaky_relu: slope must be a number of at least 0, got -0.1"),
        (lambda: LeakyReLU(float("nan")), "slope"),
        (lambda: LeakyReLU(True), "slope"),
        (lambda: LeakyReLU("0.3"), "slope"),  # type: ignore[arg-type]
        (lambda: Scale(float("inf")), "scale: factor must be a finite number, got inf"),
        (lambda: Conv2D(4, 3, bias=1), "conv2d: bias must be true or false, got 1"),  # type: ignore[arg-type]
        (lambda: Conv2D(4, 3, 1, "he"), "conv2d: initial .* he_normal, .* 'he'"),  # type: ignore[arg-type]
        (lambda: MaxPool2D(3, 2, same=1), "max_pool2d: same must be true or false, got 1"),  # type: ignore[arg-type]
        (lambda: Dense(4, l2=-0.1), "dense: l2 must be a number of at least 0, got -0.1"),
        (lambda: Dense(4, initial=[]), r"dense: initial .* got \[\]"),  # type: ignore[arg-type]
        (lambda: Input((4,), "int64"), "input: dtype must be float32 or int32, got 'int64'"),
        (lambda: Dropout(-0.5), "rate"),
        (lambda: Dropout(1.0), "dropout: rate must be a number from 0 to below 1, got 1.0"),
        (lambda: DepthwiseConv2D(4), "depthwise_conv2d: kernel must be odd, got 4"),
        (lambda: AtrousConv2D(4, 3, 0), "dilation must be a whole number of at least 1"),
        (
            lambda: ConvTranspose2D(4, 3, 3),
            "a kernel of 3 does not cover all positions at stride 3",
        ),
        (lambda: Input(()), "input: every dimension"),
        (lambda: Input((4, True, 3)), "input: every dimension"),
    ],
)
def test_an_impossible_layer_is_refused(make: Callable[[], Layer], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"schema": 1, "nodes": {}}', "no list 'nodes'"),
        (document(IMAGE_JSON, schema=2), "schema 2; this version reads schema 1"),
        ('{"schema": 1, "nodes": [3]}', "a node must be an object, got 3"),
        (document({"name": "a", "kind": "warp"}), "'a' has the unknown kind 'warp'; known:.*relu"),
        (document({"name": "a", "kind": ["relu"]}), "'a' has the unknown kind"),
        (document({"name": 7, "kind": "relu"}), "name must be text, got 7"),
        (document(IMAGE_JSON | {"size": 4}), r"'image' \(input\):.*size"),
        (document({"name": "image", "kind": "input"}), r"'image' \(input\):.*shape"),
        (document({"name": "image", "kind": "input", "shape": [8.5]}), r"'image' \(input\)"),
        (
            document(IMAGE_JSON, {"name": "a", "kind": "relu", "inputs": "image"}),
            r"'a' \(relu\): inputs must be a list",
        ),
        (
            document(
                IMAGE_JSON,
                {"name": "a", "kind": "conv2d", "channels": 4, "kernel": 2, "inputs": ["image"]},
            ),
            r"'a' \(conv2d\): .*kernel must be odd",
        ),
    ],
)
def test_text_that_is_no_graph_is_refused(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.from_json(text)


@pytest.mark.parametrize(
    "make", [*SMALL, *THIN, volumes, flat_images, cosmoflow, deepcam, detector]
)
def test_json_gives_the_same_graph_back(make: Callable[[], Graph]) -> None:
    graph = make()
    chain = random_chain(graph, 4, np.random.default_rng(0)) if make in (*SMALL, *THIN) else []
    graph = grow(graph, chain)
    again = Graph.from_json(graph.to_json())
    assert again == graph
    assert again.hash == graph.hash
    assert any(n.inserted for n in again.nodes) == bool(chain)


NOT_FIELDS = ("name", "inputs")
FAN_OUT, GLOROT = Distribution.FAN_OUT_TRUNCATED_NORMAL, Distribution.GLOROT_UNIFORM
UNIFORM, THOUSANDTH = Distribution.FAN_IN_UNIFORM, Distribution.NORMAL_THOUSANDTH


@pytest.mark.parametrize(
    ("layer", "recorded"),
    [
        (Conv2D(4, 3, 2), "conv2d channels=4 kernel=3 stride=2"),
        (Conv2D(4, 3, 2, FAN_OUT), "fan_out_conv2d channels=4 kernel=3 stride=2"),
        (Conv2D(4, 3, 1, UNIFORM, True), "uniform_conv2d channels=4 kernel=3 bias=True"),
        (Conv2D(4, 3, 1, GLOROT, True), "biased_conv2d channels=4 kernel=3"),
        (Dense(4), "dense units=4"),
        (Dense(4, FAN_OUT), "fan_out_dense units=4"),
        (Dense(4, GLOROT, 0.5), "glorot_dense units=4 l2=0.5"),
        (PositionwiseDense(4), "positionwise_dense units=4"),
        (PositionwiseDense(4, Distribution.NORMAL_HUNDREDTH), "class_scores units=4"),
        (PositionwiseDense(4, THOUSANDTH), "box_shifts units=4"),
        (Input((4,)), "input shape=[4]"),
        (Input((4,), "int32"), "integer_input shape=[4]"),
        (MaxPool2D(3, 2), "max_pool2d kernel=3 stride=2"),
        (MaxPool2D(3, 2, same=True), "same_max_pool2d kernel=3 stride=2"),
        # Combinations that have no kind of their own.
        (
            Conv2D(4, 3, 2, GLOROT, True),
            "conv2d channels=4 kernel=3 stride=2 initial=glorot_uniform bias=True",
        ),
        (Dense(4, FAN_OUT, 0.5), "dense units=4 initial=fan_out_truncated_normal l2=0.5"),
    ],
)
def test_a_layer_is_recorded_by_the_kind_and_fields_of_earlier_versions(
    layer: Layer, recorded: str
) -> None:
    shapes: dict[type[Layer], Shape] = {Dense: (6,), PositionwiseDense: (5, 6)}
    shape = shapes.get(type(layer), (6, 6, 2))
    source = (Node("image", Input(shape)),) if layer.inputs[0] else ()
    graph = Graph((*source, Node("a", layer, tuple(node.name for node in source))))
    (*_, stored) = json.loads(graph.to_json())["nodes"]
    kind, *fields = (f"{key}={value}" for key, value in stored.items() if key not in NOT_FIELDS)
    assert " ".join([kind.removeprefix("kind="), *fields]) == recorded
    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"bias": True}, "node 'a' .fan_out_conv2d.: .* multiple values .* 'bias'"),
        ({"stride": 0}, "node 'a' .fan_out_conv2d.: conv2d: stride"),
    ],
)
def test_a_recorded_kind_has_its_own_fields_alone(field: dict[str, object], message: str) -> None:
    node = {"name": "a", "kind": "fan_out_conv2d", "channels": 4, "kernel": 3, **field}
    with pytest.raises(GraphError, match=message):
        Graph.from_json(document(IMAGE_JSON, node))


def test_channels_are_put_behind_each_other_and_a_pixel_is_repeated() -> None:
    assert Concat().output_shape((7, 9, 4), (7, 9, 1), (7, 9, 2)) == (7, 9, 7)
    assert Tile(7, 9).output_shape((1, 1, 4)) == (7, 9, 4)
    assert GlobalAveragePool2D().output_shape((7, 9, 4)) == (4,)
    with pytest.raises(GraphError, match="differ in more than channels"):
        Concat().output_shape((7, 9, 4), (7, 8, 4))
    with pytest.raises(GraphError, match=r"repeats one pixel, got \(1, 2, 4\)"):
        Tile(7, 9).output_shape((1, 2, 4))


def test_one_number_is_one_layer_and_one_hash_however_it_is_written() -> None:
    def graph(layer: Layer) -> Graph:
        return Graph((IMAGE, Node("a", layer, ("image",))))

    for same in (LeakyReLU(1), LeakyReLU(np.float64(1.0))):  # type: ignore[arg-type]
        assert graph(same).hash == graph(LeakyReLU(1.0)).hash
    assert graph(Dropout(0)).hash == graph(Dropout(0.0)).hash
    assert graph(Scale(2)).hash == graph(Scale(2.0)).hash != graph(Scale(3)).hash
    assert graph(LeakyReLU(0.1)).hash != graph(LeakyReLU(0.3)).hash
    assert graph(Dropout(0.1)).hash != graph(Dropout(0.5)).hash


def test_every_layer_says_how_what_it_stores_begins_and_what_decays() -> None:
    """Of the arrays that layers really have, none without a beginning, and none besides."""
    words = Graph(
        (Node("words", Input((6,), "int32")), Node("embedded", Embedding(11, 4), ("words",)))
    )
    detectors = [detector(), detector(variant="c4")]
    others = [residual(), volumes(), flat_images(), cosmoflow(), words]
    graphs = [*others, *detectors, deepcam(), thin_resnet50_v15()]
    met: dict[type[Layer], set[str]] = {}
    begun: dict[type[Layer], set[str]] = {}
    for graph in graphs:
        for node in graph.nodes:
            shapes = graph.input_shapes(node.name)
            names = {*node.layer.parameters(*shapes), *node.layer.statistics(*shapes)}
            met.setdefault(type(node.layer), set()).update(names)
            begun.setdefault(type(node.layer), set()).update(node.layer.initial_values)
    assert met.keys() == set(LAYERS.values())
    assert begun == met
    for layer, names in met.items():
        assert layer.decayed <= names
        assert layer.channel_role is not ChannelRole.PRODUCES or "kernel" in names
        assert layer.normalizes == (layer is BatchNorm)


def test_weight_decay_is_for_kernels() -> None:
    graph = volumes()
    kernels = ("one", "two", "three", "shortcut", "hidden", "logits")
    assert graph.decayed == {f"{name}/kernel" for name in kernels}
    assert {"one/bias", "two_norm/gamma", "logits/bias"} <= graph.parameters.keys()


def test_channels_are_changed_where_they_are_made() -> None:
    assert Conv2D(4, 3, 2).with_channels(6) == Conv2D(6, 3, 2)
    assert Conv3D(4, 3, 2, bias=True).with_channels(6) == Conv3D(6, 3, 2, bias=True)
    assert Dense(4).with_channels(6) == Dense(6)
    with pytest.raises(GraphError, match="'relu' makes no channels"):
        ReLU().with_channels(6)


def test_nodes_come_in_topological_order_whatever_the_order_given() -> None:
    graph = residual()
    again = Graph(graph.nodes[::-1])
    seen: set[str] = set()
    for node in again.nodes:
        assert seen.issuperset(node.inputs)
        seen.add(node.name)
    assert again.output.name == "probabilities"


def test_nodes_already_in_order_stay_where_they_are() -> None:
    nodes = residual().nodes
    assert Graph(nodes).nodes == nodes


def test_a_reader_is_named_once_however_often_it_reads() -> None:
    assert two_stems().consumers["relu"] == ("loop_conv", "loop_add")


@pytest.mark.timeout(200)
def test_a_graph_of_thousands_of_nodes_is_no_trouble() -> None:
    nodes = [IMAGE, conv("c", "image", 3)]
    for n in range(2000):
        source = nodes[-1].name
        nodes += [conv(f"c{n}", source, 3), Node(f"a{n}", Add(), (f"c{n}", source))]
    graph = Graph(tuple(reversed(nodes)))
    assert Graph.from_json(graph.to_json()).hash == graph.hash
    assert graph.depth == 2001
