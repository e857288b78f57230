"""The traced functions of networks of one graph, for any weights and any batch size.

A traced function gets the variables that it reads and changes by their handles. So a network of a
graph that was trained before, in batches of another size or with another learning rate, is neither
traced nor optimized again: both take longer than many of its steps. It holds no variable, so that
weights are freed with their network.
"""

from __future__ import annotations

import gc
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from threading import Lock
from typing import Any

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.engines.base import CHECKSUM_COLUMNS as COLUMNS
from aiperf_hpc.replica.engines.optimizers import regularization
from aiperf_hpc.replica.engines.tensorflow.layers import OPERATIONS, Pass
from aiperf_hpc.replica.engines.tensorflow.objectives import QUALITIES, loss_of
from aiperf_hpc.replica.engines.tensorflow.optimizers import OPTIMIZERS, Optimizer, Variables
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.trial import Hyperparameters, ScheduleSettings

COMPUTE = {"fp32": tf.float32, "bf16": tf.bfloat16}

LOSS, EVALUATED = "loss sum", "evaluated"
"""The names of the running sums; all other names have a slash or belong to the optimizer."""

MOST_KEPT = 3
"""Graphs whose traced functions are kept: a candidate's with each size of its inserted kernels.
Each uses tens of megabytes."""

Arrays = Mapping[str, tf.Tensor]


def execute(
    graph: Graph,
    variables: Variables,
    given: Arrays,
    precision: str,
    *,
    training: bool = False,
) -> tf.Tensor:
    """Return the network's output in float32; for a softmax, its input.

    In training mode this updates running statistics, as a step does.
    """
    run = Pass(variables, training, COMPUTE[precision])
    tensors: dict[str, tf.Tensor] = {}
    for node in graph.nodes:
        inputs = [tensors[source] for source in node.inputs] or [given[node.name]]
        tensors[node.name] = OPERATIONS[type(node.layer)](run, node, node.layer, inputs)
    return tf.cast(tensors[graph.output.name], tf.float32)


class Step(Enum):
    """The functions of a network, each executed in one call."""

    TRAIN = auto()
    GRADIENTS = auto()
    """The first half of a training step of several ranks."""
    APPLY = auto()
    """Its second half."""
    EVALUATE = auto()
    INFER = auto()
    CHECKSUM = auto()


class Steps:
    """The functions of a graph, an objective and hyperparameters; each is traced when first called.

    Several networks may call them at once, from several threads.
    """

    def __init__(self, graph: Graph, used: Hyperparameters, objective: Objective) -> None:
        """Trace nothing yet.

        Raises:
            EngineError: the engine has no such layer; the message names the node.
        """
        _check_layers(graph)
        self.graph = graph
        self.sizes = [math.prod(shape) for shape in graph.parameters.values()]
        self._used = used
        self._objective = objective
        self._measure = objective.quality
        self._loss_of = loss_of(objective)
        self._quality_of = QUALITIES[objective.measure]
        self._regularization = regularization(graph, used)
        self._optimizer_class = OPTIMIZERS[used.optimizer]
        self._tracing = Lock()
        self._traced: dict[Step, Callable[[Sequence[Any], Variables], Any]] = {}

    def sums(self, evaluated: int) -> dict[str, tf.Variable]:
        """Return new running sums: of training losses, and of so many parts of an evaluation."""
        return {
            LOSS: tf.Variable(0.0, dtype=tf.float64),
            EVALUATED: tf.Variable(tf.zeros(evaluated, tf.float64)),
        }

    def optimizer(self, variables: Variables, state: Variables | None = None) -> Optimizer:
        """Return the optimizer of parameters; ``state`` has its variables, None for new ones."""
        parameters = {name: variables[name] for name in self.graph.parameters}
        return self._optimizer_class(parameters, self._regularization, state)

    def evaluated(self, variables: Variables) -> dict[str, tf.Variable]:
        """Return the weights that are evaluated and handed out, by their names."""
        name_of = self._optimizer_class.evaluated
        parameters = {name: variables[name_of(name)] for name in self.graph.parameters}
        return parameters | {name: variables[name] for name in self.graph.statistics}

    def call(self, step: Step, variables: Variables, *arguments: Any) -> Any:  # noqa: ANN401
        """Execute a step.

        Args:
            step: what is executed.
            variables: the network's weights, its optimizer's state and its running sums.
            arguments: the step's arguments besides variables, as tensors.
        """
        with self._tracing:
            if step not in self._traced:
                self._traced[step] = self._trace(step, variables)
            function = self._traced[step]
        return function(arguments, variables)

    def _trace(self, step: Step, variables: Variables) -> Callable[[Sequence[Any], Variables], Any]:
        """Trace a step for variables like these and batches of any size."""
        method, signature, needed = self._definition(step, variables)

        def over(arguments: Sequence[Any], given: Variables) -> Any:  # noqa: ANN401
            return method(given, *arguments)

        specs = {name: tf.type_spec_from_value(variables[name]) for name in needed}
        traced = tf.function(over, autograph=False).get_concrete_function(signature, specs)
        return _caller(traced, sorted(needed))  # As TensorFlow flattens dictionaries.

    def _definition(
        self, step: Step, variables: Variables
    ) -> tuple[Callable[..., Any], tuple[Any, ...], Collection[str]]:
        """Return a step's method, the types of its arguments, and the names of its variables."""
        inputs, targets = self._batch()
        number, flat = tf.TensorSpec((), tf.float32), tf.TensorSpec(sum(self.sizes), tf.float32)
        weights = {*self.graph.parameters, *self.graph.statistics}
        state = variables.keys() - weights - {LOSS, EVALUATED}
        evaluated = {*map(self._optimizer_class.evaluated, self.graph.parameters)}
        inferred = evaluated | self.graph.statistics.keys()
        match step:
            case Step.TRAIN:
                return self._train, (inputs, targets, number), weights | state | {LOSS}
            case Step.GRADIENTS:
                return self._gradients, (inputs, targets, number), weights | {LOSS}
            case Step.APPLY:
                return self._apply, (flat, number), self.graph.parameters.keys() | state
            case Step.EVALUATE:
                return self._evaluate, (inputs, targets), inferred | {EVALUATED}
            case Step.INFER:
                return self._outputs, (inputs,), inferred
            case Step.CHECKSUM:
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
        """Take a step with the gradients of all parameters, in the graph's order."""
        named = dict(zip(self.graph.parameters, gradients, strict=True))
        self.optimizer(variables, variables).step(named, rate)

    def _backward(
        self, variables: Variables, inputs: Arrays, targets: Arrays, share: tf.Tensor | float
    ) -> list[tf.Tensor]:
        """Return the gradients of ``share`` times the mean loss, and add that to the loss sum."""
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
        """Split by slices, which share the memory of the whole, unlike ``tf.split``."""
        gradients: list[tf.Tensor] = []
        start = 0
        for shape, size in zip(self.graph.parameters.values(), self.sizes, strict=True):
            gradients.append(tf.reshape(tf.slice(flat, [start], [size]), shape))
            start += size
        self._update(variables, gradients, rate)

    def _evaluate(
        self, variables: Variables, inputs: Arrays, targets: Arrays
    ) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
        """Add to the running sums; return the measure's rows, and requested predictions."""
        output = self._outputs(variables, inputs)
        loss = tf.reduce_sum(self._loss_of(output, targets, 0.0))
        parts = self._quality_of(output, targets)
        added = () if self._measure.rows else parts
        sums = [tf.cast(value, tf.float64) for value in (loss, *added)]
        variables[EVALUATED].assign_add(tf.stack(sums))
        predicted = (tf.argmax(output, axis=-1),) if self._objective.predictions else ()
        return parts if self._measure.rows else (), predicted

    def _checksum(self, variables: Variables) -> tf.Tensor:
        evaluated = self._optimizer_class.evaluated
        return checksum_of([variables[evaluated(name)] for name in self.graph.parameters])


