"""Implementation of the layers in the ``tensorflow`` engine: one function per layer.

Images are (samples, height, width, channels), volumes (samples, depth, height, width, channels),
kernels (k, ..., in, out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiperf_hpc.graph import Layer, Node, layers
from aiperf_hpc.replica.engines.base import overruns_onednn
from aiperf_hpc.replica.tensorflow_import import tf

_FEW_PIXELS = 4
"""Maximum pixels of an image for which oneDNN's 1 x 1 convolution is slow."""

Tensors = Sequence[tf.Tensor]


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass through a graph: its variables, and whether it is training or inference."""

    variables: Mapping[str, tf.Variable]
    training: bool
    compute: tf.DType
    """Type of convolutions and activations; the parameters and statistics of normalizations remain
    in fp32."""

    def read(self, node: Node, parameter: str) -> tf.Tensor:
        """Return a parameter in the compute type."""
        return tf.cast(self.variables[f"{node.name}/{parameter}"], self.compute)


Operation = Callable[[Pass, Node, Any, Tensors], tf.Tensor]
"""Function of a pass, a node, its layer and its inputs that returns the node's output."""


def _input(run: Pass, node: Node, layer: layers.Input, inputs: Tensors) -> tf.Tensor:
    return tf.cast(inputs[0], run.compute) if layer.dtype == "float32" else inputs[0]


def _conv2d(run: Pass, node: Node, layer: layers.Conv2D, inputs: Tensors) -> tf.Tensor:
    made = _convolve(inputs[0], run.read(node, "kernel"), layer)
    return made + run.read(node, "bias") if layer.bias else made


def _convolve(source: tf.Tensor, kernel: tf.Tensor, layer: layers.Conv2D) -> tf.Tensor:
    if layer.kernel == 1:
        return _convolve_pixels(source, kernel, layer.stride)
    if layer.stride == 1:  # SAME is symmetric for an odd kernel.
        return tf.nn.conv2d(source, kernel, 1, "SAME")
    # A separate padding operation: with explicit padding, oneDNN has no kernel for the gradients,
    # and a training step of ResNet-50 is twice as slow.
    padded = tf.pad(source, _symmetric(layer.kernel))
    return tf.nn.conv2d(padded, kernel, layer.stride, "VALID")


def _conv3d(run: Pass, node: Node, layer: layers.Conv3D, inputs: Tensors) -> tf.Tensor:
    kernel, source, stride = run.read(node, "kernel"), inputs[0], layer.stride
    if overruns_onednn(layer.kernel, stride, source.shape[-1]):
        source, stride = source[:, ::stride, ::stride, ::stride], 1
    if stride == 1:  # SAME equals the padding of the layer.
        made = tf.nn.conv3d(source, kernel, [1] * 5, "SAME")
    else:
        padded = tf.pad(source, [[0, 0], *[layer.window.padding] * 3, [0, 0]])
        made = tf.nn.conv3d(padded, kernel, [1, *[stride] * 3, 1], "VALID")
    if not layer.bias:
        return made
    bias = run.read(node, "bias")
    # No bias_add in inference: TensorFlow 2.18 fuses it with a following addition and leaky ReLU,
    # and then always uses a slope of 0.2. In training, gradients read the intermediate results, so
    # that only the convolution and its bias are fused.
    return tf.nn.bias_add(made, bias) if run.training else made + bias


def _depthwise_conv2d(
    run: Pass, node: Node, layer: layers.DepthwiseConv2D, inputs: Tensors
) -> tf.Tensor:
    """Convolve. With a dilation, TensorFlow allows no stride, so all outputs are computed."""
    stride, spread = layer.stride, layer.dilation
    kernel = tf.transpose(run.read(node, "kernel"), [0, 1, 3, 2])
    padded = tf.pad(inputs[0], _symmetric(spread * (layer.kernel - 1) + 1))
    step = stride if spread == 1 else 1
    strides = [1, step, step, 1]
    made = tf.nn.depthwise_conv2d(padded, kernel, strides, "VALID", dilations=[spread] * 2)
    return made if step == stride else made[:, ::stride, ::stride]


