"""The morphisms: insert a layer, add a skip connection, enlarge a kernel, widen channels.

A new child computes the same function as its parent (Net2Net, Chen et al. 2016; network morphism,
Wei et al. 2016). It inherits the parent's weights and adds new ones, with noise only if requested.
A morphism is plain data that can be recorded. Random choices use the given generator, and nothing
is modified in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import KERNELS
from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Add, BatchNorm, Conv2D, Graph, Layer, Node, ReLU, Shape
from aiperf_hpc.morphism.weights.calibration import channel_moments, normalization
from aiperf_hpc.morphism.weights.channels import ChannelGroup, channel_groups
from aiperf_hpc.morphism.weights.weight_file import Array, Weights, he_normal
from aiperf_hpc.trial import MorphismData


@dataclass(frozen=True, slots=True)
class Morphism(ABC):
    """One step from a parent to a child."""

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        """Sample a morphism that applies to ``graph``. Raises MorphismError if none does."""

    @abstractmethod
    def child(self, graph: Graph) -> Graph:
        """Return the child. Raises MorphismError if the morphism does not apply to ``graph``."""

    def weights(
        self, graph: Graph, weights: Weights, rng: np.random.Generator, noise: float = 0.0
    ) -> Weights:
        """Return the child's weights; unchanged arrays are shared with the parent.

        Args:
            graph: graph of the parent.
            weights: weights of the parent.
            rng: source of all random choices.
            noise: standard deviation of the normal noise on every new or changed kernel, relative
                to that of He initialization for its shape (which, unlike the kernel's own, is not
                zero for kernels of zeros). 0 preserves the function.
        """
        inherited = self._inherited(graph, weights, rng)
        if noise == 0.0:
            return inherited
        # Sorted by name, because files store tensors in any order: equal seeds give equal noise.
        return {
            name: array
            if array is weights.get(name) or not name.endswith("/kernel")
            else array + np.float32(noise) * he_normal(array.shape, rng)
            for name, array in sorted(inherited.items())
        }

    @abstractmethod
    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        """Return the child's weights without noise."""

    def to_data(self) -> MorphismData:
        """Return plain data for a record; ``from_data`` reads it."""
        return {"kind": self.kind, **asdict(self)}


