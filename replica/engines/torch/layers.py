"""Implementation of the layers in the ``torch`` engine: one function per layer generates its code.

A graph's module is a sequence of calls (``ModuleCode``). Images are (samples, channels, height,
width), volumes (samples, channels, depth, height, width) and kernels (out, in, k, ...), all in
channels-last memory. Sequences are (samples, positions, channels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from aiperf_hpc.graph import Graph, Layer, Node, layers
from aiperf_hpc.replica.engines.base import overruns_onednn
from aiperf_hpc.replica.engines.torch.cpu_kernels import (
    activate,
    convolve,
    convolve_transposed,
    pointwise_convolution,
)

MAKES_GRADIENT = (
    layers.BatchNorm,
    layers.Conv2D,
    layers.Conv3D,
    layers.Dense,
    layers.MaxPool2D,
    layers.MaxPool3D,
)
"""Layers that allocate the gradient of their input in the backward pass."""


class ModuleCode:
    """Code of a module, to which builders of layers add calls."""

    def __init__(self, graph: Graph, code: fx.Graph, *, training: bool, on_cpu: bool) -> None:
        self.graph = graph
        self.training = training
        """Whether the code is for training or for inference."""
        self.on_cpu = on_cpu
        """Whether a CPU executes the code eagerly."""
        self.values: dict[str, fx.Node] = {}
        """Outputs of the nodes by name."""
        self._code = code
        self._overwritable: set[str] = set()
        self._strided: dict[tuple[str, int], fx.Node] = {}

    def read(self, node: Node) -> fx.Node:
        """Return the first input of ``node``."""
        return self.values[node.inputs[0]]

    def placeholder(self, name: str) -> fx.Node:
        """Return an argument of the module."""
        return self._code.placeholder(name)

    def tensor(self, node: Node, key: str) -> fx.Node:
        """Return a parameter or statistic of ``node``."""
        return self._code.get_attr(attribute(f"{node.name}/{key}"))

    def call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:  # noqa: ANN401
        """Add a call and return its output."""
        return self._code.call_function(function, arguments)

    def allow_overwriting(self, node: Node) -> None:
        """Record that the output of ``node`` is not a view and that no backward pass reads it."""
        self._overwritable.add(node.name)

    def writable(self, name: str) -> bool:
        """Return whether the reader of node ``name``'s output may overwrite it."""
        readers = [reader for reader in self.graph.nodes if name in reader.inputs]
        once = sum(reader.inputs.count(name) for reader in readers) == 1
        return once and name in self._overwritable

    def owns_gradient(self, node: Node) -> bool:
        """Return whether the gradient of the output of ``node`` has no other references, on a CPU.

        Autograd sums the gradients of several readers in a new tensor. The gradient of a single
        reader is new if the reader's backward pass allocates it, unlike that of a sum or a mean.
        """
        readers = [reader for reader in self.graph.nodes if node.name in reader.inputs]
        return (
            self.training
            and self.on_cpu
            and (len(readers) > 1 or any(isinstance(r.layer, MAKES_GRADIENT) for r in readers))
        )

    def strided(self, name: str, stride: int) -> fx.Node:
        """Apply a stride to an output once for all convolutions that read the result."""
        if stride == 1:
            return self.values[name]
        if (name, stride) not in self._strided:
            function = copy_strided if self.on_cpu else strided
            self._strided[name, stride] = self.call(function, self.values[name], stride)
        return self._strided[name, stride]


def attribute(name: str) -> str:
    """Return the attribute of a parameter, because names in a module cannot have ``/`` or ``.``."""
    return "p_" + "".join(c if c.isalnum() else f"_{ord(c)}_" for c in name)


def strided(x: Tensor, stride: int) -> Tensor:
    """Return every ``stride``-th element along each axis but samples and channels.

    The gradient of the result has the memory order of ``x``.
    """
    return x.movedim(1, -1)[_slices(x.ndim, stride)].movedim(-1, 1)


