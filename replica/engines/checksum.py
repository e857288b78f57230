"""The checksum by which ranks compare their weights: what it is, in numpy.

The float32 values are taken as they lie in memory, two a word of 64 bits, the last word of an
array filled up with zeros. Of the words w_0, w_1, ... of all arrays, one array behind the other, it
is the sum of (2 i + 1) w_i modulo 2**64. The factors are odd, and so have inverses: any change of
one word changes it. They differ, so that values which changed places do too, but for one pair of
places in many. Whole numbers have one sum in any order, so that a device may add as it likes.

Engines compute it on their device, of parameters in their own order; this is for those without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from aiperf_hpc.morphism.weights.checkpoint import Array

COLUMNS = 1024
"""Words of a line, of which engines add up lines and columns instead of weighting each word."""

PendingChecksum = Callable[[], int]
"""Waits for a checksum that a device computes; returns it as a signed number of 64 bits."""


def checksum(arrays: Iterable[Array]) -> int:
    """Return the checksum of float32 arrays of any shape, as a signed number of 64 bits."""
    total, before = np.zeros(1, np.uint64), 0
    for array in arrays:
        words = _words(array)
        places = np.arange(before, before + len(words), dtype=np.uint64)
        total += ((2 * places + 1) * words).sum(dtype=np.uint64)
        before += len(words)
    return int(total.view(np.int64)[0])


def _words(array: Array) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    flat = np.ascontiguousarray(array, np.float32).ravel()
    return np.append(flat, np.zeros(flat.size % 2, np.float32)).view(np.uint64)