def require(condition: bool, message: str) -> None:
    """Raise MorphismError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise MorphismError(message)


def node_of(graph: Graph, name: str, layer: type[Layer] | None = None) -> Node:
    """Return a node, which must have a layer of class ``layer`` if that is given.

    Raises:
        MorphismError: there is no such node.
    """
    node = graph.by_name.get(name)
    if node is None:
        raise MorphismError(f"the graph has no node '{name}'")
    if layer is not None:
        require(isinstance(node.layer, layer), f"'{name}' is {node.kind}, not {layer.kind}")
    return node


def pick(names: list[str], rng: np.random.Generator, kind: str) -> str:
    """Sample one of ``names``. Raises MorphismError if there is none."""
    require(bool(names), f"{kind}: the graph has no place for it")
    return names[int(rng.integers(len(names)))]


LEAST_WIDENING = 1.25
WIDENINGS = (1.25, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Deeper(Morphism):
    """Insert a convolution, a batch normalization and a ReLU after the ReLU ``after``.

    The convolution starts as the identity, the normalization cancels its own statistics, and the
    second ReLU does not change the output of the first.
    """

    kind: ClassVar[str] = "deeper"

    after: str
    kernel: int

    @classmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        after = pick(image_relus(graph), rng, cls.kind)
        return cls(after, int(rng.choice((1, 3))))

    def child(self, graph: Graph) -> Graph:
        relu = node_of(graph, self.after, ReLU)
        shape = graph.shapes[relu.name]
        require(len(shape) == 3, f"deeper: '{relu.name}' is not an image")
        require(self.kernel in KERNELS, f"deeper: kernel {self.kernel} is not one of {KERNELS}")
        conv, norm, activation = self._names(graph)
        block = (
            Node(conv, Conv2D(shape[-1], self.kernel), (relu.name,), inserted=True),
            Node(norm, BatchNorm(), (conv,), inserted=True),
            Node(activation, ReLU(), (norm,), inserted=True),
        )
        return Graph(insert_after(graph, relu.name, block))

    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        conv, norm, _ = self._names(graph)
        channels = graph.shapes[self.after][-1]
        kernel = np.zeros((self.kernel, self.kernel, channels, channels), np.float32)
        center = self.kernel // 2
        # Only the diagonal is written; the other pages stay zero without being allocated.
        np.fill_diagonal(kernel[center, center], 1.0)
        moments = channel_moments(graph, weights, self.after)
        return {**weights, f"{conv}/kernel": kernel, **normalization(norm, moments)}

    def _names(self, graph: Graph) -> tuple[str, str, str]:
        stem = unused_stem(graph, f"{self.after}_deep", "_conv", "_norm", "_relu")
        return f"{stem}_conv", f"{stem}_norm", f"{stem}_relu"


@dataclass(frozen=True, slots=True)
class Skip(Morphism):
    """Add the output of the ReLU ``source`` to that of the later ReLU ``target``.

    The added branch starts at zero: a 1x1 projection with zero weights if the shapes differ, or a
    normalization with zero scale (one weight per channel) if they are equal.
    """

    kind: ClassVar[str] = "skip"

    source: str
    target: str

    @classmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        relus, shapes = image_relus(graph), graph.shapes
        for place in rng.permutation(len(relus)):
            target = relus[place]
            for source in rng.permutation(place):
                name = relus[source]
                if _is_before(graph, name, target) and _stride(shapes[name], shapes[target]):
                    return cls(name, target)
        raise MorphismError("skip: no ReLU has another one before it")

    def child(self, graph: Graph) -> Graph:
        source, target = node_of(graph, self.source, ReLU), node_of(graph, self.target, ReLU)
        require(
            _is_before(graph, source.name, target.name),
            f"skip: '{source.name}' is not before '{target.name}'",
        )
        shapes = graph.shapes[source.name], graph.shapes[target.name]
        stride = _stride(*shapes)
        if stride is None:
            raise MorphismError(f"skip: no stride maps {shapes[0]} to {shapes[1]}")
        branch, total = self._names(graph)
        layer = BatchNorm() if self._scales(graph) else Conv2D(shapes[1][-1], 1, stride)
        block = (
            Node(branch, layer, (source.name,), inserted=True),
            Node(total, Add(), (target.name, branch), inserted=True),
        )
        return Graph(insert_after(graph, target.name, block))

    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        branch, _ = self._names(graph)
        if self._scales(graph):
            moments = channel_moments(graph, weights, self.source)
            return {**weights, **normalization(branch, moments, scale=0.0)}
        shape = (1, 1, graph.shapes[self.source][-1], graph.shapes[self.target][-1])
        return {**weights, f"{branch}/kernel": np.zeros(shape, np.float32)}

    def _scales(self, graph: Graph) -> bool:
        return graph.shapes[self.source] == graph.shapes[self.target]

    def _names(self, graph: Graph) -> tuple[str, str]:
        stem = unused_stem(graph, f"{self.target}_skip", "_branch", "_add")
        return f"{stem}_branch", f"{stem}_add"


def _is_before(graph: Graph, source: str, target: str) -> bool:
    """Return whether a path leads from ``source`` to ``target``."""
    bits = _paths(graph)
    return source != target and bool(bits[target][1] & bits[source][0])


@lru_cache(maxsize=64)
def _paths(graph: Graph) -> Mapping[str, tuple[int, int]]:
    """Return a bit for each node, and for each node the bits of its ancestors and itself."""
    bits: dict[str, tuple[int, int]] = {}
    for number, node in enumerate(graph.nodes):
        leading = own = 1 << number
        for source in node.inputs:
            leading |= bits[source][1]
        bits[node.name] = own, leading
    return bits


@lru_cache(maxsize=1024)
def _stride(source: Shape, target: Shape) -> int | None:
    """Return the stride of a 1x1 convolution between two image sizes."""
    for stride in range(1, max(source[:2]) + 1):
        if all(-(-source[axis] // stride) == target[axis] for axis in (0, 1)):
            return stride
    return None


@lru_cache(maxsize=64)
def image_relus(graph: Graph) -> list[str]:
    """Return the names of the ReLUs with an image as output, in the graph's order."""
    return [
        node.name
        for node in graph.nodes
        if isinstance(node.layer, ReLU) and len(graph.shapes[node.name]) == 3
    ]


