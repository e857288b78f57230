"""Memory that crosses from an engine to a collective and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from aiperf_hpc.replica.parallel.collectives.base import Array, Buffer

ALIGNED_BYTES = 64
"""The alignment of memory that frameworks use without a copy."""


def on_host(buffer: Buffer) -> Array:
    """Return a buffer as an array: of the same memory, or a copy of what an accelerator has."""
    try:
        return np.asarray(buffer)
    except TypeError:  # What torch says of memory that is not the host's.
        return np.asarray(buffer.cpu())


def aligned(elements: int, dtype: DTypeLike = np.float32) -> Array:
    """Return an array, not initialised, whose memory a framework can use as it is."""
    size = elements * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNED_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNED_BYTES
    return raw[start : start + size].view(dtype)


class Turns:
    """Arrays for the reductions of one step, which those of the next step get again."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._taken = self._under_way = 0

    def take_like(self, given: Array) -> Array:
        """Return an array for the sum of such arrays, whose reduction starts."""
        if not self._under_way:
            self._taken = 0
        self._under_way += 1
        number = self._taken
        self._taken = self._taken + 1
        if number < len(self._arrays):
            kept = self._arrays[number]
            if (kept.size, kept.dtype) == (given.size, given.dtype):
                return kept
        # Those behind one of another size are of another network too.
        self._arrays[number:] = [aligned(given.size, given.dtype)]
        return self._arrays[number]

    def over(self) -> None:
        """Note that a reduction is over; when all are, the next one starts a new step."""
        self._under_way -= 1
