"""Random draws that stay the same with every version of numpy.

numpy promises that the raw words of a bit generator and the spreading of a seed sequence do not
change; it promises nothing of the kind for ``Generator.permutation`` and its like. The order of
an epoch, the split of a dataset and the samples of the synthetic one are facts of a run, so they
are made of raw words here.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What is drawn. Part of the key, so that no two purposes share their words."""

    SPLIT = 1
    ORDER = 2
    DOWN = 3
    RIGHT = 4
    MIRROR = 5
    PATTERN = 6
    NOISE = 7
    SHARDS = 8
    WINDOWS = 9
    CROP = 10
    TARGET = 11
    FIELD = 12
    SCATTER = 13


def words(count: int, *key: int) -> NDArray[np.uint64]:
    """Return ``count`` uniform 64-bit words that depend on the (non-negative) key alone."""
    return np.random.Philox(np.random.SeedSequence(key)).random_raw(count)


def permutation(count: int, *key: int) -> NDArray[np.intp]:
    """Return 0 ... count - 1 in an order drawn by the key."""
    return np.argsort(words(count, *key), kind="stable")


def integers(count: int, bound: int, *key: int) -> NDArray[np.intp]:
    """Return ``count`` integers, uniform over 0 ... bound - 1 to within bound / 2**64."""
    return (words(count, *key) % np.uint64(bound)).astype(np.intp)


def seed(*key: int) -> int:
    """Return one seed of 63 bits for a generator that wants a signed integer."""
    return int(words(1, *key)[0] >> np.uint64(1))


def halves(count: int, *key: int) -> NDArray[np.uint32]:
    """Return ``count`` uniform words of 32 bits, and one more where that is odd.

    The byte order is stated, so that all machines have the same.
    """
    found = words(-(-count // 2), *key).astype("<u8").view("<u4")
    return found[: count + count % 2]


def normal(uniform: NDArray[np.uint32], count: int) -> NDArray[np.float64]:
    """Return ``count`` normal numbers of at least as many words, by Box and Muller's transform."""
    shares = (uniform.astype(np.float64) + 0.5) / 2.0**32
    radius = np.sqrt(-2.0 * np.log(shares[0::2]))
    angle = 2.0 * np.pi * shares[1::2]
    found: NDArray[np.float64] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return found[:count]
