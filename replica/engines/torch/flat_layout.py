"""Where the parameters of a network lie in one flat buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from aiperf_hpc.graph import Shape
from aiperf_hpc.morphism.weights.checkpoint import Array, Weights

LEAST_AXES = 4
"""The axes of a convolution's kernel in two dimensions; no other parameter has as many."""


class FlatLayout:
    """Where each of some arrays lies in a flat buffer.

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
