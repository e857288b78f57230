"""The ``tensorflow`` engine: Keras 3 layers and a custom train step in a ``tf.function``.

XLA stays off on CPUs, where it is several times slower than oneDNN for these networks.
"""

from __future__ import annotations

import gc
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError, NonFiniteLossError, OutOfMemoryError
from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool2D,
    Graph,
    Input,
    Layer,
    MaxPool2D,
    ReLU,
    Softmax,
)
from aiperf_hpc.morphism.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights import Weights, check_weights
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.base import Buffer, Evaluation
from aiperf_hpc.trial import Hyperparameters

_ALIGNED_BYTES = 64
"""What TensorFlow asks of memory that it did not allocate itself."""
_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}


class _FusedBatchNorm(keras.layers.Layer):  # type: ignore[misc]
    """Batch normalisation by TensorFlow's fused kernel, in fp32 for any compute type.

    Keras 3's own layer normalises in several passes over memory, and its graph takes longer to
    trace.
    """

    def build(self, shape: tuple[int | None, ...]) -> None:
        def vector(name: str, start: str, *, trainable: bool) -> Any:  # noqa: ANN401
            return self.add_weight(
                name=name,
                shape=(shape[-1],),
                initializer=start,
                dtype="float32",
                trainable=trainable,
                autocast=False,  # Else Keras gives it in the compute type: bf16 has 8 bits.
            )

        self.gamma = vector("gamma", "ones", trainable=True)
        self.beta = vector("beta", "zeros", trainable=True)
        self.mean = vector("mean", "zeros", trainable=False)
        self.variance = vector("variance", "ones", trainable=False)
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if len(inputs.shape) == 2:  # The kernel takes images: a vector is one pixel.
            return self._normalise(inputs[:, None, None, :], training)[:, 0, 0, :]
        return self._normalise(inputs, training)

    def _normalise(self, inputs: tf.Tensor, training: bool) -> tf.Tensor:
        gamma, beta, mean, variance = (
            tf.convert_to_tensor(v) for v in (self.gamma, self.beta, self.mean, self.variance)
        )
        if not training:
            return tf.raw_ops.FusedBatchNormV3(
                x=inputs,
                scale=gamma,
                offset=beta,
                mean=mean,
                variance=variance,
                epsilon=BatchNorm.epsilon,
                is_training=False,
            ).y
        empty = tf.zeros([0], tf.float32)
        result = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=gamma,
            offset=beta,
            mean=empty,
            variance=empty,
            epsilon=BatchNorm.epsilon,
            is_training=True,
        )
        keep = BatchNorm.momentum
        self.mean.assign(mean * keep + result.batch_mean * (1.0 - keep))
        self.variance.assign(variance * keep + result.batch_variance * (1.0 - keep))
        return result.y


