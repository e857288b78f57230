"""Generator of a graph's PyTorch module, a sequence of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from aiperf_hpc.graph import Graph, Node, layers

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
