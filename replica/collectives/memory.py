"""Memory that crosses from an engine to a collective and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.replica.collectives.base import Array, Buffer

ALIGNED_BYTES = 64
"""What frameworks ask of memory that they are to use as it is."""


def on_host(buffer: Buffer) -> Array:
    """Return a buffer as an array: of the same memory, or a copy of what an accelerator has."""
    return buffer if isinstance(buffer, np.ndarray) else np.asarray(buffer.cpu())


def aligned(elements: int) -> NDArray[np.float32]:
    """Return an array, not initialised, whose memory a framework can use as it is."""
    raw = np.empty(elements * 4 + ALIGNED_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNED_BYTES
    return raw[start : start + elements * 4].view(np.float32)


class Rounds:
    """Arrays for the reductions of one step, which those of the next step get again."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.float32]] = []
        self._taken = self._under_way = 0

    def take(self, elements: int) -> NDArray[np.float32]:
        """Return an array for a reduction that starts."""
        if not self._under_way:
            self._taken = 0
        self._under_way += 1
        number, self._taken = self._taken, self._taken + 1
        if number == len(self._arrays) or self._arrays[number].size != elements:
            # Those behind it are of another network too.
            self._arrays[number:] = [aligned(elements)]
        return self._arrays[number]

    def over(self) -> None:
        """Note that a reduction is over; when all are, the next one starts a new step."""
        self._under_way -= 1
