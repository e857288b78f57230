"""The code of a graph's PyTorch module while it is written, one node after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from aiperf_hpc.graph import Graph, Node

Normalise = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Takes what it reads, gamma, beta, and the running mean and variance."""


class ModuleCode:
    """What has been written, and how to write more of it."""

    def __init__(self, graph: Graph, code: fx.Graph, *, training: bool, on_cpu: bool) -> None:
        self.graph = graph
        self.training = training
        """Whether it is code for training, and not for inference."""
        self.on_cpu = on_cpu
        """Whether a CPU executes it as it is written."""
        self.values: dict[str, fx.Node] = {}
        """What each node gave, by the node's name."""
        self._code = code
        self._overwritable: set[str] = set()
        self._thinned: dict[tuple[str, int], fx.Node] = {}

    def read(self, node: Node) -> fx.Node:
        """Return what the first input of ``node`` gave."""
        return self.values[node.inputs[0]]

    def placeholder(self, name: str) -> fx.Node:
        """Return what the module is called with."""
        return self._code.placeholder(name)

    def tensor(self, node: Node, key: str) -> fx.Node:
        """Return a parameter or statistic of ``node``."""
        return self._code.get_attr(attribute(f"{node.name}/{key}"))

    def call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:  # noqa: ANN401
        """Write a call, and return what it gives."""
        return self._code.call_function(function, arguments)

    def allow_overwriting(self, node: Node) -> None:
        """Note that no backward pass reads what ``node`` gives, and that it is no view."""
        self._overwritable.add(node.name)

    def writable(self, name: str) -> bool:
        """Return whether the one who reads what node ``name`` gave may overwrite it."""
        readers = [reader for reader in self.graph.nodes if name in reader.inputs]
        once = sum(reader.inputs.count(name) for reader in readers) == 1
        return once and name in self._overwritable

    def every(self, name: str, stride: int) -> fx.Node:
        """Leave out what a stride does, once for all convolutions that read the rest."""
        if stride == 1:
            return self.values[name]
        if (name, stride) not in self._thinned:
            self._thinned[name, stride] = self.call(every, self.values[name], stride)
        return self._thinned[name, stride]


def attribute(name: str) -> str:
    """Return a parameter's attribute: ``/`` and ``.`` mean something else in a module."""
    return "p_" + "".join(c if c.isalnum() else f"_{ord(c)}_" for c in name)


def every(x: Tensor, stride: int) -> Tensor:
    """Return every ``stride``-th element along each axis but samples and channels.

    The gradient of what is returned lies as ``x`` does.
    """
    kept = (slice(None), *[slice(None, None, stride)] * (x.ndim - 2))
    return x.movedim(1, -1)[kept].movedim(-1, 1)
