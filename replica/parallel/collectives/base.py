"""The collective's contract, and buffers that cross from an engine to it and back.

Every rank makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Buffer = Any
"""A flat float32 array: of numpy, or a tensor of an engine, wherever that keeps it."""


PendingSum = Callable[[], Buffer]
"""Waits for a reduction; returns the sum, in the given buffer or in memory that is reused."""

ALIGNED_BYTES = 64
"""Alignment of memory that frameworks use without a copy."""


class RankLostError(Exception):
    """Another rank has exited or hangs: this attempt of the replica ends.

    Not an ``AIPerfError``, which fails a trial and lets the next one begin.
    """


@dataclass(slots=True)
class Copies:
    """Seconds spent on copying buffers to where a back end reduces them, and back."""

    in_seconds: float = 0.0
    out_seconds: float = 0.0

    def take(self) -> tuple[float, float]:
        """Return the seconds since the last call, in and out."""
        taken = self.in_seconds, self.out_seconds
        self.in_seconds = self.out_seconds = 0.0
        return taken


class Collective(Protocol):
    """The ranks of one replica, one process an accelerator."""

    copies: Copies
    """The seconds that this collective spends on copying buffers."""
    name: str
    """The name of this collective in the configuration."""
    rank: int
    """This process's number, from 0."""
    size: int
    """The number of ranks."""
    local_rank: int
    """This process's number among those of its host, from 0."""
    local_size: int
    """The number of ranks on this process's host."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Limit the time of a block that waits for this rank's own device.

        The device may wait for other ranks in its turn.
        """

    def start_allreduce_sum(self, buffer: Buffer) -> PendingSum:
        """Start to sum a buffer over all ranks; it may be overwritten, and must not be changed.

        Several may be under way: started in the same order on every rank, and waited for in it,
        before a second round of them starts.
        """

    def allreduce_sum(self, flat: Array) -> None:
        """Replace ``flat``, in place, by its sum over all ranks.

        It has one shape and type on every rank, float32 or float64.
        """

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def broadcast(self, array: Array) -> None:
        """Replace ``array``, in place, by rank 0's."""

    def command(self, words: Array) -> None:
        """As ``broadcast``, but ranks that wait long for it yield their core."""

    def gather(self, row: Array) -> Array:
        """Return the rows of all ranks, (size, \\*row.shape), on every rank."""

    def abort(self, status: int) -> None:
        """End all ranks at once with this exit status."""

    def close(self) -> None:
        """Leave the other ranks; no call may follow."""


class Unlimited:
    """A collective without time limits."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Limit nothing."""
        del what
        return nullcontext()


class Alone(Unlimited):
    """The collective of one rank."""

    name = "alone"
    copies = Copies()
    rank, size, local_rank, local_size = 0, 1, 0, 1

    def start_allreduce_sum(self, buffer: Buffer) -> PendingSum:
        """Return ``buffer``: it is its own sum."""
        return lambda: buffer

    def allreduce_sum(self, flat: Array) -> None:
        """Leave ``flat`` as it is: it is its own sum."""

    def barrier(self) -> None:
        """Return at once."""

    def broadcast(self, array: Array) -> None:
        """Leave ``array`` as it is."""

    def command(self, words: Array) -> None:
        """Leave ``words`` as they are."""

    def gather(self, row: Array) -> Array:
        """Return the one row."""
        return np.array(row)[None]

    def abort(self, status: int) -> None:
        """End this process."""
        raise SystemExit(status)

    def close(self) -> None:
        """Do nothing."""


ALONE = Alone()


def on_host(buffer: Buffer) -> Array:
    """Return a buffer as an array: of the same memory, or a copy of what an accelerator has."""
    try:
        return np.asarray(buffer)
    except TypeError:  # torch raises it for memory of a device.
        return np.asarray(buffer.cpu())


def aligned(elements: int, dtype: DTypeLike = np.float32) -> Array:
    """Return an array, not initialised, whose memory a framework can use as it is."""
    size = elements * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNED_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNED_BYTES
    return raw[start : start + size].view(dtype)


class BufferPool:
    """Arrays for the reductions of one step, which the next step reuses."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._taken = self._under_way = 0

    def take(self, given: Array) -> Array:
        """Return an array for a sum of such arrays, whose reduction starts."""
        if not self._under_way:
            self._taken = 0
        self._under_way += 1
        number, self._taken = self._taken, self._taken + 1
        kinds = [(array.size, array.dtype) for array in self._arrays[number : number + 1]]
        if kinds != [(given.size, given.dtype)]:
            # Those after one of another size belong to another network too.
            self._arrays[number:] = [aligned(given.size, given.dtype)]
        return self._arrays[number]

    def release(self) -> None:
        """Note the end of a reduction; after the last one, the next starts a new step."""
        self._under_way -= 1
