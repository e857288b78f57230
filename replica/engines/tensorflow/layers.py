"""Implementation of the layers in the ``tensorflow`` engine: one function per layer.

Images are (samples, height, width, channels), volumes (samples, depth, height, width, channels),
kernels (k, ..., in, out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

OPERATIONS: dict[type[Layer], Operation] = {}
"""Functions by class of layers."""


def executes(layer: type[Layer]) -> Callable[[Operation], Operation]:
    """Register a function as the operation of layers of exactly this class."""

    def register(operation: Operation) -> Operation:
        OPERATIONS[layer] = operation
        return operation

    return register


@executes(layers.Input)
def _input(run: Pass, node: Node, layer: layers.Input, inputs: Tensors) -> tf.Tensor:
    return tf.cast(inputs[0], run.compute) if layer.dtype == "float32" else inputs[0]


@executes(layers.Embedding)
def _embedding(run: Pass, node: Node, layer: layers.Embedding, inputs: Tensors) -> tf.Tensor:
    return tf.gather(run.read(node, "table"), inputs[0])


@executes(layers.Conv2D)
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


@executes(layers.Conv3D)
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


@executes(layers.DepthwiseConv2D)
def _depthwise_conv2d(
    run: Pass, node: Node, layer: layers.DepthwiseConv2D, inputs: Tensors
) -> tf.Tensor:
    """Convolve. With a dilation, TensorFlow allows no stride, so all outputs are computed."""
    source, stride, spread = inputs[0], layer.stride, layer.dilation
    kernel = tf.transpose(run.read(node, "kernel"), [0, 1, 3, 2])
    if stride > 1 and spread > 1:
        dense = _depthwise(source, kernel, layer.kernel, 1, spread)
        return dense[:, ::stride, ::stride]
    return _depthwise(source, kernel, layer.kernel, stride, spread)


def _depthwise(
    source: tf.Tensor, kernel: tf.Tensor, size: int, stride: int, dilation: int
) -> tf.Tensor:
    padded = tf.pad(source, _symmetric(dilation * (size - 1) + 1))
    strides = [1, stride, stride, 1]
    return tf.nn.depthwise_conv2d(padded, kernel, strides, "VALID", dilations=[dilation] * 2)


@executes(layers.AtrousConv2D)
def _atrous_conv2d(run: Pass, node: Node, layer: layers.AtrousConv2D, inputs: Tensors) -> tf.Tensor:
    kernel = run.read(node, "kernel")
    return tf.nn.conv2d(inputs[0], kernel, 1, "SAME", dilations=layer.dilation)


@executes(layers.ConvTranspose2D)
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


@executes(layers.BatchNorm)
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


@executes(layers.MaxPool2D)
def _max_pool2d(run: Pass, node: Node, layer: layers.MaxPool2D, inputs: Tensors) -> tf.Tensor:
    """Pool after padding; with explicit padding, the gradient needs 5 to 11 times as long."""
    if layer.same:
        return tf.nn.max_pool2d(inputs[0], layer.kernel, layer.stride, "SAME")
    edges, least = _symmetric(layer.kernel), run.compute.min
    padded = tf.pad(inputs[0], edges, constant_values=least)
    return tf.nn.max_pool2d(padded, layer.kernel, layer.stride, "VALID")


@executes(layers.MaxPool3D)
def _max_pool3d(run: Pass, node: Node, layer: layers.MaxPool3D, inputs: Tensors) -> tf.Tensor:
    source, (before, behind) = inputs[0], layer.window.padding
    places = tuple(source.shape[1:-1])
    reached = [(n - layer.kernel) // layer.stride + 1 for n in places]
    if before or tuple(reached) != layer.window.slid_over(places):
        edges = [[0, 0], *[[before, behind]] * 3, [0, 0]]
        source = tf.pad(source, edges, constant_values=run.compute.min)
    return tf.nn.max_pool3d(source, layer.kernel, layer.stride, "VALID")


def _symmetric(kernel: int) -> list[list[int]]:
    """Return padding by (k - 1) / 2 on every side, unlike SAME for strides above 1."""
    edge = [(kernel - 1) // 2] * 2
    return [[0, 0], edge, edge, [0, 0]]


@executes(layers.Dense)
def _dense(run: Pass, node: Node, layer: layers.Dense, inputs: Tensors) -> tf.Tensor:
    return tf.matmul(inputs[0], run.read(node, "kernel")) + run.read(node, "bias")


@executes(layers.ReLU)
def _relu(run: Pass, node: Node, layer: layers.ReLU, inputs: Tensors) -> tf.Tensor:
    return tf.nn.relu(inputs[0])


@executes(layers.LeakyReLU)
def _leaky_relu(run: Pass, node: Node, layer: layers.LeakyReLU, inputs: Tensors) -> tf.Tensor:
    return tf.nn.leaky_relu(inputs[0], layer.slope)


@executes(layers.Tanh)
def _tanh(run: Pass, node: Node, layer: layers.Tanh, inputs: Tensors) -> tf.Tensor:
    return tf.tanh(inputs[0])


@executes(layers.Scale)
def _scale(run: Pass, node: Node, layer: layers.Scale, inputs: Tensors) -> tf.Tensor:
    return inputs[0] * tf.cast(layer.factor, run.compute)


@executes(layers.Dropout)
def _dropout(run: Pass, node: Node, layer: layers.Dropout, inputs: Tensors) -> tf.Tensor:
    """Drop with TensorFlow's generator, because engines have no seed of the trial."""
    return tf.nn.dropout(inputs[0], layer.rate) if run.training else inputs[0]


@executes(layers.Flatten)
def _flatten(run: Pass, node: Node, layer: layers.Flatten, inputs: Tensors) -> tf.Tensor:
    return tf.reshape(inputs[0], [-1, math.prod(inputs[0].shape[1:])])


@executes(layers.Add)
def _add(run: Pass, node: Node, layer: layers.Add, inputs: Tensors) -> tf.Tensor:
    return sum(inputs[1:], inputs[0])  # oneDNN has no kernel for add_n.


@executes(layers.Concat)
def _concat(run: Pass, node: Node, layer: layers.Concat, inputs: Tensors) -> tf.Tensor:
    return tf.concat(inputs, -1)


@executes(layers.ChannelAffine)
def _channel_affine(
    run: Pass, node: Node, layer: layers.ChannelAffine, inputs: Tensors
) -> tf.Tensor:
    return inputs[0] * run.read(node, "scale") + run.read(node, "shift")


@executes(layers.ImagePool2D)
def _image_pool2d(run: Pass, node: Node, layer: layers.ImagePool2D, inputs: Tensors) -> tf.Tensor:
    return tf.reduce_mean(inputs[0], [1, 2], keepdims=True)


@executes(layers.Tile)
def _tile(run: Pass, node: Node, layer: layers.Tile, inputs: Tensors) -> tf.Tensor:
    return tf.tile(inputs[0], [1, layer.height, layer.width, 1])


@executes(layers.GlobalAveragePool2D)
def _global_average_pool2d(
    run: Pass, node: Node, layer: layers.GlobalAveragePool2D, inputs: Tensors
) -> tf.Tensor:
    return tf.reduce_mean(inputs[0], [1, 2])


@executes(layers.Softmax)
def _softmax(run: Pass, node: Node, layer: layers.Softmax, inputs: Tensors) -> tf.Tensor:
    # The loss reads the input of the softmax, for numerical stability.
    return inputs[0]
