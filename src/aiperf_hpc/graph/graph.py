"""The graph of layers: validated on construction, serialized as JSON, identified by its hash.

A layer is recorded as the kind of its class and all of its fields. If ``VARIANTS`` has a kind for
its parameters, it is recorded as that kind and the remaining fields. Graphs stored by earlier
versions remain readable, and a network has the same record and hash in all versions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, TypeVar

from aiperf_hpc.errors import GraphError, restated
from aiperf_hpc.graph import layers
from aiperf_hpc.graph.layers import LAYERS, Layer, Shape
from aiperf_hpc.graph.layers.base import require
from aiperf_hpc.untrusted.files import parsed_json

T = TypeVar("T")

MOST_NODES = 20_000
"""Maximum number of nodes. ResNet-50 has 175; the limit is twice the size of the deepest network
that can be configured."""
MOST_INPUTS = 256
"""Maximum number of inputs of a node that adds or concatenates."""


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of layers with one output, valid by construction.

    ``nodes`` may be passed in any order; they are stored in topological order.

    Raises:
        GraphError: a name is duplicate or unknown, an edge closes a cycle, a layer has the wrong
            number of inputs or incompatible ones, or there is not exactly one output. The
            message names the node.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", _sorted_and_checked(tuple(self.nodes)))
        self.shapes  # noqa: B018 -- inferring the shapes is the rest of the validation

    def __hash__(self) -> int:
        """Hash of all nodes with their names, computed once because graphs are cache keys."""
        return self._node_hash

    @cached_property
    def _node_hash(self) -> int:
        return hash(self.nodes)

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name, in topological order."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Output shape of every node."""
        shapes: dict[str, Shape] = {}
        for node in self.nodes:
            try:
                shapes[node.name] = node.layer.output_shape(*[shapes[i] for i in node.inputs])
            except GraphError as error:
                raise GraphError(f"node {node.name!r} ({node.kind}): {error}") from None
        return shapes

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes that read each node's output."""
        consumers: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(node.inputs):
                consumers[source].append(node.name)
        return {name: tuple(readers) for name, readers in consumers.items()}

    @property
    def output(self) -> Node:
        """Output node."""
        return self.nodes[-1]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input nodes, in graph order."""
        return tuple(node.name for node in self.nodes if not node.inputs)

    def dtype(self, name: str) -> str:
        """Return the NumPy type name of a node's output."""
        return self.by_name[name].layer.dtype

    def input_shapes(self, name: str) -> tuple[Shape, ...]:
        """Return the input shapes of a node, in order."""
        return tuple(self.shapes[source] for source in self.by_name[name].inputs)

    @cached_property
    def parameters(self) -> Mapping[str, Shape]:
        """Shape of every trainable parameter, by name ``node/parameter``."""
        return self._of_each(lambda node: node.layer.parameters(*self.input_shapes(node.name)))

    @cached_property
    def statistics(self) -> Mapping[str, Shape]:
        """Shape of every array that is updated without a gradient, by name ``node/statistic``."""
        return self._of_each(lambda node: node.layer.statistics(*self.input_shapes(node.name)))

    @cached_property
    def decayed(self) -> frozenset[str]:
        """Parameters subject to weight decay, named as in ``parameters``."""
        return frozenset(
            f"{node.name}/{key}" for node in self.nodes for key in node.layer.decayed
        ).intersection(self.parameters)

    @cached_property
    def penalties(self) -> Mapping[str, float]:
        """Factors of the L2 penalties of parameters, named as in ``parameters``."""
        return self._of_each(lambda node: node.layer.penalties)

    def _of_each(self, values: Callable[[Node], Mapping[str, T]]) -> dict[str, T]:
        """Return the values of every node, by name ``node/value``."""
        return {f"{n.name}/{key}": value for n in self.nodes for key, value in values(n).items()}

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters."""
        return sum(math.prod(shape) for shape in self.parameters.values())

    @property
    def depth(self) -> int:
        """Maximum number of layers with a kernel on a path from an input to the output."""
        depth: dict[str, int] = {}
        for node in self.nodes:
            own = int("kernel" in node.layer.parameters(*self.input_shapes(node.name)))
            depth[node.name] = own + max((depth[i] for i in node.inputs), default=0)
        return depth[self.output.name]

    @cached_property
    def hash(self) -> str:
        """128-bit hexadecimal hash, independent of the names and the order of the nodes."""
        return hash_of(self.nodes, self.consumers)

    def to_json(self) -> str:
        """Return the graph as JSON, readable by ``from_json``."""
        nodes = [
            {
                "name": node.name,
                "kind": node.kind,
                **recorded(node.layer).fields,
                "inputs": list(node.inputs),
                **({"inserted": True} if node.inserted else {}),
            }
            for node in self.nodes
        ]
        return json.dumps({"schema": SCHEMA_VERSION, "nodes": nodes})

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Read a graph.

        Raises:
            GraphError: the text is not JSON, has an unsupported schema, or its graph is invalid.
        """
        with restated("the graph is not JSON", GraphError, caught=ValueError):
            document = parsed_json(text)
        if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
            raise GraphError("the graph has no list 'nodes'")
        if document.get("schema") != SCHEMA_VERSION:
            raise GraphError(
                f"the graph has schema {document.get('schema')!r}; "
                f"this version reads schema {SCHEMA_VERSION}"
            )
        return cls(tuple(_node_from_json(item) for item in document["nodes"]))


