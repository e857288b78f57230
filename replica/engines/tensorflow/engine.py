"""The ``tensorflow`` engine: one ``tf.function`` with a graph's operations per training step.

XLA is disabled on CPUs, where it is several times slower than oneDNN for these networks. Keras is
not used: each of its layers needs several calls while tracing, and its process-wide state prevents
building one network while another one trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError, OutOfMemoryError
from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import Batch, Pixels
from aiperf_hpc.replica.engines import base
from aiperf_hpc.replica.engines.tensorflow.layers import STATISTICS_RATE
from aiperf_hpc.replica.engines.tensorflow.steps import (
    COMPUTE,
    EVALUATED,
    LOSS,
    Arrays,
    Step,
    Steps,
    StepsCache,
)
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.system.accelerators import find_accelerators, least_memory

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
"""Disabled passes of TensorFlow's graph optimizer. They speed up no step on CPUs and need more time
than ten steps of a small network. The other passes fuse operations and remove unused ones."""

_ALIGNED_BYTES = 64
"""Alignment in bytes; TensorFlow copies arrays with a smaller alignment."""


@contextmanager
def _named_errors() -> Iterator[None]:
    """Convert the framework's errors in the block to this package's errors, in one line each."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(base.first_line(error)) from error
    except (tf.errors.OpError, tf.errors.InvalidArgumentError) as error:
        raise EngineError(f"TensorFlow: {base.first_line(error)}") from error
    except MemoryError as error:
        raise OutOfMemoryError("the host has no memory left") from error


