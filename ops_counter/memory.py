"""Memory of training: an estimate of its size, and its traffic, the bytes read and written.

The model of the traffic assumes that tensors do not stay in a cache between layers: each is read
from memory once per use and written once. Implementations lie between two bounds:

- **separate**: each layer is a separate kernel, which reads its inputs and writes its outputs.
  The passes of a normalization are separate kernels too.
- **fused**: elementwise layers are fused into the reads or writes of a convolution, dense layer or
  pooling, and move nothing. No compiler is better unless it keeps activations in a cache.

Activations and their gradients move once per sample. Weights, their gradients, running statistics
and the optimizer state move once per step, independently of the batch size. Operations over bytes
are the operational intensity of the roofline model (Williams, Waterman and Patterson 2009).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import CountError, EngineError
from aiperf_hpc.formatting import size
from aiperf_hpc.graph import Graph, Shape, layers
from aiperf_hpc.ops_counter.layers import COSTS, LayerContext, Moved
from aiperf_hpc.trial import Hyperparameters

PRECISION_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an activation or weight in the compute precision."""
FULL = 4
"""Bytes of values kept in fp32 in every precision: weights, optimizer state, statistics."""
UPDATE = {"sgd": 5, "adam": 7, "adamw": 7, "lamb": 12, "asgd": 5}
"""Values per parameter that an update reads or writes: gradient and weight read, weight written,
and each value of the state read and written. LAMB also writes its update, reads it for its norm and
again with the weight, and reads the weight for its norm."""


@dataclass(frozen=True, slots=True)
class LayerTraffic:
    """The bytes that one layer moves in training."""

    kind: str
    forward: int
    """Bytes per sample: activations."""
    backward: int
    """Bytes per sample: gradients of activations, and activations read again."""
    weights: int
    """Bytes per step: weights read, their gradients written, running statistics."""
    update: int
    """Bytes per step: gradients read, weights and optimizer state read and written."""


@dataclass(frozen=True)
class GraphTraffic:
    """The bytes that a graph moves in training."""

    layers: Mapping[str, LayerTraffic]
    """Traffic of each layer by the name of its node, in topological order."""

    @cached_property
    def sample(self) -> int:
        """Bytes per sample: activations and their gradients."""
        return sum(layer.forward + layer.backward for layer in self.layers.values())

    @cached_property
    def step(self) -> int:
        """Bytes per step of any batch size: weights, their gradients, optimizer state."""
        return sum(layer.weights + layer.update for layer in self.layers.values())

    def training(self, samples: float, steps: float) -> float:
        """Return the bytes of a number of samples in a number of steps."""
        return samples * self.sample + steps * self.step


def traffic(
    graph: Graph, precision: str = "fp32", optimizer: str = "sgd", *, fused: bool = False
) -> GraphTraffic:
    """Return the bytes that training ``graph`` moves.

    Below fp32 the weights are copied to the lower precision after each update, and gradients back
    to fp32 before it.

    Args:
        graph: network to train.
        precision: fp32, bf16 or fp16.
        optimizer: name of the optimizer.
        fused: whether to return the fused bound instead of the separate one.

    Raises:
        CountError: a layer has no formula, or the precision or optimizer is unknown.
    """
    if precision not in PRECISION_BYTES or optimizer not in UPDATE:
        raise CountError(f"no memory traffic is known for {optimizer} in {precision}")
    size = PRECISION_BYTES[precision]
    uses = Counter(source for node in graph.nodes for source in node.inputs)
    update = FULL * UPDATE[optimizer] + (2 * (FULL + size) if size < FULL else 0)
    layers: dict[str, LayerTraffic] = {}
    for name, context in _contexts(graph, fused=fused):
        moved = _moved(name, context)
        again = max(0, uses[name] - 1) * context.elements if _needs_gradient(context) else 0
        parameters = sum(math.prod(shape) for shape in context.parameters.values())
        layers[name] = LayerTraffic(
            kind=graph.by_name[name].kind,
            forward=size * moved.forward,
            # The gradients of all uses are summed: two are read and one is written.
            backward=size * (moved.backward + again * (1 if fused else 3)),
            weights=_weights(context, parameters, size),
            update=update * parameters,
        )
    return GraphTraffic(layers)


def _contexts(graph: Graph, *, fused: bool) -> Iterator[tuple[str, LayerContext]]:
    """Yield each layer in its context."""
    trained: set[str] = set()
    for node in graph.nodes:
        inputs: tuple[Shape, ...] = graph.input_shapes(node.name)
        below = not trained.isdisjoint(node.inputs)
        context = LayerContext(node.layer, inputs, graph.shapes[node.name], below, fused)
        if _needs_gradient(context):
            trained.add(node.name)
        yield node.name, context