def _sorted_and_checked(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    require(len(nodes) <= MOST_NODES, f"a graph has at most {MOST_NODES:,} nodes")
    for node in nodes:
        fits = len(node.inputs) <= MOST_INPUTS
        require(fits, f"node {node.name[:60]!r} has more than {MOST_INPUTS} inputs")
    if not _is_in_order(nodes):
        nodes = _sorted(nodes)
    for node in nodes:
        least, most = node.layer.inputs
        count = len(node.inputs)
        if count < least or (most is not None and count > most):
            wanted = f"{least}" if most == least else f"at least {least}"
            raise GraphError(f"node {node.name!r} ({node.kind}) has {count} inputs, needs {wanted}")
    read = {source for node in nodes for source in node.inputs}
    outputs = [node.name for node in nodes if node.name not in read]
    if len(outputs) != 1:
        raise GraphError(
            f"a graph needs exactly one output, these nodes have no consumer: {outputs}"
        )
    if nodes[-1].name == outputs[0]:
        return nodes
    # The output comes last, regardless of the order of the branches.
    last = next(node for node in nodes if node.name == outputs[0])
    return tuple(n for n in nodes if n is not last) + (last,)


def _is_in_order(nodes: tuple[Node, ...]) -> bool:
    """Return whether names are valid and nodes follow their inputs, as after every morphism."""
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen or not node.name or "/" in node.name:
            return False
        if not seen.issuperset(node.inputs):
            return False
        seen.add(node.name)
    return True


def _sorted(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return nodes in topological order. Raises GraphError if there is none."""
    by_name: dict[str, Node] = {}
    for node in nodes:
        require(bool(node.name) and "/" not in node.name, f"node name {node.name!r} is not valid")
        require(node.name not in by_name, f"node {node.name!r} occurs twice")
        by_name[node.name] = node
    for node in nodes:
        for source in node.inputs:
            require(source in by_name, f"node {node.name!r} reads {source!r}, which does not exist")
    sorter = TopologicalSorter({node.name: node.inputs for node in nodes})
    try:
        return tuple(by_name[name] for name in sorter.static_order())
    except CycleError as error:
        raise GraphError(f"node {error.args[1][0]!r} is part of a cycle of edges") from None


def _node_from_json(item: object) -> Node:
    if not isinstance(item, dict):
        raise GraphError(f"a node must be an object, got {item!r}")
    values = dict(item)
    name, kind = values.pop("name", None), values.pop("kind", None)
    sources, inserted = values.pop("inputs", []), values.pop("inserted", False)
    require(isinstance(name, str), f"a node's name must be text, got {name!r}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise GraphError(f"node {name!r} has the unknown kind {kind!r}; known: {sorted(KINDS)}")
    with restated(f"node {name!r} ({kind})", GraphError, caught=(TypeError, GraphError)):
        require(isinstance(sources, list), f"inputs must be a list of names, got {sources!r}")
        return Node(name, layer_from(kind, values), tuple(map(str, sources)), inserted is True)


VARIANTS: Mapping[str, tuple[type[Layer], Mapping[str, object]]] = {
    "conv2d": (layers.Conv2D, {"initial": "he_normal", "bias": False}),
    "fan_out_conv2d": (layers.Conv2D, {"initial": "fan_out_truncated_normal", "bias": False}),
    "uniform_conv2d": (layers.Conv2D, {"initial": "fan_in_uniform", "stride": 1}),
    "biased_conv2d": (layers.Conv2D, {"initial": "glorot_uniform", "stride": 1, "bias": True}),
    "dense": (layers.Dense, {"initial": "he_normal", "l2": 0.0}),
    "fan_out_dense": (layers.Dense, {"initial": "fan_out_truncated_normal", "l2": 0.0}),
    "glorot_dense": (layers.Dense, {"initial": "glorot_uniform"}),
    "positionwise_dense": (layers.PositionwiseDense, {"initial": "he_normal", "l2": 0.0}),
    "class_scores": (layers.PositionwiseDense, {"initial": "normal_hundredth", "l2": 0.0}),
    "box_shifts": (layers.PositionwiseDense, {"initial": "normal_thousandth", "l2": 0.0}),
    "input": (layers.Input, {"dtype": "float32"}),
    "integer_input": (layers.Input, {"dtype": "int32"}),
    "max_pool2d": (layers.MaxPool2D, {"same": False}),
    "same_max_pool2d": (layers.MaxPool2D, {"same": True}),
}
"""Kinds of layers with some fixed fields, which are not recorded."""
KINDS: Mapping[str, type[Layer]] = LAYERS | {kind: layer for kind, (layer, _) in VARIANTS.items()}
"""Layer classes by recorded kind."""


class Recorded(NamedTuple):
    """Recorded form of a layer."""

    kind: str
    fields: Mapping[str, object]
    text: str
    """Text that enters the graph's hash."""


@lru_cache(maxsize=65_536)
def recorded(layer: Layer) -> Recorded:
    """Return the recorded form of a layer, cached because networks repeat layers."""
    held = {field.name: getattr(layer, field.name) for field in fields(layer)}
    for kind, (cls, fixed) in VARIANTS.items():
        if type(layer) is cls and fixed.items() <= held.items():
            free = {key: value for key, value in held.items() if key not in fixed}
            text = ", ".join(f"{key}={value!r}" for key, value in free.items())
            # The kind's former class name, such as FanOutConv2D for fan_out_conv2d.
            return Recorded(kind, free, f"{kind.title().replace('_', '')}({text})")
    return Recorded(layer.kind, held, repr(layer))


def layer_from(kind: str, values: Mapping[str, object]) -> Layer:
    """Return the layer of a recorded kind and its fields.

    Raises:
        GraphError: a value is invalid.
        TypeError: a field is missing or unknown.
    """
    fixed = {} if kind in LAYERS else VARIANTS[kind][1]
    return KINDS[kind](**fixed, **values)


SCHEMA_VERSION = 1
"""Version of the content of a graph's JSON and hash."""


@dataclass(frozen=True, slots=True)
class Node:
    """A named layer and the names of its input nodes, in order."""

    name: str
    layer: Layer
    inputs: tuple[str, ...] = ()
    inserted: bool = False
    """Whether a morphism inserted the node. Provenance only, not part of the graph's hash."""

    @property
    def kind(self) -> str:
        """Recorded kind of the layer."""
        return recorded(self.layer).kind


class GraphBuilder:
    """A network under construction."""

    def __init__(self, *inputs: Node) -> None:
        self.nodes = list(inputs)

    @property
    def last(self) -> str:
        """Name of the last node."""
        return self.nodes[-1].name

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        """Add a node, which reads the last one unless other inputs are named; return its name."""
        self.nodes.append(Node(name, layer, inputs or (self.last,)))
        return name

    def graph(self) -> Graph:
        """Return the complete network."""
        return Graph(tuple(self.nodes))


def hash_of(nodes: Sequence[Node], consumers: Mapping[str, tuple[str, ...]]) -> str:
    """Return a 128-bit hexadecimal hash that depends only on layers and edges.

    Nodes are colored from the inputs down and from the output up. Two rounds of Weisfeiler-Lehman
    refinement then distinguish a layer with two readers from two equal layers.

    Args:
        nodes: nodes of the graph, in topological order.
        consumers: names of the nodes that read each node's output.
    """
    by_name = {node.name: node for node in nodes}
    above: dict[str, str] = {}
    for node in nodes:
        sources = [above[source] for source in node.inputs]
        text = recorded(node.layer).text
        above[node.name] = _digest_of(f"({text}, {_ordered(node.layer, sources)})")
    below: dict[str, str] = {}
    for node in reversed(nodes):
        readers = (by_name[name] for name in consumers[node.name])
        places = [(below[r.name], _places(r, node.name)) for r in readers]
        below[node.name] = _digest_of(f"({recorded(node.layer).text}, {sorted(places)})")
    color = {name: _digest(above[name], below[name]) for name in above}
    for _ in range(2):
        color = {
            node.name: _digest(
                color[node.name],
                _ordered(node.layer, [color[source] for source in node.inputs]),
                sorted(color[reader] for reader in consumers[node.name]),
            )
            for node in nodes
        }
    return _digest(SCHEMA_VERSION, sorted(color.values()))


def _digest(*parts: object) -> str:
    return _digest_of(repr(parts))


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _ordered(layer: Layer, colors: list[str]) -> list[str]:
    return sorted(colors) if layer.commutative else colors


def _places(reader: Node, source: str) -> tuple[int, ...]:
    """Return the input positions of ``source`` in ``reader``, or their number if commutative."""
    places = tuple(i for i, name in enumerate(reader.inputs) if name == source)
    return (len(places),) if reader.layer.commutative else places
