"""Traced functions of networks with the same graph, for any weights and any batch size.

A traced function receives handles of the variables that it reads and modifies. Therefore a graph is
traced and optimized only once, also for other batch sizes and learning rates; this needs more time
than many steps. A traced function holds no variables, so that weights are freed with their network.
"""

from __future__ import annotations

import gc
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, Literal

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.engines.base import CHECKSUM_COLUMNS as COLUMNS
from aiperf_hpc.replica.engines.base import regularization
from aiperf_hpc.replica.engines.tensorflow.layers import OPERATIONS, Pass
from aiperf_hpc.replica.engines.tensorflow.objectives import QUALITIES, loss_of
from aiperf_hpc.replica.engines.tensorflow.optimizers import OPTIMIZERS, Optimizer, Variables
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import Hyperparameters, ScheduleSettings

COMPUTE = {"fp32": tf.float32, "bf16": tf.bfloat16}

LOSS, EVALUATED = "loss sum", "evaluated"
"""Names of the running sums; all other names contain a slash or belong to the optimizer."""

MOST_KEPT = 3
"""Number of graphs with cached traced functions: a candidate with each size of its inserted
kernels. Each uses tens of megabytes."""

Arrays = Mapping[str, tf.Tensor]


def execute(
    graph: Graph,
    variables: Variables,
    given: Arrays,
    precision: str,
    *,
    training: bool = False,
) -> tf.Tensor:
    """Return the network's output in float32, without a final softmax.

    In training mode, this updates running statistics, as a step does.
    """
    run = Pass(variables, training, COMPUTE[precision])
    tensors: dict[str, tf.Tensor] = {}
    for node in graph.nodes:
        inputs = [tensors[source] for source in node.inputs] or [given[node.name]]
        tensors[node.name] = OPERATIONS[type(node.layer)](run, node, node.layer, inputs)
    return tf.cast(tensors[graph.output.name], tf.float32)


Step = Literal["train", "gradients", "apply", "evaluate", "checksum"]
"""Functions of a network, each executed in one call. ``gradients`` and ``apply`` are the halves of
a training step of several ranks."""


