"""The architecture of a network: a frozen graph of typed layers that knows no framework.

Shapes leave the batch dimension out and are channels-last: ``(height, width, channels)`` for
images, ``(features,)`` for vectors. A new layer is one class here, one row in
``ops_counter/layers.py`` and one builder in each engine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import ClassVar, cast

from aiperf_hpc.errors import GraphError

SCHEMA_VERSION = 1

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation of a network. Subclasses add their hyperparameters as fields."""

    kind: ClassVar[str]
    inputs: ClassVar[tuple[int, int | None]] = (1, 1)
    """Least and most number of inputs; ``None`` is unbounded."""
    commutative: ClassVar[bool] = False

    def output_shape(self, *inputs: Shape) -> Shape:
        """Return the output's shape. Raises GraphError when the inputs do not fit."""
        raise NotImplementedError

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        """Return the shape of each trainable parameter."""
        return {}

    def statistics(self, *inputs: Shape) -> dict[str, Shape]:
        """Return the shape of each stored value that training updates without a gradient."""
        return {}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(message)


def _image(shape: Shape) -> tuple[int, int, int]:
    _require(len(shape) == 3, f"needs an input (height, width, channels), got {shape}")
    return shape[0], shape[1], shape[2]


def _positive(layer: Layer, *names: str) -> None:
    for name in names:
        value = getattr(layer, name)
        _require(
            _is_size(value),
            f"{layer.kind}: {name} must be a whole number of at least 1, got {value!r}",
        )


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1  # True is an int too, and no size.


@dataclass(frozen=True, slots=True)
class Input(Layer):
    """The samples of a dataset, of one fixed shape."""

    kind: ClassVar[str] = "input"
    inputs: ClassVar[tuple[int, int | None]] = (0, 0)

    shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        _require(
            len(self.shape) > 0 and all(_is_size(n) for n in self.shape),
            f"input: every dimension must be at least 1, got {self.shape}",
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.shape


@dataclass(frozen=True, slots=True)
class Conv2D(Layer):
    """Bias-free convolution, k x k with odd k, padded by (k - 1) / 2 on every side.

    The symmetric padding makes output positions independent of k, for every stride, so that
    growing a kernel by zeros keeps the function. (TensorFlow's SAME padding does not: with
    stride 2 its windows move when k changes.) Kernel layout: (k, k, in, out).
    """

    kind: ClassVar[str] = "conv2d"

    channels: int
    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        _positive(self, "channels", "kernel", "stride")
        _require(self.kernel % 2 == 1, f"conv2d: kernel must be odd, got {self.kernel}")

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, _ = _image(inputs[0])
        return math.ceil(height / self.stride), math.ceil(width / self.stride), self.channels

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (self.kernel, self.kernel, _image(inputs[0])[2], self.channels)}


@dataclass(frozen=True, slots=True)
class BatchNorm(Layer):
    """Batch normalisation over all but the last axis, with scale (gamma) and shift (beta)."""

    kind: ClassVar[str] = "batch_norm"
    epsilon: ClassVar[float] = 1e-5
    momentum: ClassVar[float] = 0.9

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"gamma": inputs[0][-1:], "beta": inputs[0][-1:]}

    def statistics(self, *inputs: Shape) -> dict[str, Shape]:
        return {"mean": inputs[0][-1:], "variance": inputs[0][-1:]}


@dataclass(frozen=True, slots=True)
class ReLU(Layer):
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Add(Layer):
    """Element-wise sum of two or more inputs of one shape."""

    kind: ClassVar[str] = "add"
    inputs: ClassVar[tuple[int, int | None]] = (2, None)
    commutative: ClassVar[bool] = True

    def output_shape(self, *inputs: Shape) -> Shape:
        _require(len(set(inputs)) == 1, f"adds inputs of different shapes {inputs}")
        return inputs[0]


@dataclass(frozen=True, slots=True)
class MaxPool2D(Layer):
    """Maximum over k x k windows with odd k, padded by (k - 1) / 2 on every side."""

    kind: ClassVar[str] = "max_pool2d"

    kernel: int
    stride: int

    def __post_init__(self) -> None:
        _positive(self, "kernel", "stride")
        _require(self.kernel % 2 == 1, f"max_pool2d: kernel must be odd, got {self.kernel}")

    def output_shape(self, *inputs: Shape) -> Shape:
        height, width, channels = _image(inputs[0])
        return math.ceil(height / self.stride), math.ceil(width / self.stride), channels


@dataclass(frozen=True, slots=True)
class GlobalAveragePool2D(Layer):
    """Mean over height and width."""

    kind: ClassVar[str] = "global_average_pool2d"

    def output_shape(self, *inputs: Shape) -> Shape:
        return (_image(inputs[0])[2],)


