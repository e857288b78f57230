"""A graph as a PyTorch module: straight-line code, channels-last, made by ``torch.fx``.

Each graph gets code of its own, which drops an activation after its last reader and which
``torch.compile`` can take whole. Images are (samples, channels, height, width) in channels-last
memory, which is what (samples, height, width, channels) is without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool2D,
    Graph,
    Input,
    MaxPool2D,
    Node,
    ReLU,
    Softmax,
)
from aiperf_hpc.replica.engines.base import overruns_onednn

Normalise = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Takes what it reads, gamma, beta, and the running mean and variance."""

_WRITABLE = (Conv2D, BatchNorm, Add, MaxPool2D, Dense)
"""Layers whose backward pass does not read what they gave: it may be overwritten."""


def build_module(
    graph: Graph, tensors: Mapping[str, Tensor], *, training: bool, rows: bool
) -> fx.GraphModule:
    """Return what computes ``graph`` up to, without, its softmax.

    Args:
        graph: with one input.
        tensors: every parameter and statistic by its name; convolution kernels (out, in, k, k).
        training: whether normalisations go by the batch, and update the running statistics.
        rows: whether 1 x 1 convolutions go over one row of all images' pixels: faster on CPUs,
            but not for inductor, which has its own way with memory.

    Raises:
        EngineError: a layer is not known; the message names the node.
    """
    root = nn.Module()
    for name, tensor in tensors.items():
        attribute = _attribute(name)
        if isinstance(tensor, nn.Parameter):
            root.register_parameter(attribute, tensor)
        else:
            root.register_buffer(attribute, tensor)
    code = fx.Graph()
    normalisation = normalise_by_batch if training else normalise
    builder = _ModuleBuilder(graph, code, normalisation, rows=rows)
    for node in graph.nodes:
        builder.add(node)
    code.output(builder.values[graph.output.name])
    return fx.GraphModule(root, code)


def _attribute(name: str) -> str:
    """Return a parameter's attribute: ``/`` and ``.`` mean something else in a module."""
    return "p_" + "".join(c if c.isalnum() else f"_{ord(c)}_" for c in name)


FEW_PIXELS = 8192
"""Up to which oneDNN multiplies matrices faster than it convolves, in types of two bytes."""


class _ModuleBuilder:
    """Writes one line of code for each node."""

    def __init__(
        self, graph: Graph, code: fx.Graph, normalisation: Normalise, *, rows: bool
    ) -> None:
        self._graph = graph
        self._code = code
        self._normalisation = normalisation
        self._rows = rows
        self.values: dict[str, fx.Node] = {}
        self._thinned: dict[tuple[str, int], fx.Node] = {}

    def add(self, node: Node) -> None:
        self.values[node.name] = self._value(node, [self.values[name] for name in node.inputs])

    def _value(self, node: Node, inputs: list[fx.Node]) -> fx.Node:
        match node.layer:
            case Input():
                return self._code.placeholder("images")
            case Conv2D(kernel=kernel, stride=stride):
                source, weights = inputs[0], self._tensor(node, "kernel")
                (read,) = self._graph.input_shapes(node.name)
                if self._is_row(node) or overruns_onednn(kernel, stride, read[-1]):
                    source, stride = self._every(node.inputs[0], stride), 1
                if self._is_row(node):
                    return self._call(convolve_pixels, source, weights)
                padding = (kernel - 1) // 2
                return self._call(torch.conv2d, source, weights, None, stride, padding)
            case BatchNorm():
                keys = ("gamma", "beta", "mean", "variance")
                return self._call(
                    self._normalisation, inputs[0], *(self._tensor(node, key) for key in keys)
                )
            case ReLU():
                writable = self._writable(node.inputs[0])
                return self._call(torch.relu_ if writable else torch.relu, inputs[0])
            case Add():
                return self._sum(node)
            case MaxPool2D(kernel=kernel, stride=stride):
                padding = (kernel - 1) // 2
                return self._call(functional.max_pool2d, inputs[0], kernel, stride, padding)
            case GlobalAveragePool2D():
                return self._call(torch.mean, inputs[0], (2, 3))
            case Dense():
                weight, bias = self._tensor(node, "kernel"), self._tensor(node, "bias")
                return self._call(torch.addmm, bias, inputs[0], weight)
            case Softmax():
                # The loss works on what the softmax reads, which is the stable way.
                return inputs[0]
            case layer:
                raise EngineError(
                    f"node '{node.name}': the torch engine has no layer '{layer.kind}'"
                )

    def _every(self, name: str, stride: int) -> fx.Node:
        """Leave out what a stride does, once for all convolutions that read the rest."""
        if stride == 1:
            return self.values[name]
        if (name, stride) not in self._thinned:
            self._thinned[name, stride] = self._call(every, self.values[name], stride)
        return self._thinned[name, stride]

    def _sum(self, node: Node) -> fx.Node:
        """Add onto an input that nobody else reads, where there is one."""
        names = sorted(node.inputs, key=self._writable, reverse=True)
        total = self.values[names[0]]
        writable = self._writable(names[0])
        for name in names[1:]:
            total = self._call(Tensor.add_ if writable else torch.add, total, self.values[name])
            writable = True
        return total

    def _writable(self, name: str) -> bool:
        node = self._graph.by_name[name]
        readers = [reader for reader in self._graph.nodes if name in reader.inputs]
        once = sum(reader.inputs.count(name) for reader in readers) == 1
        # A row is given as a view, which autograd has to copy when it is overwritten.
        return once and isinstance(node.layer, _WRITABLE) and not self._is_row(node)

    def _is_row(self, node: Node) -> bool:
        """Whether it convolves one row of all images' pixels."""
        return self._rows and isinstance(node.layer, Conv2D) and node.layer.kernel == 1

    def _tensor(self, node: Node, key: str) -> fx.Node:
        return self._code.get_attr(_attribute(f"{node.name}/{key}"))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:  # noqa: ANN401
        return self._code.call_function(function, arguments)