class Steps:
    """Functions of a graph, an objective and hyperparameters, traced on their first call.

    Several networks may call them concurrently from several threads.
    """

    def __init__(self, graph: Graph, used: Hyperparameters, objective: Objective) -> None:
        """Check the layers of the graph; functions are traced later.

        Raises:
            EngineError: the engine does not support a layer; the message names the node.
        """
        _check_layers(graph)
        self.graph = graph
        self.sizes = [math.prod(shape) for shape in graph.parameters.values()]
        self._used = used
        self._objective = objective
        self._metric = objective.quality
        self._loss_of = loss_of(objective)
        self._quality_of = QUALITIES[objective.metric]
        self._regularization = regularization(graph, used)
        self._optimizer_class = OPTIMIZERS[used.optimizer]
        self._tracing = Lock()
        self._traced: dict[Step, Callable[[Sequence[Any], Variables], Any]] = {}

    def sums(self, evaluated: int) -> dict[str, tf.Variable]:
        """Return new running sums of training losses and of this many parts of an evaluation."""
        return {
            LOSS: tf.Variable(0.0, dtype=tf.float64),
            EVALUATED: tf.Variable(tf.zeros(evaluated, tf.float64)),
        }

    def optimizer(self, variables: Variables, state: Variables | None = None) -> Optimizer:
        """Return the optimizer with the variables in ``state``, or with new ones if it is None."""
        parameters = {name: variables[name] for name in self.graph.parameters}
        return self._optimizer_class(parameters, self._regularization, state)

    def evaluated(self, variables: Variables) -> dict[str, tf.Variable]:
        """Return the evaluated weights by name."""
        name_of = self._optimizer_class.evaluated
        parameters = {name: variables[name_of(name)] for name in self.graph.parameters}
        return parameters | {name: variables[name] for name in self.graph.statistics}

    def call(self, step: Step, variables: Variables, *arguments: Any) -> Any:  # noqa: ANN401
        """Execute a step.

        Args:
            step: function to execute.
            variables: weights, optimizer state and running sums of the network.
            arguments: further arguments of the function, as tensors.
        """
        with self._tracing:
            if step not in self._traced:
                self._traced[step] = self._trace(step, variables)
            function = self._traced[step]
        return function(arguments, variables)

    def _trace(self, step: Step, variables: Variables) -> Callable[[Sequence[Any], Variables], Any]:
        """Trace a step for variables of the same form and batches of any size."""
        method, signature, needed = self._definition(step, variables)

        def over(arguments: Sequence[Any], given: Variables) -> Any:  # noqa: ANN401
            return method(given, *arguments)

        specs = {name: tf.type_spec_from_value(variables[name]) for name in needed}
        traced = tf.function(over, autograph=False).get_concrete_function(signature, specs)
        # TensorFlow flattens dictionaries in the order of sorted names.
        return _caller(traced, sorted(needed))

    def _definition(
        self, step: Step, variables: Variables
    ) -> tuple[Callable[..., Any], tuple[Any, ...], Collection[str]]:
        """Return the method, argument types and variable names of a step."""
        inputs, targets = self._batch()
        number, flat = tf.TensorSpec((), tf.float32), tf.TensorSpec(sum(self.sizes), tf.float32)
        parameters, statistics = self.graph.parameters.keys(), self.graph.statistics.keys()
        weights = parameters | statistics
        state = variables.keys() - weights - {LOSS, EVALUATED}
        evaluated = {*map(self._optimizer_class.evaluated, parameters)}
        match step:
            case "train":
                return self._train, (inputs, targets, number), weights | state | {LOSS}
            case "gradients":
                return self._gradients, (inputs, targets, number), weights | {LOSS}
            case "apply":
                return self._apply, (flat, number), parameters | state
            case "evaluate":
                return self._evaluate, (inputs, targets), evaluated | statistics | {EVALUATED}
            case "checksum":
                return self._checksum, (), evaluated

    def _batch(self) -> tuple[dict[str, tf.TensorSpec], dict[str, tf.TensorSpec]]:
        """Return the types of the inputs and targets of a batch of any size."""
        inputs = {
            name: tf.TensorSpec((None, *self.graph.shapes[name]), self.graph.dtype(name))
            for name in self.graph.inputs
        }
        targets = {
            name: tf.TensorSpec((None, *spec.shape), spec.dtype)
            for name, spec in self._objective.targets.items()
        }
        return inputs, targets

    def _outputs(self, variables: Variables, inputs: Arrays) -> tf.Tensor:
        evaluated = self.evaluated(variables)
        return execute(self.graph, evaluated, inputs, self._used.precision)

    def forward(self, variables: Variables, inputs: Arrays) -> tf.Tensor:
        """Return the network's output in training mode."""
        return execute(self.graph, variables, inputs, self._used.precision, training=True)

    def _train(
        self, variables: Variables, inputs: Arrays, targets: Arrays, rate: tf.Tensor
    ) -> None:
        gradients = self._backward(variables, inputs, targets, 1.0)
        self._update(variables, gradients, rate)

    def _update(
        self, variables: Variables, gradients: Sequence[tf.Tensor], rate: tf.Tensor
    ) -> None:
        """Update all parameters with their gradients, given in the graph's order."""
        named = dict(zip(self.graph.parameters, gradients, strict=True))
        self.optimizer(variables, variables).step(named, rate)

    def _backward(
        self, variables: Variables, inputs: Arrays, targets: Arrays, share: tf.Tensor | float
    ) -> list[tf.Tensor]:
        """Return the gradients of ``share`` times the mean loss, and add this loss to the sum."""
        with tf.GradientTape() as tape:
            output = self.forward(variables, inputs)
            losses = self._loss_of(output, targets, self._used.label_smoothing)
            loss = share * tf.reduce_mean(losses)
        variables[LOSS].assign_add(tf.cast(loss, tf.float64))
        gradients = tape.gradient(loss, [variables[name] for name in self.graph.parameters])
        return [_dense(gradient) for gradient in gradients]

    def _gradients(
        self, variables: Variables, inputs: Arrays, targets: Arrays, share: tf.Tensor
    ) -> tf.Tensor:
        gradients = self._backward(variables, inputs, targets, share)
        return tf.concat([tf.reshape(g, [-1]) for g in gradients], 0)

    def _apply(self, variables: Variables, flat: tf.Tensor, rate: tf.Tensor) -> None:
        """Split by slices, which share the buffer's memory, unlike ``tf.split``."""
        gradients: list[tf.Tensor] = []
        start = 0
        for shape, size in zip(self.graph.parameters.values(), self.sizes, strict=True):
            gradients.append(tf.reshape(tf.slice(flat, [start], [size]), shape))
            start += size
        self._update(variables, gradients, rate)

    def _evaluate(
        self, variables: Variables, inputs: Arrays, targets: Arrays
    ) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
        """Add to the running sums; return the metric's rows and requested predictions."""
        output = self._outputs(variables, inputs)
        loss = tf.reduce_sum(self._loss_of(output, targets, 0.0))
        parts = self._quality_of(output, targets)
        added = () if self._metric.rows else parts
        sums = [tf.cast(value, tf.float64) for value in (loss, *added)]
        variables[EVALUATED].assign_add(tf.stack(sums))
        predicted = (tf.argmax(output, axis=-1),) if self._objective.predictions else ()
        return parts if self._metric.rows else (), predicted

    def _checksum(self, variables: Variables) -> tf.Tensor:
        evaluated = self._optimizer_class.evaluated
        return checksum_of([variables[evaluated(name)] for name in self.graph.parameters])