def copy_strided(x: Tensor, stride: int) -> Tensor:
    """Return a copy of ``strided`` for several readers, with a gradient computed in one pass.

    Autograd would fill a tensor with zeros for each strided axis.
    """
    copied: Tensor = _CopyStrided.apply(x, stride)  # type: ignore[no-untyped-call]
    return copied


class _CopyStrided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:  # noqa: ANN401 -- of PyTorch
        ctx.shape, ctx.stride = x.movedim(1, -1).shape, stride
        return x.movedim(1, -1)[_slices(x.ndim, stride)].contiguous().movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 -- of PyTorch
        whole = slope.new_zeros(ctx.shape)
        whole[_slices(slope.ndim, ctx.stride)] = slope.movedim(1, -1)
        return whole.movedim(-1, 1), None


def _slices(axes: int, stride: int) -> tuple[slice, ...]:
    return (slice(None), *[slice(None, None, stride)] * (axes - 2))


Builder = Callable[[ModuleCode, Node, Any], fx.Node]
"""Function that adds the calls of a node and its layer to the code and returns the output."""


def _conv2d(code: ModuleCode, node: Node, layer: layers.Conv2D) -> fx.Node:
    source, stride, weights = code.read(node), layer.stride, code.tensor(node, "kernel")
    bias = code.tensor(node, "bias") if layer.bias else None
    (read,) = code.graph.input_shapes(node.name)
    pixels = code.on_cpu and layer.kernel == 1
    if pixels or overruns_onednn(layer.kernel, stride, read[-1]):
        source, stride = code.strided(node.inputs[0], stride), 1
    if pixels:  # The output is a view, which autograd would copy before overwriting it.
        return code.call(pointwise_convolution, source, weights, bias)
    code.allow_overwriting(node)
    function = convolve if code.on_cpu else torch.conv2d
    return code.call(function, source, weights, bias, stride, (layer.kernel - 1) // 2)


def _conv3d(code: ModuleCode, node: Node, layer: layers.Conv3D) -> fx.Node:
    code.allow_overwriting(node)
    source, stride, weights = code.read(node), layer.stride, code.tensor(node, "kernel")
    bias = code.tensor(node, "bias") if layer.bias else None
    (read,) = code.graph.input_shapes(node.name)
    if overruns_onednn(layer.kernel, stride, read[-1]):
        source, stride = code.strided(node.inputs[0], stride), 1
    before, behind = layer.window.padding
    if before != behind:
        source, before = code.call(functional.pad, source, (before, behind) * 3), 0
    return code.call(torch.conv3d, source, weights, bias, stride, before)


def _depthwise_conv2d(code: ModuleCode, node: Node, layer: layers.DepthwiseConv2D) -> fx.Node:
    code.allow_overwriting(node)
    weights, (read,) = code.tensor(node, "kernel"), code.graph.input_shapes(node.name)
    padding, dilation = layer.dilation * (layer.kernel - 1) // 2, layer.dilation
    return code.call(
        torch.conv2d, code.read(node), weights, None, layer.stride, padding, dilation, read[-1]
    )


def _atrous_conv2d(code: ModuleCode, node: Node, layer: layers.AtrousConv2D) -> fx.Node:
    code.allow_overwriting(node)
    padding = layer.dilation * (layer.kernel - 1) // 2
    weights = code.tensor(node, "kernel")
    return code.call(torch.conv2d, code.read(node), weights, None, 1, padding, layer.dilation)


def _conv_transpose2d(code: ModuleCode, node: Node, layer: layers.ConvTranspose2D) -> fx.Node:
    code.allow_overwriting(node)
    weights, stride = code.tensor(node, "kernel"), layer.stride
    padding, behind = (layer.kernel - 1) // 2, stride - 1
    function = convolve_transposed if code.on_cpu else torch.conv_transpose2d
    return code.call(function, code.read(node), weights, None, stride, padding, behind)


def _batch_norm(code: ModuleCode, node: Node, layer: layers.BatchNorm) -> fx.Node:
    code.allow_overwriting(node)
    keys = ("gamma", "beta", "mean", "variance")
    return code.call(
        normalize_by_batch if code.training else normalize,
        code.read(node),
        *(code.tensor(node, key) for key in keys),
    )


def normalize(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Normalize with the running statistics."""
    return torch.batch_norm(
        x, gamma, beta, mean, variance, False, 0.0, layers.BatchNorm.epsilon, cudnn_enabled=True
    )


def normalize_by_batch(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """Normalize with the batch statistics, and update the running statistics.

    The running variance is unbiased. For a single value, PyTorch's variance is NaN; here it is
    zero, as in TensorFlow.
    """
    rate = 1.0 - layers.BatchNorm.momentum
    if math.prod(x.shape) == x.shape[1]:
        with torch.no_grad():
            mean.lerp_(x.reshape(-1).to(mean.dtype), rate)
            variance.mul_(layers.BatchNorm.momentum)
        return torch.batch_norm(
            x, gamma, beta, None, None, True, rate, layers.BatchNorm.epsilon, cudnn_enabled=True
        )
    return torch.batch_norm(
        x, gamma, beta, mean, variance, True, rate, layers.BatchNorm.epsilon, cudnn_enabled=True
    )


class MomentsInterpreter(fx.Interpreter):
    """Executes a training module and records the moments of the inputs of normalizations."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.moments: list[Tensor] = []
        """Mean and biased variance of each normalization in order, (channels,) each."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        if target is not normalize_by_batch:
            return super().call_function(target, args, kwargs)
        x, gamma, beta, _, _ = args
        axes = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x.float(), axes, correction=0)
        self.moments += [mean, variance]
        return torch.batch_norm(
            x, gamma, beta, None, None, True, 0.0, layers.BatchNorm.epsilon, cudnn_enabled=True
        )


def _relu(code: ModuleCode, node: Node, layer: layers.ReLU) -> fx.Node:
    writable = code.writable(node.inputs[0])
    if code.owns_gradient(node):
        return code.call(activate, code.read(node), 0.0, writable)
    return code.call(torch.relu_ if writable else torch.relu, code.read(node))


def _leaky_relu(code: ModuleCode, node: Node, layer: layers.LeakyReLU) -> fx.Node:
    writable = code.writable(node.inputs[0])
    if code.owns_gradient(node):
        return code.call(activate, code.read(node), layer.slope, writable)
    return code.call(functional.leaky_relu, code.read(node), layer.slope, writable)


def _tanh(code: ModuleCode, node: Node, layer: layers.Tanh) -> fx.Node:
    writable = code.writable(node.inputs[0])
    return code.call(torch.tanh_ if writable else torch.tanh, code.read(node))


def _dropout(code: ModuleCode, node: Node, layer: layers.Dropout) -> fx.Node:
    """Drop with PyTorch's generator, because engines have no seed of the trial."""
    if not code.training:
        return code.read(node)
    return code.call(functional.dropout, code.read(node), layer.rate)


def _add(code: ModuleCode, node: Node, layer: layers.Add) -> fx.Node:
    """Add in place to an input without other readers, if there is one."""
    code.allow_overwriting(node)
    names = sorted(node.inputs, key=code.writable, reverse=True)
    total = code.values[names[0]]
    writable = code.writable(names[0])
    for name in names[1:]:
        total = code.call(Tensor.add_ if writable else torch.add, total, code.values[name])
        writable = True
    return total


def _max_pool2d(code: ModuleCode, node: Node, layer: layers.MaxPool2D) -> fx.Node:
    """Pool with symmetric padding. One more element at the end only completes the last window,
    which ``ceil_mode`` includes."""
    code.allow_overwriting(node)
    (read,) = code.graph.input_shapes(node.name)
    before = tuple(edges[0] for edges in layer.padding(*read[:-1]))
    return code.call(
        functional.max_pool2d, code.read(node), layer.kernel, layer.stride, before, 1, layer.same
    )


def _max_pool3d(code: ModuleCode, node: Node, layer: layers.MaxPool3D) -> fx.Node:
    code.allow_overwriting(node)
    source, (before, behind) = code.read(node), layer.window.padding
    (read,) = code.graph.input_shapes(node.name)
    # PyTorch's symmetric padding is sufficient unless a window extends beyond it.
    found = tuple((n + 2 * before - layer.kernel) // layer.stride + 1 for n in read[:-1])
    if found != code.graph.shapes[node.name][:-1]:
        padding = (before, behind) * 3
        source, before = code.call(functional.pad, source, padding, "constant", -math.inf), 0
    return code.call(functional.max_pool3d, source, layer.kernel, layer.stride, before)


def _concat(code: ModuleCode, node: Node, layer: layers.Concat) -> fx.Node:
    code.allow_overwriting(node)
    sequence = len(code.graph.shapes[node.name]) == 2
    return code.call(torch.cat, [code.values[name] for name in node.inputs], 2 if sequence else 1)


def _channel_affine(code: ModuleCode, node: Node, layer: layers.ChannelAffine) -> fx.Node:
    code.allow_overwriting(node)
    scale, shift = code.tensor(node, "scale"), code.tensor(node, "shift")
    return code.call(scale_and_shift, code.read(node), scale, shift)


def scale_and_shift(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return scale * x + shift in the type of ``x``; ``scale`` and ``shift`` are (channels,)."""
    channels = (-1, *[1] * (x.ndim - 2)) if x.ndim != 3 else (-1,)
    return torch.addcmul(shift.view(channels), x, scale.view(channels))


def mean_of_pixels(x: Tensor) -> Tensor:
    """Return the mean of each channel of each image; the gradient is channels-last, as ``x``."""
    return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)


def flatten(x: Tensor) -> Tensor:
    """Return each sample as a vector in channels-last order, (samples, elements)."""
    return (x.movedim(1, -1) if x.ndim >= 4 else x).flatten(1)


def _dense(code: ModuleCode, node: Node, layer: layers.Dense) -> fx.Node:
    code.allow_overwriting(node)
    weight, bias = code.tensor(node, "kernel"), code.tensor(node, "bias")
    return code.call(torch.addmm, bias, code.read(node), weight)


def _embedding(code: ModuleCode, node: Node, layer: layers.Embedding) -> fx.Node:
    return code.call(functional.embedding, code.read(node), code.tensor(node, "table"))


BUILDERS: Final[Mapping[type[Layer], Builder]] = {
    layers.Add: _add,
    layers.AtrousConv2D: _atrous_conv2d,
    layers.BatchNorm: _batch_norm,
    layers.ChannelAffine: _channel_affine,
    layers.Concat: _concat,
    layers.Conv2D: _conv2d,
    layers.Conv3D: _conv3d,
    layers.ConvTranspose2D: _conv_transpose2d,
    layers.Dense: _dense,
    layers.DepthwiseConv2D: _depthwise_conv2d,
    layers.Dropout: _dropout,
    layers.Embedding: _embedding,
    layers.Flatten: lambda code, node, _: code.call(flatten, code.read(node)),
    layers.GlobalAveragePool2D: lambda code, node, _: code.call(mean_of_pixels, code.read(node)),
    layers.ImagePool2D: lambda code, node, _: code.call(torch.mean, code.read(node), (2, 3), True),
    layers.Input: lambda code, node, _: code.placeholder(attribute(node.name)),
    layers.LeakyReLU: _leaky_relu,
    layers.MaxPool2D: _max_pool2d,
    layers.MaxPool3D: _max_pool3d,
    layers.ReLU: _relu,
    layers.Scale: lambda code, node, layer: code.call(torch.mul, code.read(node), layer.factor),
    # The loss reads the input of the softmax, for numerical stability.
    layers.Softmax: lambda code, node, _: code.read(node),
    layers.Tanh: _tanh,
    layers.Tile: lambda code, node, layer: code.call(
        Tensor.expand, code.read(node), -1, -1, layer.height, layer.width
    ),
}
"""Builders by class of layers, except those of detectors."""
