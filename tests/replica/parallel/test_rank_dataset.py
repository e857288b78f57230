"""Shards of batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replica.parallel.team import Team, build, numbered
from tests.support.fakes import FakeDataset

from aiperf_hpc.errors import DatasetError, EngineError
from aiperf_hpc.replica.data.base import Batch, Part
from aiperf_hpc.replica.parallel import leader


@given(samples=st.integers(0, 200), ranks=st.integers(1, 20))
def test_shards_are_disjoint_and_complete(samples: int, ranks: int) -> None:
    bounds = [Part(rank, ranks).bounds(samples) for rank in range(ranks)]
    assert [number for first, last in bounds for number in range(first, last)] == [*range(samples)]
    sizes = [last - first for first, last in bounds]
    assert max(sizes) - min(sizes) <= 1
    more = [Part(rank, ranks).bounds(samples + 1) for rank in range(ranks)]
    assert all(last - first >= size for (first, last), size in zip(more, sizes, strict=True))


def test_a_rank_whose_data_cannot_be_read_fails_the_step() -> None:
    class Broken(FakeDataset):
        def _batches(self, samples: int, batch_size: int, part: Part) -> Iterator[Batch]:
            yield from super()._batches(0, batch_size, part)
            raise DatasetError("the shard is damaged")

    with Team(2, dataset=Broken) as team, pytest.raises(EngineError, match="1 of 2 ranks failed"):
        build(team).train_step(next(team.dataset.train(1, 8, 0)), 0.1)


def test_ranks_with_different_datasets_fail_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "AGREE_SECONDS", 0.0)
    with Team(2, dataset=lambda: numbered(train_samples=44)) as team:
        network = build(team)
        *most, last, _ = team.dataset.train(1, 8, 0)
        for batch in most:
            network.train_step(batch, 0.1)
        with pytest.raises(EngineError, match="the ranks trained on 6 samples of batches of 8"):
            network.train_step(last, 0.1)