def _needs_gradient(context: LayerContext) -> bool:
    """Return whether its output depends on trainable parameters."""
    return context.input_gradient or bool(context.parameters)


def _moved(name: str, context: LayerContext) -> Moved:
    cost = COSTS.get(type(context.layer))
    if cost is None:
        raise CountError(
            f"node '{name}': no memory traffic for a layer of kind '{context.layer.kind}'; add its "
            "formula to ops_counter/layers.py"
        )
    return cost.traffic(context)


def _weights(context: LayerContext, parameters: int, size: int) -> int:
    """Return the bytes per step of weights (once per use), gradients and statistics.

    The rows of a table are counted with the samples that look them up.
    """
    reads = 0 if isinstance(context.layer, layers.Embedding) else 1 + int(context.input_gradient)
    kept = context.layer.statistics(*context.inputs).values()
    return size * (reads + 1) * parameters + 2 * FULL * sum(math.prod(shape) for shape in kept)


FRAMEWORK_BYTES = 1024 * 2**20
"""Memory of a process without its network: framework, library workspaces, code."""
_STATE = {"sgd": 1, "adam": 2, "adamw": 2, "lamb": 2, "asgd": 1}
"""Values of optimizer state per parameter."""
_PASSING = {"lamb": 2, "asgd": 1}
"""Temporary values per parameter in an update, or in the evaluation of the average."""


def training_bytes(graph: Graph, batch_size: int, precision: str, optimizer: str = "sgd") -> int:
    """Return an estimate in bytes of the memory to train ``graph``.

    It is the sum of: weights, gradients and optimizer state in fp32; the outputs that the backward
    pass reads, in the compute type (of convolutions and activations, not of normalizations and
    sums); twice the working set of the largest layer (its gradient and a convolution's unfolded
    input); and weights and state of the prefetched network, assumed to be as large.
    docs/decisions/memory.md compares it with measured peaks.
    """
    size = PRECISION_BYTES[precision]
    trained = 2 + _STATE[optimizer] + _PASSING.get(optimizer, 0)
    parameters = (trained + 1 + _STATE[optimizer]) * 4 * graph.parameter_count
    if precision != "fp32":
        parameters += size * graph.parameter_count
    kept = sum(math.prod(graph.shapes[node.name]) for node in graph.nodes if node.layer.output_kept)
    largest = max(
        math.prod(graph.shapes[node.name])
        + (math.prod(graph.input_shapes(node.name)[0]) if node.layer.unfolds_input else 0)
        for node in graph.nodes
    )
    return FRAMEWORK_BYTES + parameters + batch_size * size * (kept + 2 * largest)


def copied_bytes(graph: Graph, optimizer: str = "sgd") -> int:
    """Return the bytes of the copies from which a trial's best epoch can be re-executed.

    At most these are weights and state in fp32 at three points (end and beginning of the current
    epoch, beginning of the best epoch), and the weights at the end of the best epoch.
    """
    return (3 * (1 + _STATE[optimizer]) + 1) * 4 * graph.parameter_count


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory of a rank available for training, and the check of which trials fit."""

    config: RunConfig
    bytes: int
    """Memory in bytes that one rank may use."""
    holds_copies: bool = False
    """Whether the same memory holds the copies of best epochs, as on CPUs."""

    def needed(self, graph: Graph, batch_size: int) -> int:
        """Return an estimate in bytes of a rank's memory for its shard of a batch."""
        training, ranks = self.config.training, self.config.replica.ranks
        share = -(-batch_size // ranks)
        copies = copied_bytes(graph, training.optimizer) if self.holds_copies else 0
        return copies + training_bytes(graph, share, training.precision, training.optimizer)

    def fitting_batch(self, graph: Graph, batch_size: int) -> int:
        """Return the largest of batch_size, batch_size / 2, ... that fits; 0 if none does.

        Each rank has at least one sample of a batch.
        """
        while batch_size >= self.config.replica.ranks:
            if self.needed(graph, batch_size) <= self.bytes:
                return batch_size
            batch_size //= 2
        return 0

    def fits(self, graph: Graph, batch_size: int) -> bool:
        """Return whether training ``graph`` with this batch size is estimated to fit."""
        return self.fitting_batch(graph, batch_size) == batch_size

    def fit(self, graph: Graph, planned: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters, with a smaller batch size if necessary and allowed.

        Raises:
            EngineError: no allowed batch size fits.
        """
        wanted = planned.batch_size
        batch = self.fitting_batch(graph, wanted)
        if batch == 0 or (batch < wanted and self.config.engine.on_out_of_memory == "fail"):
            raise EngineError(
                f"batch size {wanted} needs an estimated "
                f"{size(self.needed(graph, wanted))}, {size(self.bytes)} are "
                "there; lower the batch size or raise engine.memory_limit_gib"
            )
        return planned.model_copy(update={"batch_size": batch})
