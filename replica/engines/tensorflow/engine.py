"""The ``tensorflow`` engine: a graph's operations in one ``tf.function`` for a training step.

XLA stays off on CPUs, where it is several times slower than oneDNN for these networks. Keras is
not used: its layers would be traced through several calls each, and what it keeps for the whole
process is in the way of building one network while another one trains.
"""

from __future__ import annotations

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
    step_in_halves,
)
from aiperf_hpc.replica.engines.checksum import PendingChecksum
from aiperf_hpc.replica.engines.tensorflow.layers import STATISTICS_RATE
from aiperf_hpc.replica.engines.tensorflow.steps import (
    COMPUTE,
    EVALUATED,
    LOSS_STEPS,
    LOSS_SUM,
    Arrays,
    KeptSteps,
    Step,
    Steps,
)
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.system.accelerators import find_accelerators, least_memory
from aiperf_hpc.trial import Hyperparameters

_IDLE_PASSES = (
    "layout_optimizer",
    "constant_folding",
    "shape_optimization",
    "arithmetic_optimization",
    "loop_optimization",
    "function_optimization",
    "scoped_allocator_optimization",
    "pin_to_host_optimization",
    "implementation_selector",
    "auto_mixed_precision",
    "debug_stripper",
)
"""Passes of TensorFlow's graph optimizer that make no step faster on CPUs, and take longer than ten
steps of a small network. Those that stay fuse operations and remove what nothing reads."""

_ALIGNED_BYTES = 64
"""The alignment of memory, in bytes, that TensorFlow takes as it is; other arrays it copies."""


