"""Flat buffers of a network's parameters and gradients: their layout, checksum and buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from aiperf_hpc.graph import Shape
from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.replica.engines.base import CHECKSUM_COLUMNS as COLUMNS
from aiperf_hpc.replica.engines.base import Buffer, PendingChecksum

LEAST_AXES = 4
"""Number of axes of a 2D convolution's kernel; no other parameter has as many."""


class FlatLayout:
    """Position of each array in a flat buffer.

    A convolution's kernel is stored as (out, k, ..., in), which PyTorch calls channels-last.
    """

    def __init__(self, shapes: Mapping[str, Shape], aligned: int = 1) -> None:
        """Lay out arrays one after another.

        Args:
            shapes: shape of each array.
            aligned: alignment in elements; the gaps between arrays stay zero.
        """
        self.shapes = dict(shapes)
        self._aligned = aligned
        self.size = 0
        self.places: dict[str, slice] = {}
        for name, shape in shapes.items():
            place = self.places[name] = slice(self.size, self.size + math.prod(shape))
            self.size = self.end(place)

    def end(self, place: slice) -> int:
        """Return the start of the next array after a position."""
        return -(-int(place.stop) // self._aligned) * self._aligned

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return each array as a view of a buffer, kernels as (out, in, k, ...)."""
        views = {}
        for name, shape in self.shapes.items():
            view = flat[self.places[name]]
            if len(shape) >= LEAST_AXES:
                view = view.view(shape[-1], *shape[:-1]).movedim(-1, 1)
            else:
                view = view.view(shape)
            views[name] = view
        return views

    def write(self, flat: Tensor, arrays: Weights) -> None:
        """Copy arrays into a buffer."""
        for name, array in arrays.items():
            own = np.array(_in_order(array), np.float32).ravel()
            flat[self.places[name]].copy_(torch.from_numpy(own))

    def host_buffer(self, arrays: Weights) -> Tensor:
        """Return a host buffer with all arrays and zeros between them."""
        flat = torch.zeros(self.size)
        if isinstance(flat, FakeTensor):
            return flat  # A tensor without values: nothing is executed.
        values = flat.numpy()
        for name, place in self.places.items():
            ordered = _in_order(arrays[name])
            values[place].reshape(ordered.shape)[...] = ordered
        return flat

    def read(self, flat: Tensor) -> dict[str, Array]:
        """Return copies of all arrays of a buffer."""
        values = flat.cpu().numpy()
        arrays = {}
        for name, shape in self.shapes.items():
            part = values[self.places[name]]
            if len(shape) >= LEAST_AXES:
                part = np.moveaxis(part.reshape(shape[-1], *shape[:-1]), 0, -1)
            arrays[name] = np.array(part.reshape(shape), np.float32, order="C")
        return arrays


def _in_order(array: Array) -> Array:
    """Return an array in the memory order of a buffer."""
    return np.moveaxis(array, -1, 0) if array.ndim >= LEAST_AXES else array


def begin_checksum(values: Tensor) -> PendingChecksum:
    """Enqueue a checksum of flat float32 values on the device; return a function that waits for it.

    Only that function waits, and only one number is copied to the host.
    """
    total = summed(values)
    if total.device.type == "cpu":
        found = int(total)
        return lambda: found
    module = torch.get_device_module(total.device.type)
    there = torch.empty((), dtype=total.dtype).pin_memory()  # Otherwise, the copy would wait.
    there.copy_(total, non_blocking=True)
    copied = module.Event(blocking=True)
    copied.record(module.current_stream(total.device))

    def wait() -> int:
        copied.synchronize()
        return int(there)

    return wait


def summed(values: Tensor) -> Tensor:
    """Return the checksum, int64 (), on the device of the values, where int64 wraps around.

    By lines and columns, it requires two sums over the values and no further memory.
    """
    pairs = values.numel() // 2
    words = values[: 2 * pairs].view(torch.int64)
    lines = pairs // COLUMNS
    body = words[: lines * COLUMNS].view(lines, COLUMNS)
    return (
        _weighted(body.sum(1), 1, 2 * COLUMNS)
        + _weighted(body.sum(0), 0, 2)
        + _weighted(_rest(values, words[lines * COLUMNS :]), 2 * lines * COLUMNS + 1, 2)
    )


def _rest(values: Tensor, words: Tensor) -> Tensor:
    """Return the words after the last full line, including that of an unpaired value."""
    if values.numel() % 2 == 0:
        return words
    alone = values[-1:].view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
    return torch.cat((words, alone))


def _weighted(words: Tensor, first: int, step: int) -> Tensor:
    """Return the sum of words times first, first + step, ..."""
    factors = torch.arange(len(words), device=words.device) * step + first
    return (words * factors).sum()


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