def _atrous_conv2d(run: Pass, node: Node, layer: layers.AtrousConv2D, inputs: Tensors) -> tf.Tensor:
    kernel = run.read(node, "kernel")
    return tf.nn.conv2d(inputs[0], kernel, 1, "SAME", dilations=layer.dilation)


def _conv_transpose2d(
    run: Pass, node: Node, layer: layers.ConvTranspose2D, inputs: Tensors
) -> tf.Tensor:
    """Compute all positions that the kernel reaches, and crop those before the first and after the
    last row and column."""
    source, size, stride = inputs[0], layer.kernel, layer.stride
    height, width = source.shape[1:3]
    reached = [(n - 1) * stride + size for n in (height, width)]
    shape = [tf.shape(source)[0], *reached, layer.channels]
    made = tf.nn.conv2d_transpose(source, run.read(node, "kernel"), shape, stride, "VALID")
    first = (size - 1) // 2
    return made[:, first : first + height * stride, first : first + width * stride]


def _convolve_pixels(images: tf.Tensor, kernel: tf.Tensor, stride: int) -> tf.Tensor:
    """Convolve 1 x 1.

    oneDNN is slow on images of a few pixels. Therefore these are viewed as one row of pixels
    (docs/decisions/engines.md).
    """
    height, width, channels = images.shape[1:]
    few = math.ceil(height / stride) * math.ceil(width / stride) <= _FEW_PIXELS
    if stride > 1 and (few or overruns_onednn(1, stride, channels)):
        images, stride = images[:, ::stride, ::stride], 1
    if not few:
        return tf.nn.conv2d(images, kernel, stride, "VALID")
    row = tf.reshape(images, [1, 1, -1, channels])
    made = tf.nn.conv2d(row, kernel, 1, "VALID")
    return tf.reshape(made, [-1, *images.shape[1:3], kernel.shape[-1]])


STATISTICS_RATE = 1.0 - layers.BatchNorm.momentum
"""Weight of a batch's statistics in the running statistics after one step in training mode."""


def _batch_norm(run: Pass, node: Node, layer: layers.BatchNorm, inputs: Tensors) -> tf.Tensor:
    """Normalize with the fused kernel for images; a vector is an image with one pixel."""
    source = inputs[0]
    images = _as_images(source)
    gamma, beta, mean, variance = (
        run.variables[f"{node.name}/{key}"] for key in ("gamma", "beta", "mean", "variance")
    )
    result = tf.raw_ops.FusedBatchNormV3(
        x=images,
        scale=gamma,
        offset=beta,
        mean=mean,
        variance=variance,
        epsilon=layers.BatchNorm.epsilon,
        exponential_avg_factor=STATISTICS_RATE,
        is_training=run.training,
    )
    if run.training:  # The kernel has updated them; separate updates need 16 operations per layer.
        mean.assign(result.batch_mean)
        variance.assign(result.batch_variance)
    return result.y if images is source else tf.reshape(result.y, [-1, *source.shape[1:]])


def _as_images(source: tf.Tensor) -> tf.Tensor:
    """Return vectors or volumes as images, (samples, height, width, channels)."""
    if source.shape.rank == 2:
        return source[:, None, None, :]
    if source.shape.rank == 5:
        depth, height, width, channels = source.shape[1:]
        return tf.reshape(source, [-1, depth * height, width, channels])
    return source


def _max_pool2d(source: tf.Tensor, layer: layers.MaxPool2D) -> tf.Tensor:
    """Pool after padding; with explicit padding, the gradient needs 5 to 11 times as long."""
    if layer.same:
        return tf.nn.max_pool2d(source, layer.kernel, layer.stride, "SAME")
    padded = tf.pad(source, _symmetric(layer.kernel), constant_values=source.dtype.min)
    return tf.nn.max_pool2d(padded, layer.kernel, layer.stride, "VALID")


