"""Collectives: communication between the ranks of one replica.

Every rank makes the same calls in the same order. Engines exchange buffers with a collective.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aiperf_hpc.errors import EngineError
from aiperf_hpc.extras import COLLECTIVES
from aiperf_hpc.replica.engines.base import first_line

Array = NDArray[Any]
Buffer = Any
"""A flat float32 array: a NumPy array or an engine's tensor on any device."""
PendingSum = Callable[[], Buffer]
"""Waits for a reduction; returns the sum, in the given buffer or in reused memory."""

ALIGNED_BYTES = 64
"""Alignment in bytes of memory that frameworks use without a copy."""


class RankLostError(Exception):
    """Another rank has exited or hangs: this attempt of the replica ends.

    Not an ``AIPerfError``, because that would fail only the trial.
    """


@dataclass(slots=True)
class Copies:
    """Seconds of copies from an engine's memory to the backend's. No backend copies back."""

    seconds: float = 0.0

    def take(self) -> float:
        """Return the seconds since the last call."""
        taken, self.seconds = self.seconds, 0.0
        return taken


class Collective(Protocol):
    """Communication between the ranks of one replica, one process per accelerator."""

    copies: Copies
    """Seconds that this collective spends on copies."""
    name: str
    """The name of this collective in the configuration."""
    rank: int
    """Rank of this process, from 0."""
    size: int
    """The number of ranks."""
    local_rank: int
    """Local rank of this process on its host, from 0."""
    local_size: int
    """The number of ranks on this process's host."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Apply the timeout, by default none, to a block that waits for this rank's device.

        The device may in turn wait for other ranks.
        """
        return nullcontext()

    def start_allreduce_sum(self, buffer: Buffer) -> PendingSum:
        """Start the all-reduce (sum) of a buffer, which may be overwritten and must not be changed.

        Several may be in flight. Every rank must start them, and wait for them, in the same order,
        and must wait for all before it starts the next round.
        """

    def allreduce_sum(self, flat: Array) -> None:
        """Sum ``flat`` over all ranks in place.

        Its shape and type (float32 or float64) must be equal on every rank.
        """

    def barrier(self) -> None:
        """Wait until every rank has called it."""

    def broadcast(self, array: Array) -> None:
        """Overwrite ``array`` with rank 0's."""

    def command(self, array: Array) -> None:
        """As ``broadcast``, but ranks that wait long yield their core."""

    def gather(self, row: Array) -> Array:
        """All-gather: return the rows of all ranks, (size, \\*row.shape), on every rank."""

    def abort(self, status: int) -> None:
        """Abort all ranks with this exit status."""

    def close(self) -> None:
        """Leave the group; no call may follow."""


class Alone(Collective):
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

    def command(self, array: Array) -> None:
        """Leave ``array`` as it is."""

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
    """Return an uninitialized array that a framework can use without a copy."""
    size = elements * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNED_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNED_BYTES
    return raw[start : start + size].view(dtype)


class BufferPool:
    """Arrays for the reductions of one step, reused by the next step."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._taken = self._under_way = 0

    def take(self, given: Array) -> Array:
        """Return an array for the sum of a reduction that starts."""
        if not self._under_way:
            self._taken = 0
        self._under_way += 1
        number, self._taken = self._taken, self._taken + 1
        kinds = [(array.size, array.dtype) for array in self._arrays[number : number + 1]]
        if kinds != [(given.size, given.dtype)]:
            # Another size means another network: drop the rest.
            self._arrays[number:] = [aligned(given.size, given.dtype)]
        return self._arrays[number]

    def release(self) -> None:
        """Count the end of a reduction; after the last one, a new step starts."""
        self._under_way -= 1


CLASSES = {
    "mpi": ("mpi", "MpiCollective"),
    "torch": ("torch_distributed", "TorchCollective"),
    "horovod": ("horovod", "HorovodCollective"),
}
"""Module and class of every collective of the configuration."""


def load_collective(name: str, ranks: int) -> Collective:
    """Join the other ranks of this replica.

    Args:
        name: name of the collective.
        ranks: expected number of ranks; one rank needs no collective.

    Raises:
        EngineError: a package or library is missing, or the number of ranks differs.
    """
    if ranks == 1:
        return ALONE
    collective = join(name)
    if collective.size != ranks:
        raise EngineError(
            f"collective '{name}' joins {collective.size} ranks, the configuration requests "
            f"{ranks}; start the ranks by a launcher that supports '{name}': see "
            "docs/collectives.md"
        )
    return collective


def join(name: str) -> Collective:
    """Join all ranks, however many there are.

    Raises:
        EngineError: a package or library is missing.
    """
    module, kind = CLASSES[name]
    try:
        loaded = importlib.import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        raise EngineError(
            f"collective '{name}' needs the package '{error.name}': {COLLECTIVES[name].remedy}"
        ) from None
    except (ImportError, RuntimeError) as error:
        raise EngineError(
            f"collective '{name}': its library cannot be loaded: {first_line(error)}; "
            f"{COLLECTIVES[name].remedy}"
        ) from None
    return cast("Collective", getattr(loaded, kind)())