class StepsCache:
    """The steps of the graphs that were built last."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._kept: OrderedDict[tuple[Graph, Hyperparameters], Steps] = OrderedDict()

    def get(self, graph: Graph, used: Hyperparameters) -> Steps:
        """Return the steps of a graph with hyperparameters; raises as ``Steps``."""
        key = graph, _traced_part(used)
        if key not in self._kept:
            self._kept[key] = Steps(graph, used, self._objective)
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
            gc.collect()  # What was traced refers to itself.
        return self._kept[key]


def _traced_part(used: Hyperparameters) -> Hyperparameters:
    """Return hyperparameters without those that are no part of a trace."""
    free = {"batch_size": 1, "learning_rate": 0.0, "kernel_size": None}
    return used.model_copy(update=free | {"schedule": ScheduleSettings()})


def _check_layers(graph: Graph) -> None:
    """Raise EngineError, with the node's name, for a layer without an operation."""
    for node in graph.nodes:
        if type(node.layer) not in OPERATIONS:
            raise EngineError(
                f"node '{node.name}': the tensorflow engine has no layer '{node.layer.kind}'"
            )


def _dense(gradient: tf.Tensor) -> tf.Tensor:
    """Return the gradient of a whole array, also if it is given as some rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = gradient.dense_shape[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def _caller(traced: Any, names: Sequence[str]) -> Callable[[Sequence[Any], Variables], Any]:  # noqa: ANN401
    """Return a call of a traced function with arguments and the variables of these names.

    It bypasses the binding of hundreds of variables to the function's structure, which would cost
    milliseconds per step, by an internal interface of TensorFlow.
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
    sys.stderr.write(
        f"aiperf: TensorFlow {tf.__version__} has no AtomicFunction.call_preflattened: each step "
        "costs milliseconds more; use TensorFlow 2.18\n"
    )
    sys.stderr.flush()


def checksum_of(arrays: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the checksum, int64 (), of arrays of float32; int64 wraps round."""
    total, before = tf.constant(0, tf.int64), 0
    for array in arrays:
        size = math.prod(array.shape)
        total += _of_one(tf.reshape(array, [-1]), size, before)
        before += -(-size // 2)
    return total


def _of_one(flat: tf.Tensor, size: int, before: int) -> tf.Tensor:
    """Return what an array of this size adds, before which there are so many words."""
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
