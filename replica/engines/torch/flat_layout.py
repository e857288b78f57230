"""Layout and checksum of a network's parameters in one flat buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from aiperf_hpc.graph import Shape
from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.replica.engines.base import CHECKSUM_COLUMNS as COLUMNS
from aiperf_hpc.replica.engines.base import PendingChecksum

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