class _SymmetricMaxPool(keras.layers.Layer):  # type: ignore[misc]
    """Max-pooling padded by (k - 1) / 2 on every side, which SAME is not for strides above 1."""

    def __init__(self, kernel: int, stride: int, **options: object) -> None:
        super().__init__(**options)
        self.kernel, self.stride = kernel, stride

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        edge = [(self.kernel - 1) // 2] * 2
        return tf.nn.max_pool2d(inputs, self.kernel, self.stride, [[0, 0], edge, edge, [0, 0]])


Tensors = list[Any]


def _conv2d(layer: Layer, name: str, inputs: Tensors, dtype: str) -> Any:  # noqa: ANN401
    conv = cast("Conv2D", layer)
    source = inputs[0]
    if conv.kernel == 1 and conv.stride > 1 and source.shape[-1] % 16:
        # oneDNN writes past its workspace in the backward pass of a strided 1 x 1 convolution
        # whose channels do not fill its block (its issue 6035): so it gets one without a stride.
        pixels = source[:, :: conv.stride, :: conv.stride]
        return keras.layers.Conv2D(conv.channels, 1, use_bias=False, name=name, dtype=dtype)(pixels)
    padding = "same"  # Symmetric for stride 1 and an odd kernel.
    if conv.stride > 1:
        padding = "valid"
        if conv.kernel > 1:
            edge = (conv.kernel - 1) // 2
            source = keras.layers.ZeroPadding2D(edge, name=f"{name}__pad", dtype=dtype)(source)
    return keras.layers.Conv2D(
        conv.channels, conv.kernel, conv.stride, padding, use_bias=False, name=name, dtype=dtype
    )(source)


_BUILDERS: dict[type[Layer], Callable[[Layer, str, Tensors, str], Any]] = {
    Input: lambda layer, name, _, __: keras.Input(cast("Input", layer).shape, name=name),
    Conv2D: _conv2d,
    BatchNorm: lambda _, name, inputs, dtype: _FusedBatchNorm(name=name, dtype=dtype)(inputs[0]),
    ReLU: lambda _, name, inputs, dtype: keras.layers.ReLU(name=name, dtype=dtype)(inputs[0]),
    Add: lambda _, name, inputs, dtype: keras.layers.Add(name=name, dtype=dtype)(inputs),
    MaxPool2D: lambda layer, name, inputs, dtype: _SymmetricMaxPool(
        cast("MaxPool2D", layer).kernel, cast("MaxPool2D", layer).stride, name=name, dtype=dtype
    )(inputs[0]),
    GlobalAveragePool2D: lambda _, name, inputs, dtype: keras.layers.GlobalAveragePooling2D(
        name=name, dtype=dtype
    )(inputs[0]),
    Dense: lambda layer, name, inputs, dtype: keras.layers.Dense(
        cast("Dense", layer).units, name=name, dtype=dtype
    )(inputs[0]),
    # The loss works on what the softmax reads, which is the stable way.
    Softmax: lambda _, __, inputs, ___: inputs[0],
}


def build_model(graph: Graph, precision: str) -> keras.Model:
    """Return the Keras model of ``graph`` up to, without, its softmax.

    Raises:
        EngineError: a layer cannot be built; the message names the node.
    """
    tensors: dict[str, Any] = {}
    inputs: Tensors = []
    for node in graph.nodes:
        builder = _BUILDERS.get(type(node.layer))
        if builder is None:
            raise EngineError(
                f"node '{node.name}': the tensorflow engine has no layer '{node.layer.kind}'"
            )
        sources = [tensors[source] for source in node.inputs]
        try:
            tensors[node.name] = builder(node.layer, node.name, sources, _POLICIES[precision])
        except (ValueError, TypeError) as error:
            what = _first_line(error)
            raise EngineError(f"node '{node.name}' ({node.layer.kind}): {what}") from error
        if isinstance(node.layer, Input):
            inputs.append(tensors[node.name])
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], tensors[graph.output.name])


