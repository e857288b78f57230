"""The collective's contract: every rank makes the same calls in the same order."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Collective(Protocol):
    """The ranks of one replica, one process an accelerator."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    @property
    def local_rank(self) -> int:
        """This process's number among those of its host, from 0."""
        ...

    @property
    def local_size(self) -> int:
        """How many ranks share its host."""
        ...

    def allreduce_mean(self, flat: Array) -> None:
        """Replace ``flat``, in place, by its mean over all ranks. One shape and floating type."""
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


class Alone:
    """The collective of one rank."""

    rank, size, local_rank, local_size = 0, 1, 0, 1

    def allreduce_mean(self, flat: Array) -> None:
        """Leave ``flat`` as it is: it is its own mean."""

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
