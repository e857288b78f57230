"""The ``tensorflow`` engine: a graph's operations in one ``tf.function`` for a training step.

XLA stays off on CPUs, where it is several times slower than oneDNN for these networks. Keras is
not used: its layers would be traced through several calls each, and what it keeps for the whole
process is in the way of building one network while another one trains.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError, NonFiniteLossError, OutOfMemoryError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.checkpoint import Weights, check_weights
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import Batch, Pixels
from aiperf_hpc.replica.engines.base import (
    Buffer,
    EvaluationSums,
    OptimizerState,
    empty_batch,
    evaluated,
    shrinking,
    step_in_halves,
)
from aiperf_hpc.replica.engines.checksum import PendingChecksum
from aiperf_hpc.replica.engines.tensorflow.checksum import summed
from aiperf_hpc.replica.engines.tensorflow.layers import OPERATIONS, STATISTICS_RATE, Pass
from aiperf_hpc.replica.engines.tensorflow.objectives import QUALITIES, weighted
from aiperf_hpc.replica.engines.tensorflow.optimizers import OPTIMIZERS
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.system.accelerators import find_accelerators, least_memory
from aiperf_hpc.trial import Hyperparameters

_COMPUTE = {"fp32": tf.float32, "bf16": tf.bfloat16}

_ALIGNED_BYTES = 64
"""The alignment of memory, in bytes, that TensorFlow takes as it is; other arrays it copies."""


Arrays = Mapping[str, tf.Tensor]


def execute(
    graph: Graph,
    variables: Mapping[str, tf.Variable],
    given: Arrays,
    precision: str,
    *,
    training: bool = False,
) -> tf.Tensor:
    """Return the network's output, of a softmax what that reads, in float32.

    In training mode running statistics move on, as a step moves them.
    """
    run = Pass(variables, training, _COMPUTE[precision])
    tensors: dict[str, tf.Tensor] = {}
    for node in graph.nodes:
        inputs = [tensors[source] for source in node.inputs] or [given[node.name]]
        tensors[node.name] = OPERATIONS[type(node.layer)](run, node, node.layer, inputs)
    return tf.cast(tensors[graph.output.name], tf.float32)


def _check_layers(graph: Graph) -> None:
    """Raise EngineError, with the node's name, for a layer that is not known here."""
    for node in graph.nodes:
        if type(node.layer) not in OPERATIONS:
            raise EngineError(
                f"node '{node.name}': the tensorflow engine has no layer '{node.layer.kind}'"
            )