class TensorFlowNetwork(base.FrameworkNetwork, errors=_named_errors):
    """A network of the ``tensorflow`` engine; see ``engines.base.RankNetwork``."""

    def __init__(self, steps: Steps, state: base.NetworkState, objective: Objective) -> None:
        super().__init__(state, objective)
        self._functions = steps
        self._zeros: tf.Tensor | None = None
        with _named_errors():
            own = {name: tf.Variable(array) for name, array in state.weights.items()}
            self._optimizer = steps.optimizer(own)
            self._optimizer.load(state.optimizer_state)
            sums = steps.sums(self._sum_count)
            self._variables = own | dict(self._optimizer.variables) | sums
            self._evaluated = steps.evaluated(self._variables)

    def _call(self, step: Step, *arguments: Any) -> Any:  # noqa: ANN401 -- a step's own
        return self._functions.call(step, self._variables, *arguments)

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        rate = tf.constant(learning_rate, tf.float32)
        self._call("train", *self._tensors(batch), rate)
        self._steps += 1

    def _tensors(self, batch: Batch) -> tuple[Arrays, Arrays]:
        """Return the inputs and targets used by the network and its objective."""
        targets = {
            name: tf.convert_to_tensor(batch.targets[name], spec.dtype)
            for name, spec in self._objective.targets.items()
        }
        return self._inputs(batch.inputs), targets

    def _inputs(self, arrays: Mapping[str, Any]) -> Arrays:
        given = ((name, arrays[name]) for name in self._graph.inputs)
        return {
            name: tf.convert_to_tensor(
                np.asarray(x) if isinstance(x, Pixels) else x, self._graph.dtype(name)
            )
            for name, x in given
        }

    @contextmanager
    def _restored(self, batch_size: int) -> Iterator[None]:
        """Restore all variables after first steps, which optimize graphs and select kernels."""
        weights, optimizer_state = self.weights(), self.optimizer_state()
        sums = {name: self._variables[name].numpy() for name in (LOSS, EVALUATED)}
        yield
        self.assign(weights)
        self._optimizer.load(optimizer_state)
        for name, values in sums.items():
            self._variables[name].assign(values)

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Compute layer by layer without tracing, because another trace would need a second.

        Running statistics that start at zero yield those of the batch after one step.
        """
        before = self.statistics()
        self.set_statistics(np.zeros_like(before))
        try:
            self._functions.forward(self._variables, self._inputs(batch.inputs))
            after = self.statistics()
        finally:
            self.set_statistics(before)
        return after / np.float32(STATISTICS_RATE) * self._biased(batch.size)

    def _biased(self, samples: int) -> NDArray[np.float32]:
        """Return the factors from TensorFlow's batch statistics to means and biased variances.

        TensorFlow's variances are unbiased: divided by the number of values minus one.
        """
        factors = []
        for name, shape in self._graph.statistics.items():
            node, statistic = name.split("/")
            (read,) = self._graph.input_shapes(node)
            values = samples * math.prod(read[:-1])
            factor = max(values - 1, 1) / values if statistic == "variance" else 1.0
            factors.append(np.full(shape, factor, np.float32))
        return np.concatenate(factors)

    def assign(self, weights: Weights) -> None:
        parameters = {n: a for n, a in weights.items() if n in self._graph.parameters}
        self._optimizer.assign(parameters)
        for name in weights.keys() - parameters.keys():
            self._variables[name].assign(weights[name])

    @property
    def buckets(self) -> tuple[int, ...]:
        """Return one bucket with all parameters: one ``tf.function`` computes all gradients."""
        return (self._graph.parameter_count,)

    def await_room(self) -> None:
        """Return immediately: TensorFlow waits itself if its queue is full."""

    def gradients(self, batch: Batch, share: float, ready: Callable[[base.Buffer], None]) -> None:
        self._steps += 1
        if batch.size:
            share = tf.constant(share, tf.float32)
            ready(self._call("gradients", *self._tensors(batch), share))
        else:
            ready(self.zeros(0))

    def zeros(self, bucket: int) -> tf.Tensor:
        if self._zeros is None:
            self._zeros = tf.zeros(self.buckets[bucket])
        return self._zeros

    def apply(self, buckets: Sequence[base.Buffer], learning_rate: float) -> None:
        (flat,) = buckets
        self._call("apply", _tensor(flat), tf.constant(learning_rate, tf.float32))

    def checksum(self) -> base.PendingChecksum:
        total = self._call("checksum")
        return _named_errors()(lambda: int(total.numpy()))

    def statistics(self) -> NDArray[np.float32]:
        arrays = [self._variables[name].numpy().ravel() for name in self._graph.statistics]
        flat: NDArray[np.float32] = np.concatenate([*arrays, np.zeros(0)]).astype(np.float32)
        return flat

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        start = 0
        for name, shape in self._graph.statistics.items():
            end = start + math.prod(shape)
            self._variables[name].assign(flat[start:end].reshape(shape))
            start = end

    def _take(self, name: str) -> NDArray[np.float64]:
        """Return and reset a running sum."""
        total: NDArray[np.float64] = self._variables[name].numpy()
        self._variables[name].assign(tf.zeros_like(self._variables[name]))
        return total

    def _take_loss(self) -> float:
        return float(self._take(LOSS))

    def evaluate_step(self, batch: Batch) -> None:
        rows, predicted = self._call("evaluate", *self._tensors(batch))
        self._samples += batch.size
        self._predicted += predicted
        if self._metric.rows:
            self._rows.append(rows)

    def _take_evaluation(self) -> list[float]:
        sums: list[float] = self._take(EVALUATED).tolist()
        return sums

    def _joined(self, parts: Sequence[tf.Tensor]) -> NDArray[Any]:
        return cast("NDArray[Any]", tf.concat(parts, 0).numpy())

    def weights(self) -> Weights:
        return {name: np.array(v.numpy(), np.float32) for name, v in self._evaluated.items()}

    def optimizer_state(self) -> base.OptimizerState:
        return self._optimizer.arrays()

    def close(self) -> None:
        del self._variables, self._evaluated, self._optimizer, self._functions


def _tensor(flat: base.Buffer) -> tf.Tensor:
    """Return a buffer as a tensor, without a copy if it is an aligned array."""
    if isinstance(flat, np.ndarray) and flat.ctypes.data % _ALIGNED_BYTES == 0:
        return tf.experimental.dlpack.from_dlpack(flat.__dlpack__())
    return tf.convert_to_tensor(flat)


class TensorFlowEngine:
    """The ``tensorflow`` engine; see ``engines.base.Engine``."""

    name = "tensorflow"
    warms_alone = False

    def __init__(self, objective: Objective) -> None:
        self.versions = {"tensorflow": tf.__version__}
        self.objective = objective
        self._cache = StepsCache(objective)

    @property
    def accelerators(self) -> tuple[str, ...]:
        devices = tf.config.get_visible_devices("GPU")
        details = tf.config.experimental.get_device_details
        return tuple(details(d).get("device_name", d.name) for d in devices)

    @property
    def memory_bytes(self) -> int | None:
        """Minimum memory of this node's accelerators; None also if the vendor's tool is missing.

        TensorFlow reports only allocated memory, not total memory.
        """
        if not tf.config.get_visible_devices("GPU"):
            return None
        return least_memory(find_accelerators().accelerators)

    def compile_ahead(self, state: base.NetworkState) -> str:
        """Do nothing: no other process can trace for this one, and a step is a single launch."""
        return ""

    def build(self, state: base.NetworkState) -> TensorFlowNetwork:
        precision = state.hyperparameters.precision
        if precision not in COMPUTE:
            raise EngineError(
                f"training.precision={precision}: the tensorflow engine does not "
                "scale the loss; use bf16, or engine.name=torch"
            )
        steps = self._cache.get(state.graph, state.hyperparameters)
        return TensorFlowNetwork(steps, state, self.objective)

    @_named_errors()
    def probe(self) -> tf.Tensor:
        return tf.ones(1)


def accelerators_here(settings: EngineConfig) -> tuple[str, int]:
    """Return the vendor and the number of the visible accelerators."""
    vendor = "AMD" if tf.test.is_built_with_rocm() else "NVIDIA"
    return vendor, len(tf.config.list_physical_devices("GPU"))


def make_engine(
    cores: int, device: int, settings: EngineConfig, objective: Objective, ranks: int
) -> TensorFlowEngine:
    """Return the engine.

    Args:
        cores: number of threads, if the engine computes on CPUs.
        device: index of the accelerator on the host, if there is any.
        settings: whether to compute on the CPU despite accelerators, and whether in TF32.
        objective: loss and metric of the engine's networks.
        ranks: number of ranks that train one network together; ignored by this engine.
    """
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
