"""The collective's contract: every rank makes the same calls in the same order."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Buffer = Any
"""A flat float32 array: of numpy, or a tensor of an engine, wherever that keeps it."""


class RankLostError(Exception):
    """Another rank is gone, so that nothing can be agreed any more: this life is over.

    Not an error of a trial or of the user's, so no ``AIPerfError``, after which work goes on.
    """


class Pending(Protocol):
    """A reduction under way."""

    def wait(self) -> Buffer:
        """Return the sum: in the memory of what was given, or in some that is used again."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A reduction that is over."""

    buffer: Buffer

    def wait(self) -> Buffer:
        """Return the sum at once."""
        return self.buffer


@dataclass(slots=True)
class Copies:
    """Seconds spent on copying buffers to where a back end reduces them, and back."""

    in_seconds: float = 0.0
    out_seconds: float = 0.0

    def take(self) -> tuple[float, float]:
        """Return what was spent since the last call, in and out."""
        taken = self.in_seconds, self.out_seconds
        self.in_seconds = self.out_seconds = 0.0
        return taken


class Collective(Protocol):
    """The ranks of one replica, one process an accelerator."""

    @property
    def copies(self) -> Copies:
        """The seconds that this collective spends on copying buffers."""
        ...

    @property
    def name(self) -> str:
        """The name of this collective in the configuration."""
        ...

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def local_rank(self) -> int:
        """This process's number among those of its host, from 0."""
        ...

    @property
    def local_size(self) -> int:
        """The number of ranks on this process's host."""
        ...

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Limit the time of a block that waits for this rank's own device.

        What the device does may wait for other ranks in its turn.
        """
        ...

    def start_allreduce_sum(self, buffer: Buffer) -> Pending:
        """Start to sum a buffer over all ranks; it may be overwritten, and must not be changed.

        Several may be under way: started in the same order on every rank, and waited for in it,
        before a second round of them starts.
        """
        ...

    def allreduce_sum(self, flat: Array) -> None:
        """Replace ``flat``, in place, by its sum over all ranks.

        Of one shape and type on every rank, float32 or float64: what is summed is summed in it.
        """
        ...

    def barrier(self) -> None:
        """Return once every rank has called it."""
        ...

    def broadcast(self, array: Array) -> None:
        """Replace ``array``, in place, by rank 0's."""
        ...

    def command(self, words: Array) -> None:
        """As ``broadcast``, but ranks that wait long for it leave their core to others."""
        ...

    def gather(self, row: Array) -> Array:
        """Return the rows of all ranks, (size, \\*row.shape), on every rank."""
        ...

    def abort(self, status: int) -> None:
        """End all ranks at once with this exit status."""
        ...

    def close(self) -> None:
        """Leave the other ranks; nothing can be said any more."""
        ...


class Unlimited:
    """A collective whose ranks wait for ever."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Limit nothing."""
        del what
        return nullcontext()


class Alone(Unlimited):
    """The collective of one rank."""

    name = "alone"
    copies = Copies()
    rank, size, local_rank, local_size = 0, 1, 0, 1

    def start_allreduce_sum(self, buffer: Buffer) -> Finished:
        """Return ``buffer``: it is its own sum."""
        return Finished(buffer)

    def allreduce_sum(self, flat: Array) -> None:
        """Leave ``flat`` as it is: it is its own sum."""

    def barrier(self) -> None:
        """There is nobody to wait for."""

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
        """There is nobody to leave."""


ALONE = Alone()
