"""The checksum of weights, computed where they are; ``engines.checksum`` says what it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aiperf_hpc.replica.engines.checksum import COLUMNS
from aiperf_hpc.replica.tensorflow_import import tf


def summed(arrays: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the checksum, int64 (), of arrays of float32; int64 wraps round."""
    total, before = tf.constant(0, tf.int64), 0
    for array in arrays:
        size = math.prod(array.shape)
        total += _of_one(tf.reshape(array, [-1]), size, before)
        before += -(-size // 2)
    return total


def _of_one(flat: tf.Tensor, size: int, before: int) -> tf.Tensor:
    """Return what an array of this size adds, before which there are so many words."""
    pairs = tf.reshape(tf.pad(flat, [[0, size % 2]]) if size % 2 else flat, [-1, 2])
    words = tf.bitcast(pairs, tf.int64)
    count = -(-size // 2)
    lines = count // COLUMNS
    body = tf.reshape(words[: lines * COLUMNS], [lines, COLUMNS])
    return (
        _weighted(tf.reduce_sum(body, 1), 2 * before + 1, 2 * COLUMNS)
        + _weighted(tf.reduce_sum(body, 0), 0, 2)
        + _weighted(words[lines * COLUMNS :], 2 * (before + lines * COLUMNS) + 1, 2)
    )


def _weighted(words: tf.Tensor, first: int, step: int) -> tf.Tensor:
    """Return the sum of words times first, first + step, ..."""
    factors = tf.range(tf.shape(words, tf.int64)[0]) * step + first
    return tf.reduce_sum(words * factors)
