"""Batches come in order, ahead of their use, and leave no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.base import DEPTH, Batch, labelled_images, prefetched


def numbered(count: int, made: list[int], *, fails: bool = False) -> Iterator[Batch]:
    for number in range(count):
        made.append(number)
        yield labelled_images(np.full((1, 1), number, np.float32), np.array([number], np.int32))
    if fails:
        raise DatasetError("shard 7 is truncated")


def test_they_are_made_before_they_are_asked_for_and_not_all_at_once() -> None:
    made: list[int] = []
    batches = prefetched(numbered(100, made))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert 1 < len(made) <= 1 + DEPTH


def test_batches_and_an_error_come_in_order() -> None:
    batches = prefetched(numbered(9, [], fails=True))
    assert [int(next(batches).targets["label"][0]) for _ in range(9)] == list(range(9))
    with pytest.raises(DatasetError, match="shard 7 is truncated"):
        next(batches)


def test_no_thread_outlives_the_iterator() -> None:
    for batch in prefetched(numbered(3, [])):
        assert batch.size == 1
    batches = prefetched(numbered(3, []))
    next(batches)
    del batches
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]