class TensorFlowNetwork:
    """A network of the ``tensorflow`` engine; see ``engines.base.Network``."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        momenta: Weights | None,
    ) -> None:
        check_weights(graph, weights)
        with _named_errors():
            self._model = build_model(graph, hyperparameters.precision)
            self._variables = model_variables(graph, self._model)
            for name, variable in self._variables.items():
                variable.assign(weights[name])
            self._graph, self._used = graph, hyperparameters
            self._transparent = transparent(graph, weights)
            self._momenta = {
                name: tf.Variable(
                    tf.zeros(shape) if momenta is None else tf.constant(momenta[name]),
                    dtype=tf.float32,
                )
                for name, shape in graph.parameters.items()
            }
            self._sizes = [math.prod(shape) for shape in graph.parameters.values()]
            self._statistics = list(graph.statistics)
            self._smoothing = hyperparameters.label_smoothing
            self._loss_sum = tf.Variable(0.0, dtype=tf.float64)
            self._steps = tf.Variable(0, dtype=tf.int64)
            self._evaluated = tf.Variable(tf.zeros(3, tf.float64))
            (shape,) = (n.layer.shape for n in graph.nodes if isinstance(n.layer, Input))
            self._trace((None, *shape))

    def _trace(self, shape: tuple[int | None, ...]) -> None:
        """Trace both step functions once, for any batch size."""
        images = tf.TensorSpec(shape, tf.float32)
        labels = tf.TensorSpec((None,), tf.int32)
        rate = tf.TensorSpec((), tf.float32)
        self._train = tf.function(self._train_step, [images, labels, rate])
        self._gradients = tf.function(self._gradient_step, [images, labels, rate])
        flat = tf.TensorSpec(self.buckets, tf.float32)
        self._apply = tf.function(self._apply_step, [flat, rate])
        self._evaluate = tf.function(self._evaluate_step, [images, labels])
        self._infer = tf.function(self._logits, [images])
        self._train.get_concrete_function()
        self._evaluate.get_concrete_function()

    def _logits(self, images: tf.Tensor) -> tf.Tensor:
        return tf.cast(self._model(images, training=False), tf.float32)

    def _train_step(self, images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> None:
        gradients = self._backward(images, labels, 1.0)
        for name, gradient in zip(self._momenta, gradients, strict=True):
            self._update(name, gradient, rate)

    def _backward(
        self, images: tf.Tensor, labels: tf.Tensor, share: tf.Tensor | float
    ) -> list[tf.Tensor]:
        """Return the gradients of ``share`` of the mean loss, which is added to the sum of them."""
        with tf.GradientTape() as tape:
            logits = tf.cast(self._model(images, training=True), tf.float32)
            loss = share * tf.reduce_mean(self._cross_entropy(labels, logits, self._smoothing))
        self._loss_sum.assign_add(tf.cast(loss, tf.float64))
        self._steps.assign_add(1)
        gradients: list[tf.Tensor] = tape.gradient(
            loss, [self._variables[name].value for name in self._momenta]
        )
        return gradients

    def _gradient_step(self, images: tf.Tensor, labels: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        return tf.concat([tf.reshape(g, [-1]) for g in self._backward(images, labels, share)], 0)

    def _apply_step(self, flat: tf.Tensor, rate: tf.Tensor) -> None:
        """Cut by slices: unlike ``tf.split`` they share memory with what they are cut from."""
        start = 0
        for name, size in zip(self._momenta, self._sizes, strict=True):
            gradient = tf.slice(flat, [start], [size])
            self._update(name, tf.reshape(gradient, self._momenta[name].shape), rate)
            start += size

    def _update(self, name: str, gradient: tf.Tensor, rate: tf.Tensor) -> None:
        """SGD with momentum; weight decay, decoupled from it, on kernels alone.

        Not by a Keras optimizer: what tf.function traces of one outlives the network, tens of
        megabytes for each.
        """
        variable = self._variables[name].value
        if self._used.weight_decay and name.endswith("/kernel"):
            variable.assign(variable * (1.0 - rate * self._used.weight_decay))
        # momentum <- momentum * m - rate * gradient; variable <- variable + momentum. One kernel.
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self._momenta[name].handle,
            lr=rate,
            grad=gradient,
            momentum=self._used.momentum,
        )

    def _evaluate_step(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        logits = self._logits(images)
        loss = tf.reduce_sum(self._cross_entropy(labels, logits, 0.0))
        hits = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels)
        sums = [
            loss,
            tf.reduce_sum(tf.cast(hits, tf.float32)),
            tf.cast(tf.size(labels), tf.float32),
        ]
        self._evaluated.assign_add(tf.cast(tf.stack(sums), tf.float64))

    @staticmethod
    def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor, smoothing: float) -> tf.Tensor:
        if smoothing == 0.0:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        classes = logits.shape[-1]
        targets = tf.one_hot(labels, classes) * (1.0 - smoothing) + smoothing / classes
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        with _named_errors():
            self._train(batch.inputs, batch.labels, tf.constant(learning_rate, tf.float32))

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
                self._model(tf.convert_to_tensor(batch.inputs), training=True)
            seen = self.statistics()
        finally:
            self.set_statistics(kept)
        return seen / np.float32(1.0 - BatchNorm.momentum) * self._biased(batch.size)

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
        with _named_errors():
            for name, array in weights.items():
                self._variables[name].assign(array)

    @property
    def buckets(self) -> tuple[int, ...]:
        """All parameters at once: one call of a ``tf.function`` makes them."""
        return (sum(self._sizes),)

    def gradients(self, batch: Batch, share: float, ready: Callable[[Buffer], None]) -> None:
        with _named_errors():
            if batch.size:
                share = tf.constant(share, tf.float32)
                ready(self._gradients(batch.inputs, batch.labels, share))
            else:
                self._steps.assign_add(1)
                ready(self.zeros(0))

    def zeros(self, bucket: int) -> tf.Tensor:
        return tf.zeros(self.buckets[bucket])

    def apply(self, buckets: Sequence[Buffer], learning_rate: float) -> None:
        (flat,) = buckets
        with _named_errors():
            self._apply(_tensor(flat), tf.constant(learning_rate, tf.float32))

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
            self._evaluate(batch.inputs, batch.labels)

    def drain_evaluation(self) -> Evaluation:
        with _named_errors():
            loss, correct, samples = (float(v) for v in self._evaluated.numpy())
            self._evaluated.assign(tf.zeros(3, tf.float64))
        if not np.isfinite(loss):
            raise NonFiniteLossError(
                "the validation loss is not finite; a lower training.learning_rate may help"
            )
        return Evaluation(loss, round(correct), round(samples))

    def logits(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        with _named_errors():
            return cast("NDArray[np.float32]", self._infer(inputs).numpy())

    def weights(self) -> Weights:
        with _named_errors():
            return _arrays(self._variables)

    def momenta(self) -> Weights:
        with _named_errors():
            return _arrays(self._momenta)

    def close(self) -> None:
        del self._model, self._variables, self._momenta
        del self._train, self._evaluate, self._infer, self._gradients, self._apply
        keras.backend.clear_session()
        gc.collect()


def model_variables(graph: Graph, model: keras.Model) -> dict[str, Any]:
    """Return the variable of every parameter and statistic of the graph."""
    return {
        name: getattr(model.get_layer(name.split("/")[0]), name.split("/")[1])
        for name in (*graph.parameters, *graph.statistics)
    }


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
    """Return the line that says what is wrong; Keras puts one and terminal colours before it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("Exception encountered when calling")]
    return told[0] if told else repr(error)