def unused_stem(graph: Graph, stem: str, *endings: str) -> str:
    """Return ``stem`` with the first number whose names with all ``endings`` are unused."""
    numbers = (f"{stem}{n}" for n in range(1, len(graph.nodes) + 2))
    return next(s for s in numbers if not any(f"{s}{e}" in graph.by_name for e in endings))


def insert_after(graph: Graph, name: str, block: tuple[Node, ...]) -> tuple[Node, ...]:
    """Redirect every reader of ``name`` to the last node of ``block``."""

    def rewired() -> Iterator[Node]:
        for node in graph.nodes:
            if name in node.inputs:
                sources = tuple(block[-1].name if s == name else s for s in node.inputs)
                yield replace(node, inputs=sources)
            else:
                yield node
            if node.name == name:
                yield from block

    return tuple(rewired())


@dataclass(frozen=True, slots=True)
class KernelSize(Morphism):
    """Enlarge the kernel of the convolution ``conv`` by zero padding: 1 to 3 to 5 to 7."""

    kind: ClassVar[str] = "kernel"

    conv: str
    kernel: int

    @classmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        sizes = _small_kernels(graph)
        conv = pick(list(sizes), rng, cls.kind)
        return cls(conv, sizes[conv] + 2)

    def child(self, graph: Graph) -> Graph:
        node = node_of(graph, self.conv)
        require(
            node.layer.growable_kernel,
            f"kernel: '{self.conv}' is {node.kind}, which has no kernel that can grow",
        )
        now = self._now(graph)
        require(
            now < self.kernel and self.kernel in KERNELS,
            f"kernel: '{self.conv}' has kernel {now}; the new one must be one of {KERNELS} above",
        )
        grown = replace(node, layer=replace(node.layer, kernel=self.kernel))  # type: ignore[call-arg]
        return Graph(tuple(grown if n.name == node.name else n for n in graph.nodes))

    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        kernel = weights[f"{self.conv}/kernel"]
        now = self._now(graph)
        first = (self.kernel - now) // 2
        middle = slice(first, first + now)
        # Not np.pad, which writes the zeros of freshly allocated memory again.
        padded = np.zeros((self.kernel, self.kernel, *kernel.shape[2:]), np.float32)
        padded[middle, middle] = kernel
        return {**weights, f"{self.conv}/kernel": padded}

    def _now(self, graph: Graph) -> int:
        return graph.parameters[f"{self.conv}/kernel"][0]


@lru_cache(maxsize=64)
def _small_kernels(graph: Graph) -> Mapping[str, int]:
    """Return the kernels that can be enlarged, with their sizes."""
    return {
        node.name: node.layer.window.kernel
        for node in graph.nodes
        if node.layer.growable_kernel and node.layer.window.kernel < KERNELS[-1]
    }


@dataclass(frozen=True, slots=True)
class Wider(Morphism):
    """Widen the output channels of ``producer`` by copies of existing channels.

    All layers tied to them (through additions, normalizations, pooling) are widened too. The layers
    that read them split each weight unevenly among the copies. The sum is unchanged, and the copies
    diverge in training because their gradients differ.
    """

    kind: ClassVar[str] = "wider"

    producer: str
    channels: int

    @classmethod
    def sample(cls, graph: Graph, rng: np.random.Generator) -> Self:
        groups = channel_groups(graph)
        producer = pick([name for name, g in groups.items() if not g.fixed], rng, cls.kind)
        now = graph.shapes[producer][-1]
        return cls(producer, int(np.ceil(now * rng.choice(WIDENINGS))))

    def child(self, graph: Graph) -> Graph:
        group = self._group(graph)
        now = graph.shapes[self.producer][-1]
        require(
            self.channels >= LEAST_WIDENING * now,
            f"wider: {self.channels} is less than {LEAST_WIDENING} x the {now} channels "
            f"of '{self.producer}'",
        )
        return Graph(
            tuple(
                replace(node, layer=node.layer.with_channels(self.channels))
                if node.name in group.producers
                else node
                for node in graph.nodes
            )
        )

    def _inherited(self, graph: Graph, weights: Weights, rng: np.random.Generator) -> Weights:
        group = self._group(graph)
        now = graph.shapes[self.producer][-1]
        copied = rng.integers(0, now, self.channels - now)
        origin = np.concatenate([np.arange(now), copied])
        share = rng.uniform(0.5, 1.5, self.channels)
        share /= np.bincount(origin, weights=share, minlength=now)[origin]
        widened = dict(weights)
        for name in group.readers:
            kernel = _taken(widened[f"{name}/kernel"], origin, axis=-2)
            kernel *= share[:, None].astype(np.float32)
            widened[f"{name}/kernel"] = kernel
        for name in group.members:
            layer, inputs = graph.by_name[name].layer, graph.input_shapes(name)
            for key in (*layer.parameters(*inputs), *layer.statistics(*inputs)):
                widened[f"{name}/{key}"] = _taken(widened[f"{name}/{key}"], origin, axis=-1)
        return widened

    def _group(self, graph: Graph) -> ChannelGroup:
        group = channel_groups(graph).get(self.producer)
        if group is None or not group.producers:
            raise MorphismError(f"wider: '{self.producer}' is not the first of its channels")
        require(not group.fixed, f"wider: the dataset fixes the channels of '{self.producer}'")
        return group