@dataclass(frozen=True, slots=True)
class Dense(Layer):
    """x @ kernel + bias on vectors. Kernel layout: (in, out)."""

    kind: ClassVar[str] = "dense"

    units: int

    def __post_init__(self) -> None:
        _positive(self, "units")

    def output_shape(self, *inputs: Shape) -> Shape:
        _require(len(inputs[0]) == 1, f"needs an input (features,), got {inputs[0]}")
        return (self.units,)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"kernel": (inputs[0][0], self.units), "bias": (self.units,)}


@dataclass(frozen=True, slots=True)
class Softmax(Layer):
    """exp(x) / sum(exp(x)) over the last axis."""

    kind: ClassVar[str] = "softmax"

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


LAYERS: dict[str, type[Layer]] = {
    cls.kind: cls
    for cls in (
        Input,
        Conv2D,
        BatchNorm,
        ReLU,
        Add,
        MaxPool2D,
        GlobalAveragePool2D,
        Dense,
        Softmax,
    )
}


@dataclass(frozen=True, slots=True)
class Node:
    """A named layer and the names of the nodes it reads, in order."""

    name: str
    layer: Layer
    inputs: tuple[str, ...] = ()
    inserted: bool = False
    """True for a node that a morphism put in. Provenance only: not part of the graph's hash."""


