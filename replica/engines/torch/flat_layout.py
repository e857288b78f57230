"""The parameters of a network in one flat buffer: their layout, and their checksum."""

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
"""The axes of a convolution's kernel in two dimensions; no other parameter has as many."""


class FlatLayout:
    """The place of each array in a flat buffer.

    A convolution's kernel lies there as (out, k, ..., in): channels-last to PyTorch.
    """

    def __init__(self, shapes: Mapping[str, Shape], aligned: int = 1) -> None:
        """Lay out arrays one behind the other.

        Args:
            shapes: of each array.
            aligned: the elements by whose multiples they begin; what is between two stays zero.
        """
        self.shapes = dict(shapes)
        self._aligned = aligned
        self.size = 0
        self.places: dict[str, slice] = {}
        for name, shape in shapes.items():
            place = self.places[name] = slice(self.size, self.size + math.prod(shape))
            self.size = self.end(place)

    def end(self, place: slice) -> int:
        """Return where the next array begins behind a place."""
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
        """Put some arrays into a buffer."""
        for name, array in arrays.items():
            own = np.array(_in_order(array), np.float32).ravel()
            flat[self.places[name]].copy_(torch.from_numpy(own))

    def host_buffer(self, arrays: Weights) -> Tensor:
        """Return a buffer of all arrays in the host's memory, with zeros between them."""
        flat = torch.zeros(self.size)
        if isinstance(flat, FakeTensor):
            return flat  # It has no values: nothing is executed.
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
    """Return an array as it lies in a buffer."""
    return np.moveaxis(array, -1, 0) if array.ndim >= LEAST_AXES else array


def begin_checksum(values: Tensor) -> PendingChecksum:
    """Put a checksum of flat float32 values into the device's queue; return what waits for it.

    Nothing waits before that, and one number is copied to the host.
    """
    total = summed(values)
    if total.device.type == "cpu":
        found = int(total)
        return lambda: found
    module = torch.get_device_module(total.device.type)
    there = torch.empty((), dtype=total.dtype).pin_memory()  # Or the copy would wait.
    there.copy_(total, non_blocking=True)
    copied = module.Event(blocking=True)
    copied.record(module.current_stream(total.device))

    def wait() -> int:
        copied.synchronize()
        return int(there)

    return wait


def summed(values: Tensor) -> Tensor:
    """Return the checksum, int64 (), on the device of the values; int64 wraps round there.

    By lines and columns it is two sums over memory, without a word more of it.
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
    """Return the words behind the last line, with that of a value that has no neighbour."""
    if values.numel() % 2 == 0:
        return words
    alone = values[-1:].view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
    return torch.cat((words, alone))


def _weighted(words: Tensor, first: int, step: int) -> Tensor:
    """Return the sum of words times first, first + step, ..."""
    factors = torch.arange(len(words), device=words.device) * step + first
    return (words * factors).sum()