class TensorFlowNetwork:
    """A network of the ``tensorflow`` engine; see ``engines.base.Network``."""

    def __init__(
        self,
        steps: Steps,
        weights: Weights,
        optimizer_state: OptimizerState | None,
        objective: Objective,
    ) -> None:
        self._steps = steps
        self._graph = graph = steps.graph
        check_weights(graph, weights)
        self._objective = objective
        self._measure = objective.quality
        self._transparent = transparent(graph, weights)
        self._statistics = list(graph.statistics)
        self._rows: list[Sequence[tf.Tensor]] = []
        self._predicted: list[tf.Tensor] = []
        self._samples = 0
        self._zeros: tf.Tensor | None = None
        with _named_errors():
            own = {name: tf.Variable(array) for name, array in weights.items()}
            self._optimizer = steps.optimizer(own)
            self._optimizer.load(optimizer_state)
            self._variables = own | dict(self._optimizer.variables) | steps.sums()
            self._evaluated = steps.evaluated(self._variables)

    def _call(self, step: Step, *arguments: Any) -> Any:  # noqa: ANN401 -- a step's own
        return self._steps.call(step, self._variables, *arguments)

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        with _named_errors():
            rate = tf.constant(learning_rate, tf.float32)
            self._call(Step.TRAIN, *self._of(batch), rate)

    def _of(self, batch: Batch) -> tuple[Arrays, Arrays]:
        """Return those arrays of a batch that the network and its objective read, as tensors."""
        targets = {
            name: tf.convert_to_tensor(batch.targets[name], spec.dtype)
            for name, spec in self._objective.targets.items()
        }
        return self._inputs(batch.inputs), targets

    def _inputs(self, arrays: Mapping[str, Any]) -> Arrays:
        """Return the arrays that the network reads, as tensors."""
        given = ((name, arrays[name]) for name in self._graph.inputs)
        return {
            name: tf.convert_to_tensor(
                np.asarray(x) if isinstance(x, Pixels) else x, self._graph.dtype(name)
            )
            for name, x in given
        }

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
            for name in (LOSS_SUM, LOSS_STEPS, EVALUATED):
                self._reset(name)
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
                self._steps.forward(self._variables, self._inputs(batch.inputs))
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
        return (sum(self._steps.sizes),)

    def await_room(self) -> None:
        """TensorFlow itself says when its queue is full."""

    def gradients(self, batch: Batch, share: float, ready: Callable[[Buffer], None]) -> None:
        with _named_errors():
            if batch.size:
                share = tf.constant(share, tf.float32)
                ready(self._call(Step.GRADIENTS, *self._of(batch), share))
            else:
                self._variables[LOSS_STEPS].assign_add(1)
                ready(self.zeros(0))

    def zeros(self, bucket: int) -> tf.Tensor:
        if self._zeros is None:
            with _named_errors():
                self._zeros = tf.zeros(self.buckets[bucket])
        return self._zeros

    def apply(self, buckets: Sequence[Buffer], learning_rate: float) -> None:
        (flat,) = buckets
        with _named_errors():
            self._call(Step.APPLY, _tensor(flat), tf.constant(learning_rate, tf.float32))

    def checksum(self) -> PendingChecksum:
        with _named_errors():
            total = self._call(Step.CHECKSUM)

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
            loss = float(self._variables[LOSS_SUM].numpy())
            steps = int(self._variables[LOSS_STEPS].numpy())
            self._reset(LOSS_SUM)
            self._reset(LOSS_STEPS)
        if not np.isfinite(loss):
            raise NonFiniteLossError(
                "the training loss is not finite; a lower training.learning_rate may help"
            )
        return loss / steps if steps else 0.0

    def _reset(self, name: str) -> None:
        """Begin a running sum anew."""
        self._variables[name].assign(tf.zeros_like(self._variables[name]))

    def evaluate_step(self, batch: Batch) -> None:
        with _named_errors():
            rows, predicted = self._call(Step.EVALUATE, *self._of(batch))
        self._samples += batch.size
        self._predicted += predicted
        if self._measure.rows:
            self._rows.append(rows)

    def drain_evaluation(self) -> EvaluationSums:
        with _named_errors():
            loss, *added = (float(v) for v in self._variables[EVALUATED].numpy())
            rows = [tf.concat(part, 0).numpy() for part in zip(*self._rows, strict=True)]
            predicted = tf.concat(self._predicted, 0).numpy() if self._predicted else None
            self._reset(EVALUATED)
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
            found = self._call(Step.INFER, self._inputs(inputs))
            return cast("NDArray[np.float32]", found.numpy())

    def weights(self) -> Weights:
        with _named_errors():
            return _arrays(self._evaluated)

    def optimizer_state(self) -> OptimizerState:
        with _named_errors():
            return self._optimizer.arrays()

    def close(self) -> None:
        del self._variables, self._evaluated, self._optimizer, self._steps


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
        self._kept = KeptSteps(objective)

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

    def compile_ahead(self, graph: Graph, precision: str, samples: int) -> str:
        """Do nothing: a trace cannot be made by another process, and a step is a single launch."""
        return ""

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> TensorFlowNetwork:
        if hyperparameters.precision not in COMPUTE:
            raise EngineError(
                f"training.precision={hyperparameters.precision}: the tensorflow engine does not "
                "scale the loss; use bf16, or engine.name=torch"
            )
        steps = self._kept.of(graph, hyperparameters)
        return TensorFlowNetwork(steps, weights, optimizer_state, self.objective)

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
        settings: whether it computes on the CPU although there are accelerators, and whether in
            TF32.
        objective: what its networks are trained for.
        ranks: those that train one network together, all the same to it.
    """
    del ranks
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    accelerators = tf.config.list_physical_devices("GPU")
    if settings.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
    if settings.device == "cpu" or not accelerators:
        tf.config.optimizer.set_experimental_options(dict.fromkeys(_IDLE_PASSES, False))
    else:
        own = accelerators[device % len(accelerators)]
        tf.config.set_visible_devices(own, "GPU")
        tf.config.experimental.set_memory_growth(own, True)
    tf.config.experimental.enable_tensor_float_32_execution(settings.tf32)
    return TensorFlowEngine(objective)