def _taken(array: Array, origin: NDArray[np.intp], axis: int) -> Array:
    """Return a copy of ``array`` with these channels, which must exist.

    Mode "clip" skips the bounds check and takes a seventh of the time of indexing.
    """
    return array.take(origin, axis, mode="clip")


MORPHISMS: dict[str, type[Morphism]] = {cls.kind: cls for cls in (Deeper, Wider, Skip, KernelSize)}


def from_data(data: MorphismData) -> Morphism:
    """Return a morphism from its record. Raises MorphismError if the data is invalid."""
    values = dict(data)
    kind = values.pop("kind", None)
    cls = MORPHISMS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise MorphismError(f"no morphism of kind {kind!r}; known: {sorted(MORPHISMS)}")
    try:
        morphism = cls(**values)
    except TypeError as error:
        raise MorphismError(f"morphism {data}: {error}") from None
    for name, hint in get_type_hints(cls).items():
        if name in values:
            require(type(values[name]) is hint, f"morphism {data}: {name} is no {hint.__name__}")
    return morphism


def generations(graph: Graph, morphisms: Iterable[Morphism]) -> tuple[Graph, ...]:
    """Return ``graph`` and the intermediate graphs after each of ``morphisms``.

    Raises:
        MorphismError: a morphism does not apply.
    """
    return tuple(accumulate(morphisms, lambda parent, step: step.child(parent), initial=graph))


def grow(graph: Graph, morphisms: Iterable[Morphism]) -> Graph:
    """Return the graph after all ``morphisms``, in order. Raises as ``generations``."""
    return generations(graph, morphisms)[-1]


def inherit(
    graphs: Sequence[Graph],
    weights: Weights,
    morphisms: Sequence[Morphism],
    rng: np.random.Generator,
    noise: float = 0.0,
) -> Weights:
    """Return the weights of the last of ``graphs``.

    Args:
        graphs: the parent, and the graph after each of ``morphisms``.
        weights: weights of the parent.
        morphisms: morphisms from the parent to the child.
        rng: source of all random choices.
        noise: see ``Morphism.weights``.
    """
    for graph, morphism in zip(graphs[:-1], morphisms, strict=True):
        weights = morphism.weights(graph, weights, rng, noise)
    return weights


def grow_with_weights(
    graph: Graph, weights: Weights, morphisms: Sequence[Morphism], rng: np.random.Generator
) -> tuple[Graph, Weights]:
    """Return graph and weights after all ``morphisms``: ``grow`` and ``inherit`` in one."""
    graphs = generations(graph, morphisms)
    return graphs[-1], inherit(graphs, weights, morphisms, rng)


def inserted_spatial_convs(graph: Graph) -> dict[str, int]:
    """Return the inserted convolutions with kernels larger than 1, with their sizes."""
    return {
        node.name: node.layer.window.kernel
        for node in graph.nodes
        if node.inserted and node.layer.growable_kernel and node.layer.window.kernel > 1
    }


def resize_inserted(graph: Graph, kernel: int) -> tuple[KernelSize, ...]:
    """Return the morphisms that give every inserted spatial convolution the size ``kernel``.

    Raises:
        MorphismError: one is already larger; a kernel cannot shrink without changing its function.
    """
    sizes = inserted_spatial_convs(graph)
    larger = [name for name, size in sizes.items() if size > kernel]
    require(not larger, f"kernel: {larger} have a larger kernel than {kernel} already")
    return tuple(KernelSize(name, kernel) for name, size in sizes.items() if size < kernel)