def _max_pool3d(source: tf.Tensor, layer: layers.MaxPool3D) -> tf.Tensor:
    before, behind = layer.window.padding
    places = tuple(source.shape[1:-1])
    reached = [(n - layer.kernel) // layer.stride + 1 for n in places]
    if before or tuple(reached) != layer.window.slid_over(places):
        edges = [[0, 0], *[[before, behind]] * 3, [0, 0]]
        source = tf.pad(source, edges, constant_values=source.dtype.min)
    return tf.nn.max_pool3d(source, layer.kernel, layer.stride, "VALID")


def _symmetric(kernel: int) -> list[list[int]]:
    """Return padding by (k - 1) / 2 on every side, unlike SAME for strides above 1."""
    edge = [(kernel - 1) // 2] * 2
    return [[0, 0], edge, edge, [0, 0]]


def _dense(run: Pass, node: Node, layer: layers.Dense, inputs: Tensors) -> tf.Tensor:
    return tf.matmul(inputs[0], run.read(node, "kernel")) + run.read(node, "bias")


def _dropout(run: Pass, node: Node, layer: layers.Dropout, inputs: Tensors) -> tf.Tensor:
    """Drop with TensorFlow's generator, because engines have no seed of the trial."""
    return tf.nn.dropout(inputs[0], layer.rate) if run.training else inputs[0]


def _add(run: Pass, node: Node, layer: layers.Add, inputs: Tensors) -> tf.Tensor:
    return sum(inputs[1:], inputs[0])  # oneDNN has no kernel for add_n.


UNARY: Final[Mapping[type[Layer], Callable[[tf.Tensor, Any], tf.Tensor]]] = {
    layers.Flatten: lambda x, _: tf.reshape(x, [-1, math.prod(x.shape[1:])]),
    layers.GlobalAveragePool2D: lambda x, _: tf.reduce_mean(x, [1, 2]),
    layers.ImagePool2D: lambda x, _: tf.reduce_mean(x, [1, 2], keepdims=True),
    layers.LeakyReLU: lambda x, layer: tf.nn.leaky_relu(x, layer.slope),
    layers.MaxPool2D: _max_pool2d,
    layers.MaxPool3D: _max_pool3d,
    layers.ReLU: lambda x, _: tf.nn.relu(x),
    layers.Scale: lambda x, layer: x * tf.cast(layer.factor, x.dtype),
    # The loss reads the input of the softmax, for numerical stability.
    layers.Softmax: lambda x, _: x,
    layers.Tanh: lambda x, _: tf.tanh(x),
    layers.Tile: lambda x, layer: tf.tile(x, [1, layer.height, layer.width, 1]),
}
"""Functions of the input and the layer, for operations that depend on nothing else."""


def _unary(function: Callable[[tf.Tensor, Any], tf.Tensor]) -> Operation:
    return lambda run, node, layer, inputs: function(inputs[0], layer)


OPERATIONS: dict[type[Layer], Operation] = {
    **{kind: _unary(function) for kind, function in UNARY.items()},
    layers.Add: _add,
    layers.AtrousConv2D: _atrous_conv2d,
    layers.BatchNorm: _batch_norm,
    layers.ChannelAffine: lambda run, node, _, inputs: (
        inputs[0] * run.read(node, "scale") + run.read(node, "shift")
    ),
    layers.Concat: lambda run, node, layer, inputs: tf.concat(inputs, -1),
    layers.Conv2D: _conv2d,
    layers.Conv3D: _conv3d,
    layers.ConvTranspose2D: _conv_transpose2d,
    layers.Dense: _dense,
    layers.DepthwiseConv2D: _depthwise_conv2d,
    layers.Dropout: _dropout,
    layers.Embedding: lambda run, node, _, inputs: tf.gather(run.read(node, "table"), inputs[0]),
    layers.Input: _input,
}
"""Functions by class of layers."""