class TensorFlowNetwork:
    """A network of the ``tensorflow`` engine; see ``engines.base.Network``."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None,
        objective: Objective,
    ) -> None:
        check_weights(graph, weights)
        _check_layers(graph)
        self._objective = objective
        self._measure = objective.quality
        self._loss_of = weighted(objective)
        self._quality_of = QUALITIES[objective.measure]
        with _named_errors():
            self._variables = {name: tf.Variable(array) for name, array in weights.items()}
            self._graph = graph
            self._used = hyperparameters
            self._transparent = transparent(graph, weights)
            parameters = {name: self._variables[name] for name in graph.parameters}
            small = shrinking(graph, hyperparameters)
            self._optimizer = OPTIMIZERS[hyperparameters.optimizer](
                parameters, small.decayed, small.used
            )
            self._optimizer.penalise(small.penalties)
            self._optimizer.load(optimizer_state)
            self._evaluated_variables = self._variables | dict(self._optimizer.evaluated)
            self._sizes = [math.prod(shape) for shape in graph.parameters.values()]
            self._statistics = list(graph.statistics)
            self._smoothing = hyperparameters.label_smoothing
            self._loss_sum = tf.Variable(0.0, dtype=tf.float64)
            self._steps = tf.Variable(0, dtype=tf.int64)
            added = 0 if self._measure.rows else len(self._measure.sums)
            self._evaluated = tf.Variable(tf.zeros(1 + added, tf.float64))
            self._rows: list[Sequence[tf.Tensor]] = []
            self._predicted: list[tf.Tensor] = []
            self._samples = 0
            self._zeros: tf.Tensor | None = None
            self._trace()

    def _trace(self) -> None:
        """Make what is traced once, for any batch size, when it is first called."""
        inputs = {
            name: tf.TensorSpec((None, *self._graph.shapes[name]), self._graph.dtype(name))
            for name in self._graph.inputs
        }
        targets = {
            name: tf.TensorSpec((None, *spec.shape), spec.dtype)
            for name, spec in self._objective.targets.items()
        }
        rate = tf.TensorSpec((), tf.float32)
        self._train = tf.function(self._train_step, [inputs, targets, rate], autograph=False)
        self._gradients = tf.function(self._gradient_step, [inputs, targets, rate], autograph=False)
        flat = tf.TensorSpec(self.buckets, tf.float32)
        self._apply = tf.function(self._apply_step, [flat, rate], autograph=False)
        self._evaluate = tf.function(self._evaluate_step, [inputs, targets], autograph=False)
        self._infer = tf.function(self._outputs, [inputs], autograph=False)
        self._summed = tf.function(self._sum, [], autograph=False)

    def _outputs(self, inputs: Arrays, *, training: bool = False) -> tf.Tensor:
        precision = self._used.precision
        variables = self._variables if training else self._evaluated_variables
        return execute(self._graph, variables, inputs, precision, training=training)

    def _train_step(self, inputs: Arrays, targets: Arrays, rate: tf.Tensor) -> None:
        gradients = self._backward(inputs, targets, 1.0)
        self._optimizer.step(dict(zip(self._graph.parameters, gradients, strict=True)), rate)

    def _backward(
        self, inputs: Arrays, targets: Arrays, share: tf.Tensor | float
    ) -> list[tf.Tensor]:
        """Return the gradients of ``share`` of the mean loss, which is added to the sum of them."""
        with tf.GradientTape() as tape:
            output = self._outputs(inputs, training=True)
            loss = share * tf.reduce_mean(self._loss_of(output, targets, self._smoothing))
        self._loss_sum.assign_add(tf.cast(loss, tf.float64))
        self._steps.assign_add(1)
        gradients = tape.gradient(loss, [self._variables[name] for name in self._graph.parameters])
        return [_dense(gradient) for gradient in gradients]

    def _gradient_step(self, inputs: Arrays, targets: Arrays, share: tf.Tensor) -> tf.Tensor:
        return tf.concat([tf.reshape(g, [-1]) for g in self._backward(inputs, targets, share)], 0)

    def _apply_step(self, flat: tf.Tensor, rate: tf.Tensor) -> None:
        """Cut by slices: unlike ``tf.split`` they share memory with what they are cut from."""
        gradients: dict[str, tf.Tensor] = {}
        start = 0
        for (name, shape), size in zip(self._graph.parameters.items(), self._sizes, strict=True):
            gradients[name] = tf.reshape(tf.slice(flat, [start], [size]), shape)
            start += size
        self._optimizer.step(gradients, rate)

    def _evaluate_step(
        self, inputs: Arrays, targets: Arrays
    ) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
        """Add to the running sums; return the measure's rows, and the classes if asked for."""
        output = self._outputs(inputs)
        loss = tf.reduce_sum(self._loss_of(output, targets, 0.0))
        parts = self._quality_of(output, targets)
        added = () if self._measure.rows else parts
        sums = [tf.cast(value, tf.float64) for value in (loss, *added)]
        self._evaluated.assign_add(tf.stack(sums))
        predicted = (tf.argmax(output, axis=-1),) if self._objective.predictions else ()
        return parts if self._measure.rows else (), predicted

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        with _named_errors():
            rate = tf.constant(learning_rate, tf.float32)
            self._train(*self._of(batch), rate)

    def _of(self, batch: Batch) -> tuple[Arrays, Arrays]:
        """Return those arrays of a batch that the network and its objective read."""
        given = ((name, batch.inputs[name]) for name in self._graph.inputs)
        inputs = {name: np.asarray(x) if isinstance(x, Pixels) else x for name, x in given}
        return inputs, {name: batch.targets[name] for name in self._objective.targets}

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        """Graphs are optimised, and kernels chosen for the batch's shape, when they first run."""
        weights, optimizer_state = self.weights(), self.optimizer_state()
        batch = empty_batch(self._graph, self._objective, batch_size)
        if halves:
            step_in_halves(self, batch, 0.0)
        else:
            self.train_step(batch, 0.0)
        self.evaluate_step(batch)
        self._rows.clear()
        self._predicted.clear()
        self._samples = 0
        with _named_errors():
            for variable in (self._loss_sum, self._steps, self._evaluated):
                variable.assign(tf.zeros_like(variable))
        self.assign(weights)
        with _named_errors():
            self._optimizer.load(optimizer_state)

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        return calibrate(self._graph, self._transparent, lambda: self.moments(batch), self.assign)

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Layer by layer, untraced: that takes a second less than one more trace would.

        Running statistics that begin at zero tell, after one step of theirs, what they saw.
        """
        kept = self.statistics()
        self.set_statistics(np.zeros_like(kept))
        try:
            with _named_errors():
                inputs, _ = self._of(batch)
                self._outputs(
                    {name: tf.convert_to_tensor(array) for name, array in inputs.items()},
                    training=True,
                )
            seen = self.statistics()
        finally:
            self.set_statistics(kept)
        return seen / np.float32(STATISTICS_RATE) * self._biased(batch.size)

    def _biased(self, samples: int) -> NDArray[np.float32]:
        """Return what takes TensorFlow's batch statistics, flat, to means and biased variances.

        Its variances are unbiased: over one value less than there are.
        """
        factors = []
        for name, shape in self._graph.statistics.items():
            node, what = name.split("/")
            (read,) = self._graph.input_shapes(node)
            values = samples * math.prod(read[:-1])
            factor = max(values - 1, 1) / values if what == "variance" else 1.0
            factors.append(np.full(shape, factor, np.float32))
        return np.concatenate(factors)

    def assign(self, weights: Weights) -> None:
        parameters = {n: a for n, a in weights.items() if n in self._graph.parameters}
        with _named_errors():
            self._optimizer.assign(parameters)
            for name in weights.keys() - parameters.keys():
                self._variables[name].assign(weights[name])

    @property
    def buckets(self) -> tuple[int, ...]:
        """All parameters at once: one call of a ``tf.function`` makes them."""
        return (sum(self._sizes),)

    def await_room(self) -> None:
        """TensorFlow itself says when its queue is full."""

    def gradients(self, batch: Batch, share: float, ready: Callable[[Buffer], None]) -> None:
        with _named_errors():
            if batch.size:
                share = tf.constant(share, tf.float32)
                ready(self._gradients(*self._of(batch), share))
            else:
                self._steps.assign_add(1)
                ready(self.zeros(0))

    def zeros(self, bucket: int) -> tf.Tensor:
        if self._zeros is None:
            with _named_errors():
                self._zeros = tf.zeros(self.buckets[bucket])
        return self._zeros

    def apply(self, buckets: Sequence[Buffer], learning_rate: float) -> None:
        (flat,) = buckets
        with _named_errors():
            self._apply(_tensor(flat), tf.constant(learning_rate, tf.float32))

    def _sum(self) -> tf.Tensor:
        return summed([self._evaluated_variables[name] for name in self._graph.parameters])

    def checksum(self) -> PendingChecksum:
        with _named_errors():
            total = self._summed()

        def wait() -> int:
            with _named_errors():
                return int(total.numpy())

        return wait

    def statistics(self) -> NDArray[np.float32]:
        arrays = [self._variables[name].numpy().ravel() for name in self._statistics]
        flat: NDArray[np.float32] = np.concatenate([*arrays, np.zeros(0)]).astype(np.float32)
        return flat

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        start = 0
        for name in self._statistics:
            variable = self._variables[name]
            end = start + math.prod(variable.shape)
            variable.assign(flat[start:end].reshape(variable.shape))
            start = end

    def drain_training(self) -> float:
        with _named_errors():
            loss, steps = float(self._loss_sum.numpy()), int(self._steps.numpy())
            self._loss_sum.assign(0.0)
            self._steps.assign(0)
        if not np.isfinite(loss):
            raise NonFiniteLossError(
                "the training loss is not finite; a lower training.learning_rate may help"
            )
        return loss / steps if steps else 0.0

    def evaluate_step(self, batch: Batch) -> None:
        with _named_errors():
            rows, predicted = self._evaluate(*self._of(batch))
        self._samples += batch.size
        self._predicted += predicted
        if self._measure.rows:
            self._rows.append(rows)

    def drain_evaluation(self) -> EvaluationSums:
        with _named_errors():
            loss, *added = (float(v) for v in self._evaluated.numpy())
            rows = [tf.concat(part, 0).numpy() for part in zip(*self._rows, strict=True)]
            predicted = tf.concat(self._predicted, 0).numpy() if self._predicted else None
            self._evaluated.assign(tf.zeros_like(self._evaluated))
        samples = self._samples
        self._samples = 0
        self._rows.clear()
        self._predicted.clear()
        if not np.isfinite(loss):
            raise NonFiniteLossError(
                "the validation loss is not finite; a lower training.learning_rate may help"
            )
        return evaluated(self._measure, loss, samples, rows or added, predicted)

    def outputs(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        with _named_errors():
            return cast("NDArray[np.float32]", self._infer(dict(inputs)).numpy())

    def weights(self) -> Weights:
        with _named_errors():
            return _arrays(self._evaluated_variables)

    def optimizer_state(self) -> OptimizerState:
        with _named_errors():
            return self._optimizer.arrays()

    def close(self) -> None:
        del self._variables, self._evaluated_variables, self._optimizer
        del self._train, self._evaluate, self._infer, self._gradients, self._apply, self._summed
        gc.collect()  # What was traced refers to itself.


def _dense(gradient: tf.Tensor) -> tf.Tensor:
    """Return a gradient that may be of some rows alone as that of the whole array."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows = gradient.dense_shape[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)


