"""What every collective promises, asked of it on every rank.

mpirun -np 3 python tests/replica/parallel/contract.py mpi
"""

from __future__ import annotations

import sys
import time

import numpy as np

from aiperf_hpc.replica.parallel.collectives import Collective, join

LATE_SECONDS = 0.3
"""The time by which the last rank comes later to a barrier than the others."""


def check(collective: Collective) -> None:
    """Make each call as training does. Raises AssertionError for a wrong answer."""
    rank, size = collective.rank, collective.size
    ranks = np.arange(size)
    for dtype in (np.float32, np.float64):
        flat = np.array([1, rank, 0.5], dtype)
        collective.allreduce_sum(flat)
        np.testing.assert_array_equal(flat, [size, ranks.sum(), 0.5 * size])
        assert flat.dtype == dtype
    # Counts of samples are whole numbers, beyond what float32 can count.
    counts = np.array([2.0**40 + rank])
    collective.allreduce_sum(counts)
    assert counts[0] == size * 2**40 + ranks.sum()
    collective.allreduce_sum(np.zeros(0, np.float32))
    # Two reductions are under way while something else is summed.
    pending = [
        collective.start_allreduce_sum(np.full(elements, rank + 1, np.float32))
        for elements in (5, 9)
    ]
    collective.allreduce_sum(counts)
    for reduction, elements in zip(pending, (5, 9), strict=True):
        np.testing.assert_array_equal(reduction(), np.full(elements, (ranks + 1).sum()))
    for call in (collective.broadcast, collective.command):
        array = np.arange(4.0) + 10 * rank
        call(array)
        np.testing.assert_array_equal(array, np.arange(4.0))
    rows = collective.gather(np.array([rank, 7], np.int64))
    np.testing.assert_array_equal(rows, [[each, 7] for each in ranks])
    if rank == size - 1:
        time.sleep(LATE_SECONDS)
    came = time.monotonic()
    collective.barrier()
    times = collective.gather(np.array([came, time.monotonic()]))
    assert times[:, 1].min() >= times[:, 0].max(), "a rank left the barrier before all had come"


def main() -> None:
    collective = join(sys.argv[1])
    check(collective)
    if collective.rank == 0:
        sys.stdout.write(f"{collective.size} ranks\n")
    collective.close()


if __name__ == "__main__":
    main()