def every(x: Tensor, stride: int) -> Tensor:
    """Return every ``stride``-th pixel, of which the gradient lies as ``x`` does."""
    return x.permute(0, 2, 3, 1)[:, ::stride, ::stride].permute(0, 3, 1, 2)


def convolve_pixels(x: Tensor, kernel: Tensor) -> Tensor:
    """Convolve 1 x 1 without a stride, on a CPU: a product of matrices, over all images' pixels.

    oneDNN convolves slowly where images have few pixels, so that here they are all one row, without
    a copy; in types of two bytes it multiplies matrices faster still, while there are few pixels
    (benchmarks/pointwise.py).
    """
    pixels = x.permute(0, 2, 3, 1)
    samples, height, width, channels = pixels.shape
    if x.element_size() == 2 and samples * height * width <= FEW_PIXELS:
        made = pixels.reshape(-1, channels) @ kernel.flatten(1).t()
    else:
        row = pixels.reshape(1, 1, -1, channels).permute(0, 3, 1, 2)
        made = torch.conv2d(row, kernel).permute(0, 2, 3, 1)
    return made.reshape(samples, height, width, -1).permute(0, 3, 1, 2)


def normalise(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Normalise by the running statistics."""
    return torch.batch_norm(
        x, gamma, beta, mean, variance, False, 0.0, BatchNorm.epsilon, cudnn_enabled=True
    )


def normalise_by_batch(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """Normalise by the batch; move the running statistics towards its mean and variance.

    The variance that they keep is unbiased. One value alone has none, which PyTorch gives as
    not a number, where ours goes on as that of TensorFlow does: as zero.
    """
    rate = 1.0 - BatchNorm.momentum
    if math.prod(x.shape) == x.shape[1]:
        with torch.no_grad():
            mean.lerp_(x.reshape(-1).to(mean.dtype), rate)
            variance.mul_(BatchNorm.momentum)
        return torch.batch_norm(
            x, gamma, beta, None, None, True, rate, BatchNorm.epsilon, cudnn_enabled=True
        )
    return torch.batch_norm(
        x, gamma, beta, mean, variance, True, rate, BatchNorm.epsilon, cudnn_enabled=True
    )


class MomentsInterpreter(fx.Interpreter):
    """Executes a module for training, and notes the moments of what normalisations read."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: list[Tensor] = []
        """Mean and biased variance of each normalisation, in order, (channels,)."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        if target is not normalise_by_batch:
            return super().call_function(target, args, kwargs)
        x, gamma, beta, _, _ = args
        axes = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x.float(), axes, correction=0)
        self.found += [mean, variance]
        return torch.batch_norm(
            x, gamma, beta, None, None, True, 0.0, BatchNorm.epsilon, cudnn_enabled=True
        )
