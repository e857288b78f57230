"""Random sampling that is identical for all versions of numpy.

numpy guarantees stable raw words of bit generators and a stable expansion of seed sequences, but
not stable results of ``Generator.permutation`` and similar methods. The order of an epoch, the
split of a dataset and the synthetic samples must be reproducible, so that they are computed from
raw words here.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """Purpose of random words, part of the key: different purposes have different words."""

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
    """Return ``count`` uniform 64-bit words that depend only on the (non-negative) key."""
    return np.random.Philox(np.random.SeedSequence(key)).random_raw(count)


def permutation(count: int, *key: int) -> NDArray[np.intp]:
    """Return 0 ... count - 1 in a random order determined by the key."""
    return np.argsort(words(count, *key), kind="stable")


def integers(count: int, bound: int, *key: int) -> NDArray[np.intp]:
    """Return ``count`` integers, uniform over 0 ... bound - 1 to within bound / 2**64."""
    return (words(count, *key) % np.uint64(bound)).astype(np.intp)


def seed(*key: int) -> int:
    """Return a 63-bit seed for a generator that requires a signed integer."""
    return int(words(1, *key)[0] >> np.uint64(1))


def halves(count: int, *key: int) -> NDArray[np.uint32]:
    """Return ``count`` uniform 32-bit words, plus one if ``count`` is odd.

    The explicit byte order gives the same words on all machines.
    """
    found = words(-(-count // 2), *key).astype("<u8").view("<u4")
    return found[: count + count % 2]


def normal(uniform: NDArray[np.uint32], count: int) -> NDArray[np.float64]:
    """Return ``count`` normal numbers from at least as many words, by the Box-Muller transform."""
    shares = (uniform.astype(np.float64) + 0.5) / 2.0**32
    radius = np.sqrt(-2.0 * np.log(shares[0::2]))
    angle = 2.0 * np.pi * shares[1::2]
    found: NDArray[np.float64] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return found[:count]