class StepsCache:
    """Cached steps of the most recently built graphs."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._kept: OrderedDict[tuple[Graph, Hyperparameters], Steps] = OrderedDict()

    def get(self, graph: Graph, used: Hyperparameters) -> Steps:
        """Return the steps of a graph and hyperparameters; raises the errors of ``Steps``."""
        key = graph, _traced_part(used)
        if key not in self._kept:
            self._kept[key] = Steps(graph, used, self._objective)
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
            gc.collect()  # Traced functions contain reference cycles.
        return self._kept[key]


def _traced_part(used: Hyperparameters) -> Hyperparameters:
    """Return hyperparameters without the ones that do not affect a trace."""
    free = {"batch_size": 1, "learning_rate": 0.0, "kernel_size": None}
    return used.model_copy(update=free | {"schedule": ScheduleSettings()})


def _check_layers(graph: Graph) -> None:
    """Raise EngineError with the node's name for an unsupported layer."""
    for node in graph.nodes:
        if type(node.layer) not in OPERATIONS:
            raise EngineError(
                f"node '{node.name}': the tensorflow engine has no layer '{node.layer.kind}'"
            )


def _dense(gradient: tf.Tensor) -> tf.Tensor:
    """Return the gradient of a whole array, even if it is given as indexed rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = gradient.dense_shape[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def _caller(traced: Any, names: Sequence[str]) -> Callable[[Sequence[Any], Variables], Any]:  # noqa: ANN401
    """Return a function that calls a traced function with arguments and the named variables.

    It uses an internal interface of TensorFlow to avoid binding hundreds of variables to the
    function's structure, which would need milliseconds per step.
    """
    call_flat = _flat_call(traced)
    if call_flat is None:
        _warn_of_slow_calls()
        return lambda arguments, given: traced(arguments, {name: given[name] for name in names})
    return lambda arguments, given: call_flat(
        [*tf.nest.flatten(arguments), *(given[name].handle for name in names)]
    )


def _flat_call(traced: Any) -> Callable[[Sequence[Any]], Any] | None:  # noqa: ANN401
    inference = getattr(traced, "inference_fn", None)
    call: Callable[[Sequence[Any]], Any] | None = getattr(inference, "call_preflattened", None)
    return call


@cache
def _warn_of_slow_calls() -> None:
    warn(
        f"TensorFlow {tf.__version__} has no AtomicFunction.call_preflattened: each step costs "
        "milliseconds more; use TensorFlow 2.18"
    )


def checksum_of(arrays: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the checksum, int64 (), of float32 arrays; int64 wraps around."""
    total, before = tf.constant(0, tf.int64), 0
    for array in arrays:
        size = math.prod(array.shape)
        total += _of_one(tf.reshape(array, [-1]), size, before)
        before += -(-size // 2)
    return total


def _of_one(flat: tf.Tensor, size: int, before: int) -> tf.Tensor:
    """Return the term of an array of this size, which follows this many words."""
    pairs = tf.reshape(tf.pad(flat, [[0, size % 2]]) if size % 2 else flat, [-1, 2])
    words = tf.bitcast(pairs, tf.int64)
    count = -(-size // 2)
    lines = count // COLUMNS
    body = tf.reshape(words[: lines * COLUMNS], [lines, COLUMNS])
    return (
        _weighted(tf.reduce_sum(body, 1), 2 * before + 1, 2 * COLUMNS)
        + _weighted(tf.reduce_sum(body, 0), 0, 2)
        + _weighted(words[lines * COLUMNS :], 2 * (before + lines * COLUMNS) + 1, 2)
    )


def _weighted(words: tf.Tensor, first: int, step: int) -> tf.Tensor:
    """Return the sum of words times first, first + step, ..."""
    factors = tf.range(tf.shape(words, tf.int64)[0]) * step + first
    return tf.reduce_sum(words * factors)
