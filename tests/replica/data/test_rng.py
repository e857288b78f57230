from __future__ import annotations

import numpy as np

from aiperf_hpc.replica.data import rng

WORDS = [6169845204143478047, 18259868075592107211, 12732353207320199972]


def test_words_are_pinned() -> None:
    """Every order, split and synthetic sample follows from these; they must never change."""
    words = rng.words(3, 2, 0, 7)
    assert words.tolist() == WORDS


def test_integers_are_uniform() -> None:
    counts = np.bincount(rng.integers(90_000, 9, 5), minlength=9)
    # Of a binomial of 90,000 and 1/9 the deviation is 94.
    assert np.all(np.abs(counts - 10_000) < 5 * 94)


def test_a_seed_is_not_negative() -> None:
    assert all(0 <= rng.seed(8, number) < 2**63 for number in range(100))


def test_a_permutation_is_uniform_over_orders() -> None:
    orders = [tuple(rng.permutation(3, 1, number).tolist()) for number in range(6000)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert all(abs(count - 1000) < 5 * 29 for count in counts)
