"""Ranks that differ or cannot start are named before training."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.replica.parallel.threads import Table, Threads, run_ranks
from tests.support.fakes import FakeDataset

from aiperf_hpc.errors import AIPerfError, DatasetError, EngineError
from aiperf_hpc.replica.parallel.collectives import (
    ALONE,
    Alone,
    Buffer,
    PendingSum,
    RankLostError,
    torch_distributed,
)
from aiperf_hpc.replica.parallel.handshake import Facts, Ranks, facts_of

DATASET = FakeDataset().info
VERSIONS = {"numpy": "2.0.2", "tensorflow": "2.18.1"}
HOSTS = ("n1", "n2", "n3")


def together(
    monkeypatch: pytest.MonkeyPatch, *facts: Facts | AIPerfError
) -> tuple[list[Ranks], list[str]]:
    """Run the handshake of ranks with these facts; return them and each one's error, or ''."""
    table = Table(len(facts))
    ranks = [Ranks(Threads(table, rank, len(facts))) for rank in range(len(facts))]
    errors = [""] * len(facts)
    names = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: names.host)

    def run(rank: int) -> None:
        names.host = HOSTS[rank]
        own = facts[rank]
        try:
            if isinstance(own, AIPerfError):
                ranks[rank].handshake({}, failure=own)
            else:
                ranks[rank].handshake(own, f"0.{rank}")
        except AIPerfError as error:
            errors[rank] = str(error)

    run_ranks(run, range(len(facts)))
    return ranks, errors


def test_equal_ranks_use_the_attempt_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, errors = together(monkeypatch, *[facts_of(VERSIONS, DATASET, 0)] * 3)
    assert errors == ["", "", ""]
    assert all(rank.ready and rank.incarnation == "0.0" and rank.hosts == HOSTS for rank in ranks)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            facts_of(VERSIONS | {"tensorflow": "2.19.0"}, DATASET, 0),
            "tensorflow's version is 2.19.0 for rank 1 on n2 and 2.18.1 for rank 0 on n1",
        ),
        (
            facts_of({"numpy": "2.0.2"}, DATASET, 0),
            "tensorflow's version is missing for rank 1 on n2",
        ),
        (
            facts_of(VERSIONS, DATASET.model_copy(update={"sha256": "f" * 64}), 0),
            "the dataset's SHA-256 is ffffffffffff for rank 1 on n2 and 000000000000",
        ),
        (
            facts_of(VERSIONS, DATASET, 1),
            "the order of samples, as a checksum, is [0-9a-f]{8} for rank 1 on n2",
        ),
    ],
)
def test_a_rank_that_differs_from_rank_0_is_named_on_all(
    other: Facts, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = facts_of(VERSIONS, DATASET, 0)
    ranks, errors = together(monkeypatch, own, other, own)
    assert len(set(errors)) == 1
    assert re.match(f"{words}.*$", errors[0])
    assert not any(rank.ready for rank in ranks)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_start_ends_the_other_one(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: list[Facts | AIPerfError] = [facts_of(VERSIONS, DATASET, 0)] * 2
    facts[rank] = DatasetError("no such folder")
    ranks, errors = together(monkeypatch, *facts)
    assert errors[rank] == "no such folder"
    assert re.match(f"rank {rank} on {HOSTS[rank]} could not start.*$", errors[1 - rank])
    ranks[0].decline()  # No rank is left to receive it.
    assert not any(each.ready for each in ranks)


def test_rank_0_declines_before_it_has_loaded_anything() -> None:
    table = Table(2)

    def run(rank: int) -> None:
        ranks = Ranks(Threads(table, rank, 2))
        if rank == 0:
            ranks.decline()
        else:
            with pytest.raises(EngineError, match="^rank 0 on "):
                ranks.handshake({})

    run_ranks(run, range(2))


def test_ranks_exchange_texts_of_any_length() -> None:
    texts = ["", "é" * 10_000, "short"]
    table = Table(3)
    received: dict[int, tuple[str, ...]] = {}

    def run(rank: int) -> None:
        received[rank] = Ranks(Threads(table, rank, 3)).exchange(texts[rank])

    run_ranks(run, range(3))
    assert received == dict.fromkeys(range(3), tuple(texts))


def test_one_rank_needs_no_others() -> None:
    ranks = Ranks(ALONE)
    assert ranks.exchange("") == ("",)
    ranks.handshake(facts_of(VERSIONS, DATASET, 0), "2.1")
    assert (ranks.ready, ranks.several, ranks.incarnation) == (True, False, "2.1")


class Summing(Alone):
    """One rank with a given sum or error."""

    def __init__(self, total: float | RankLostError) -> None:
        self._total = total

    def start_allreduce_sum(self, buffer: Buffer) -> PendingSum:
        if isinstance(self._total, RankLostError):
            raise self._total
        return lambda: np.full_like(buffer, self._total)


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (RankLostError("NCCL error: no such interface"), "cannot sum over the ranks: NCCL error"),
        (2.0, "the sum of 1 ones is 2$"),
    ],
)
def test_a_collective_that_cannot_sum_is_named(total: float | RankLostError, words: str) -> None:
    ranks = Ranks(Summing(total))
    with pytest.raises(EngineError, match=f"^collective 'alone'.*{words}"):
        ranks.handshake({}, probe=np.ones(1, np.float32))
    assert not ranks.ready


def test_timeouts_begin_after_the_first_sum(tmp_path: Path) -> None:
    ranks = Ranks(ALONE)
    ranks.handshake({})
    with pytest.raises(RuntimeError, match="give it a probe"):
        ranks.watched(tmp_path, 25.0)
    ranks.handshake({}, probe=np.ones(1, np.float32))
    assert ranks.watched(tmp_path, 25.0).size == 1


def test_the_process_group_of_accelerators_is_created_by_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here gloo's; that of NCCL may need more time than the timeout of a step."""
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    monkeypatch.setattr(os, "environ", os.environ | where)
    monkeypatch.setattr(torch_distributed, "DEVICE_BACKENDS", {"cpu": "gloo"})
    made: list[str] = []
    real = torch.distributed.new_group

    def new_group(backend: str) -> object:
        made.append(backend)
        return real(backend=backend)

    monkeypatch.setattr(torch.distributed, "new_group", new_group)
    collective = torch_distributed.TorchCollective()
    try:
        Ranks(collective).handshake({}, probe=torch.ones(1))
        assert made == ["gloo"]
        assert collective.start_allreduce_sum(torch.ones(3))().tolist() == [1.0] * 3
        assert made == ["gloo"]
    finally:
        collective.close()
