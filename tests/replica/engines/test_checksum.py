"""The checksum by which ranks compare their weights: the same of all who compute it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.engine_steps import built, labelled
from tests.support.networks import two_stems

from aiperf_hpc.replica.engines.base import CHECKSUM_COLUMNS as COLUMNS
from aiperf_hpc.replica.engines.base import RankEngine, checksum
from aiperf_hpc.replica.engines.tensorflow.steps import checksum_of
from aiperf_hpc.replica.engines.torch.flat_layout import begin_checksum
from aiperf_hpc.replica.tensorflow_import import tf

Floats = NDArray[np.float32]
Sum = Callable[[Floats], int]

SIZES = (1, 2, 2 * COLUMNS - 1, 2 * COLUMNS, 7 * COLUMNS + 3)
"""Values of less than a line, of a line, of several and a rest; even and odd numbers."""


def of_torch(values: Floats) -> int:
    return begin_checksum(torch.from_numpy(values))()


def of_numpy(values: Floats) -> int:
    return checksum([values])


def of_tf(values: Floats) -> int:
    return int(checksum_of([tf.constant(values)]).numpy())


def _random(size: int) -> Floats:
    """Of any bits, so that sums run over."""
    words = np.random.default_rng(size).integers(0, 2**32, size, np.uint32)
    return words.view(np.float32)


def test_it_is_the_sum_that_its_definition_says() -> None:
    arrays = [np.array([1.0, -2.0, 3.0], np.float32), np.array([[4.0]], np.float32)]
    words = [
        *struct.unpack("<QQ", struct.pack("<ffff", 1.0, -2.0, 3.0, 0.0)),
        *struct.unpack("<Q", struct.pack("<ff", 4.0, 0.0)),
    ]
    total = sum((2 * place + 1) * word for place, word in enumerate(words)) % 2**64
    assert checksum(arrays) % 2**64 == total
    assert -(2**63) <= checksum(arrays) < 2**63


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("found", [of_torch, of_tf])
def test_all_compute_the_same(found: Sum, size: int) -> None:
    values = _random(size)
    assert found(values) == of_numpy(values)


def test_arrays_follow_one_another() -> None:
    arrays = [_random(size) for size in SIZES]
    given = [tf.constant(array) for array in arrays]
    assert int(checksum_of(given).numpy()) == checksum(arrays)
    assert checksum(arrays) != checksum(reversed(arrays))


@pytest.mark.parametrize("found", [of_numpy, of_torch, of_tf])
def test_every_bit_of_a_value_counts_and_so_does_its_place(found: Sum) -> None:
    values = _random(2 * COLUMNS + 5)
    own = found(values)
    for place in (0, 1, 2 * COLUMNS - 1, 2 * COLUMNS, len(values) - 1):
        for bit in range(32):
            other = values.copy()
            other.view(np.uint32)[place] ^= np.uint32(1 << bit)
            assert found(other) != own
    for one, two in ((0, 1), (3, 4), (5, 2 * COLUMNS + 1)):
        other = values.copy()
        other[[one, two]] = other[[two, one]]
        assert found(other) != own


def test_engines_sum_up_the_weights_of_when_they_were_asked(engine: RankEngine) -> None:
    graph = two_stems()
    one, other = (built(engine, graph, 3) for _ in range(2))
    begun = one.checksum()
    batch = labelled(graph, 8)
    one.train_step(batch, 0.05)
    after = one.checksum()
    assert begun() == other.checksum()() != after()
    assert -(2**63) <= begun() < 2**63
    other.assign(one.weights())
    assert other.checksum()() == after()
    other.set_statistics(np.zeros_like(other.statistics()))  # Each rank has its own.
    assert other.checksum()() == after()
    name = max(graph.parameters)
    flipped = one.weights()[name].copy()
    flipped.view(np.uint32).flat[0] ^= np.uint32(1)
    other.assign({name: flipped})
    assert other.checksum()() != after()