class TensorFlowEngine:
    """The ``tensorflow`` engine; see ``engines.base.Engine``."""

    name = "tensorflow"

    @property
    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    @property
    def accelerators(self) -> tuple[str, ...]:
        devices = tf.config.get_visible_devices("GPU")
        details = tf.config.experimental.get_device_details
        return tuple(details(d).get("device_name", d.name) for d in devices)

    @property
    def memory_bytes(self) -> int | None:
        return None  # TensorFlow says what it has taken, not what there is.

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        momenta: Weights | None = None,
    ) -> TensorFlowNetwork:
        if hyperparameters.precision not in _POLICIES:
            raise EngineError(
                f"training.precision={hyperparameters.precision}: the tensorflow engine does not "
                "scale the loss; use bf16, or engine.name=torch"
            )
        return TensorFlowNetwork(graph, weights, hyperparameters, momenta)


def make_engine(cores: int, device: int, settings: EngineConfig) -> TensorFlowEngine:
    """Return the engine.

    Args:
        cores: the threads it computes on, where it computes on CPUs.
        device: which of the host's accelerators it computes on, where there are any.
        settings: of other engines.
    """
    del settings
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    accelerators = tf.config.list_physical_devices("GPU")
    if accelerators:
        own = accelerators[device % len(accelerators)]
        tf.config.set_visible_devices(own, "GPU")
        tf.config.experimental.set_memory_growth(own, True)
    return TensorFlowEngine()