def _digest(*parts: object) -> str:
    return _digest_of(repr(parts))


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_text = lru_cache(maxsize=65_536)(repr)
"""The text of a layer. A network has few different ones, and hashing asks for each often."""


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of layers with one output, valid by construction.

    ``nodes`` may be given in any order; they are kept in topological order.

    Raises:
        GraphError: a name is used twice or unknown, an edge closes a cycle, a layer has the
            wrong number of inputs or inputs that do not fit, or there is not exactly one
            output. The message names the node.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", _sorted_and_checked(tuple(self.nodes)))
        self.shapes  # noqa: B018 -- inferring the shapes is the rest of the validation

    def __hash__(self) -> int:
        """Of all nodes with their names: computed once, since graphs are keys of caches."""
        return self._node_hash

    @cached_property
    def _node_hash(self) -> int:
        return hash(self.nodes)

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """The nodes by their names, in topological order."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The output shape of every node."""
        shapes: dict[str, Shape] = {}
        for node in self.nodes:
            try:
                shapes[node.name] = node.layer.output_shape(*[shapes[i] for i in node.inputs])
            except GraphError as error:
                raise GraphError(f"node '{node.name}' ({node.layer.kind}): {error}") from None
        return shapes

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes that read each node's output."""
        consumers: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(node.inputs):
                consumers[source].append(node.name)
        return {name: tuple(readers) for name, readers in consumers.items()}

    @property
    def output(self) -> Node:
        """The one node that nothing reads."""
        return self.nodes[-1]

    def input_shapes(self, name: str) -> tuple[Shape, ...]:
        """Return the shapes that a node reads, in the order of its inputs."""
        return tuple(self.shapes[source] for source in self.by_name[name].inputs)

    @cached_property
    def parameters(self) -> Mapping[str, Shape]:
        """The shape of every trainable parameter, named ``node/parameter``."""
        return {
            f"{node.name}/{key}": shape
            for node in self.nodes
            for key, shape in node.layer.parameters(*self.input_shapes(node.name)).items()
        }

    @cached_property
    def statistics(self) -> Mapping[str, Shape]:
        """The shape of every value updated without a gradient, named ``node/statistic``."""
        return {
            f"{node.name}/{key}": shape
            for node in self.nodes
            for key, shape in node.layer.statistics(*self.input_shapes(node.name)).items()
        }

    @property
    def parameter_count(self) -> int:
        """The number of trainable scalars."""
        return sum(math.prod(shape) for shape in self.parameters.values())

    @property
    def depth(self) -> int:
        """The most layers with a kernel on a path from an input to the output."""
        depth: dict[str, int] = {}
        for node in self.nodes:
            own = int("kernel" in node.layer.parameters(*self.input_shapes(node.name)))
            depth[node.name] = own + max((depth[i] for i in node.inputs), default=0)
        return depth[self.output.name]

    @cached_property
    def hash(self) -> str:
        """128 bits in hexadecimal that do not depend on the names or the order of the nodes.

        Colours from the inputs down and from the output up, then two rounds of
        Weisfeiler-Lehman refinement, so that a layer shared by two readers differs from two
        equal layers.
        """
        consumers = self.consumers
        above: dict[str, str] = {}
        for node in self.nodes:
            sources = [above[source] for source in node.inputs]
            above[node.name] = _digest_of(f"({_text(node.layer)}, {_ordered(node.layer, sources)})")
        below: dict[str, str] = {}
        for node in reversed(self.nodes):
            readers = (self.by_name[name] for name in consumers[node.name])
            places = [(below[r.name], _places(r, node.name)) for r in readers]
            below[node.name] = _digest_of(f"({_text(node.layer)}, {sorted(places)})")
        colour = {name: _digest(above[name], below[name]) for name in above}
        for _ in range(2):
            colour = {
                node.name: _digest(
                    colour[node.name],
                    _ordered(node.layer, [colour[source] for source in node.inputs]),
                    sorted(colour[reader] for reader in consumers[node.name]),
                )
                for node in self.nodes
            }
        return _digest(SCHEMA_VERSION, sorted(colour.values()))

    def to_json(self) -> str:
        """Return the graph as JSON text that ``from_json`` reads back."""
        nodes = [
            {
                "name": node.name,
                "kind": node.layer.kind,
                **{f.name: getattr(node.layer, f.name) for f in fields(node.layer)},
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
            GraphError: the text is not JSON, has another schema, or describes no valid graph.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise GraphError(f"the graph is not JSON: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
            raise GraphError("the graph has no list 'nodes'")
        if document.get("schema") != SCHEMA_VERSION:
            raise GraphError(
                f"the graph has schema {document.get('schema')!r}; "
                f"this version reads schema {SCHEMA_VERSION}"
            )
        return cls(tuple(_node_from_json(item) for item in document["nodes"]))


def _ordered(layer: Layer, colours: list[str]) -> list[str]:
    return sorted(colours) if layer.commutative else colours


def _places(reader: Node, source: str) -> tuple[int, ...]:
    """Return where ``reader`` reads ``source``: input numbers, or a count if order is free."""
    places = tuple(i for i, name in enumerate(reader.inputs) if name == source)
    return (len(places),) if reader.layer.commutative else places


def _sorted_and_checked(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    if not _is_in_order(nodes):
        nodes = _sorted(nodes)
    for node in nodes:
        least, most = node.layer.inputs
        count = len(node.inputs)
        if count < least or (most is not None and count > most):
            wanted = f"{least}" if most == least else f"at least {least}"
            raise GraphError(
                f"node '{node.name}' ({node.layer.kind}) has {count} inputs, needs {wanted}"
            )
    read = {source for node in nodes for source in node.inputs}
    outputs = [node.name for node in nodes if node.name not in read]
    if len(outputs) != 1:
        raise GraphError(
            f"a graph needs exactly one output, these nodes are read by none: {outputs}"
        )
    if nodes[-1].name == outputs[0]:
        return nodes
    # The output last, whatever the order of branches that end before it.
    last = next(node for node in nodes if node.name == outputs[0])
    return tuple(n for n in nodes if n is not last) + (last,)


def _is_in_order(nodes: tuple[Node, ...]) -> bool:
    """Return whether names are valid and every node follows those it reads, as morphs keep it."""
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen or not node.name or "/" in node.name:
            return False
        if not seen.issuperset(node.inputs):
            return False
        seen.add(node.name)
    return True


def _sorted(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return nodes in topological order. Raises GraphError saying why there is none."""
    by_name: dict[str, Node] = {}
    for node in nodes:
        _require(bool(node.name) and "/" not in node.name, f"node name {node.name!r} is not valid")
        _require(node.name not in by_name, f"node '{node.name}' is there twice")
        by_name[node.name] = node
    for node in nodes:
        for source in node.inputs:
            _require(source in by_name, f"node '{node.name}' reads '{source}', which is not there")
    return tuple(_topological_order(by_name))


def _topological_order(by_name: Mapping[str, Node]) -> list[Node]:
    """Depth-first order without recursion; stable for nodes that are already in order."""
    ordered: list[Node] = []
    done: set[str] = set()
    for start in by_name:
        open_path: dict[str, None] = {}
        stack = [start]
        while stack:
            name = stack[-1]
            if name in done:
                stack.pop()
                continue
            open_path[name] = None
            missing = [source for source in by_name[name].inputs if source not in done]
            if missing:
                _require(
                    missing[0] not in open_path, f"node '{missing[0]}' is part of a cycle of edges"
                )
                stack.append(missing[0])
                continue
            stack.pop()
            open_path.pop(name)
            done.add(name)
            ordered.append(by_name[name])
    return ordered


def _node_from_json(item: object) -> Node:
    if not isinstance(item, dict):
        raise GraphError(f"a node must be an object, got {item!r}")
    values = dict(item)
    name, kind = values.pop("name", None), values.pop("kind", None)
    sources, inserted = values.pop("inputs", []), values.pop("inserted", False)
    _require(isinstance(name, str), f"a node's name must be text, got {name!r}")
    layer = LAYERS.get(kind) if isinstance(kind, str) else None
    if layer is None:
        raise GraphError(f"node '{name}' has the unknown kind {kind!r}; known: {sorted(LAYERS)}")
    try:
        return Node(name, layer(**values), _names(sources), inserted is True)
    except (TypeError, GraphError) as error:
        raise GraphError(f"node '{name}' ({kind}): {error}") from None


def _names(sources: object) -> tuple[str, ...]:
    _require(isinstance(sources, list), f"inputs must be a list of names, got {sources!r}")
    return tuple(str(source) for source in cast("list[object]", sources))
