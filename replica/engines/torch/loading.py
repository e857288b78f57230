"""A back end of ``torch.compile`` that compiles by another one, and may leave it at that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx


class Loading:
    """A back end that compiles by another one, and may execute nothing of it."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        self._backend = backend
        self._only = False

    @contextmanager
    def only(self) -> Iterator[None]:
        """Let what is called within the block be compiled, and give no number.

        It gives tensors like those that it would, for what is compiled to read them.
        """
        self._only = True
        try:
            yield
        finally:
            self._only = False

    def __call__(self, module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        # A second to import, which what compiles nothing is spared.
        from torch._dynamo.backends.registry import lookup_backend

        given = _given(module)
        compiled = lookup_backend(self._backend)(module, inputs)
        return lambda *read: [make() for make in given] if self._only else compiled(*read)


class _Kind(NamedTuple):
    """What a tensor is, but for its values."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    differentiated: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _Kind:
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)

    def made(self) -> Tensor:
        """Return a tensor of this kind."""
        if not self.differentiated:
            return self._empty()
        anchor = torch.zeros((), device=self.device, requires_grad=True)
        return cast("Tensor", _Computed.apply(anchor, self._empty))  # type: ignore[no-untyped-call]

    def _empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class _Computed(torch.autograd.Function):
    """Makes a tensor as one that was computed: it may be overwritten, as no parameter may."""

    @staticmethod
    def forward(context: Any, anchor: Tensor, make: Callable[[], Tensor]) -> Tensor:  # noqa: ANN401
        return make()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:  # noqa: ANN401
        raise AssertionError("nothing was computed")


def _given(module: fx.GraphModule) -> list[Callable[[], Any]]:
    """Return what makes each thing like one that a module gives."""
    (output,) = module.graph.find_nodes(op="output")
    nodes = cast("Sequence[fx.Node]", output.args[0])
    return [_like(node.meta["example_value"]) for node in nodes]


def forget_compiled_code() -> None:
    """Let go of what inductor keeps of all that it has compiled in this process.

    Networks that are in use keep their own code. For what is compiled again there are its files.
    """
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is None:
        return
    cache = codecache.PyCodeCache
    for module in list(cache.modules):
        sys.modules.pop(module.__name__, None)
    cache.linemaps.clear()
    cache.cache_clear()


def _like(value: Any) -> Callable[[], Any]:  # noqa: ANN401 -- a tensor, or a number
    return _Kind.of(value).made if isinstance(value, Tensor) else lambda: value