def _tensor(flat: Buffer) -> tf.Tensor:
    """Return a buffer as a tensor, of the same memory where it is an array that is aligned."""
    if isinstance(flat, np.ndarray) and flat.ctypes.data % _ALIGNED_BYTES == 0:
        return tf.experimental.dlpack.from_dlpack(flat.__dlpack__())
    return tf.convert_to_tensor(flat)


def _arrays(variables: dict[str, Any]) -> Weights:
    return {name: np.array(v.numpy(), np.float32) for name, v in variables.items()}


@contextmanager
def _named_errors() -> Iterator[None]:
    """Turn the framework's errors into ours, one line each."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(_first_line(error)) from error
    except (tf.errors.OpError, tf.errors.InvalidArgumentError) as error:
        raise EngineError(f"TensorFlow: {_first_line(error)}") from error
    except MemoryError as error:
        raise OutOfMemoryError("the host has no memory left") from error


def _first_line(error: Exception) -> str:
    """Return the line that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else repr(error)


class TensorFlowEngine:
    """The ``tensorflow`` engine; see ``engines.base.Engine``."""

    name = "tensorflow"
    warms_alone = False

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    @property
    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__}

    @property
    def accelerators(self) -> tuple[str, ...]:
        devices = tf.config.get_visible_devices("GPU")
        details = tf.config.experimental.get_device_details
        return tuple(details(d).get("device_name", d.name) for d in devices)

    @property
    def memory_bytes(self) -> int | None:
        """The least that an accelerator of this node has; None also where its vendor tells nothing.

        TensorFlow says what it has taken of its own one, not what there is.
        """
        if not tf.config.get_visible_devices("GPU"):
            return None
        return least_memory(find_accelerators().accelerators)

    def compile_ahead(self, graph: Graph, precision: str, samples: int) -> None:
        """Do nothing: a trace cannot be made by another process, and a step is a single launch."""

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> TensorFlowNetwork:
        if hyperparameters.precision not in _COMPUTE:
            raise EngineError(
                f"training.precision={hyperparameters.precision}: the tensorflow engine does not "
                "scale the loss; use bf16, or engine.name=torch"
            )
        return TensorFlowNetwork(graph, weights, hyperparameters, optimizer_state, self.objective)

    def probe(self) -> tf.Tensor:
        with _named_errors():
            return tf.ones(1)


def accelerators_here(settings: EngineConfig) -> tuple[str, int]:
    """Return the vendor and the number of the accelerators that are seen here."""
    del settings
    vendor = "AMD" if tf.test.is_built_with_rocm() else "NVIDIA"
    return vendor, len(tf.config.list_physical_devices("GPU"))


def make_engine(
    cores: int, device: int, settings: EngineConfig, objective: Objective, ranks: int
) -> TensorFlowEngine:
    """Return the engine.

    Args:
        cores: the threads it computes on, where it computes on CPUs.
        device: which of the host's accelerators it computes on, where there are any.
        settings: whether it computes on the CPU although there are accelerators.
        objective: what its networks are trained for.
        ranks: those that train one network together, all the same to it.
    """
    del ranks
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    accelerators = tf.config.list_physical_devices("GPU")
    if settings.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif accelerators:
        own = accelerators[device % len(accelerators)]
        tf.config.set_visible_devices(own, "GPU")
        tf.config.experimental.set_memory_growth(own, True)
    return TensorFlowEngine(objective)
