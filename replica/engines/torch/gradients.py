"""Gradients of a backward pass: their buckets and their flat buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from aiperf_hpc.replica.engines.base import Buffer
from aiperf_hpc.replica.engines.torch.flat_layout import LEAST_AXES, FlatLayout

BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients to reduce together, as in PyTorch's own data parallelism."""


def buckets_of(layout: FlatLayout) -> list[slice]:
    """Return the positions of the buckets, which consist of whole parameters in layout order."""
    buckets = []
    start = size = 0
    for place in layout.places.values():
        size += place.stop - place.start
        end = layout.end(place)
        if size * 4 >= BUCKET_BYTES or end == layout.size:
            buckets.append(slice(start, end))
            start, size = end, 0
    return buckets


def flattened(gradient: Tensor) -> Tensor:
    """Return a gradient in the order of a flat buffer, as a view if its memory has that order.

    The fused kernel copies noncontiguous tensors, such as gradients of channels-last kernels.
    """
    return (gradient.movedim(1, -1) if gradient.ndim >= LEAST_AXES else gradient).reshape(-1)


def copy_each(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors grouped by type, because accelerators copy mixed types one by one."""
    for dtype in dict.fromkeys(value.dtype for value in values):
        numbers = [number for number, value in enumerate(values) if value.dtype is dtype]
        torch._foreach_copy_([to[n] for n in numbers], [values[n] for n in numbers])


class BucketHooks:
    """Hooks of parameters that deliver each bucket of gradients during the backward pass."""

    def __init__(
        self, leaves: Mapping[str, nn.Parameter], layout: FlatLayout, buckets: Sequence[slice]
    ) -> None:
        self._buckets = buckets
        self._active = False
        self._members = [0] * len(buckets)
        for number, (name, leaf) in enumerate(leaves.items()):
            place = layout.places[name]
            (bucket,) = (i for i, b in enumerate(buckets) if b.start <= place.start < b.stop)
            self._members[bucket] += 1
            hook = self._hook(number, bucket)
            leaf.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @contextmanager
    def active(
        self, flat: Tensor, views: Sequence[Tensor], ready: Callable[[Buffer], None]
    ) -> Iterator[None]:
        """Deliver the gradients of a backward pass in the block through a flat buffer."""
        self._flat, self._views, self._ready = flat, views, ready
        self._final: list[list[tuple[int, Tensor]]] = [[] for _ in self._buckets]
        self._next = 0
        self._active = True
        try:
            yield
        finally:
            self._active = False
            del self._flat, self._views, self._ready, self._final

    def _hook(self, number: int, bucket: int) -> Callable[[Tensor], None]:
        def final(leaf: Tensor) -> None:
            if not self._active:
                return
            self._final[bucket].append((number, cast("Tensor", leaf.grad)))
            leaf.grad = None
            self._hand_over()

        return final

    def _hand_over(self) -> None:
        """Deliver all complete buckets whose predecessors are complete."""
        # In the same order on every rank; otherwise, ranks would sum different buckets.
        while self._next < len(self._buckets):
            gradients = self._final[self._next]
            if len(gradients) < self._members[self._next]:
                return
            copy_each([self._views[n] for n, _ in gradients], [values for _, values in gradients])
            gradients.clear()
            place = self._buckets[self._next]
            self._next += 1
            self._ready(self._flat[place])
