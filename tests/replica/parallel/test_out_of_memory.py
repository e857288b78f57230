"""A rank of the engine torch whose every allocation fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.replica.parallel.team import GRAPH, initial_state
from tests.replica.parallel.threads import Table, Threads
from tests.support.fakes import FakeDataset
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.torch.network import TorchNetwork
from aiperf_hpc.replica.parallel.collectives import PendingSum
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine, follow
from aiperf_hpc.replica.parallel.network_builder import Command, announce


class Tensors(Threads):
    """Sums tensors, too."""

    def start_allreduce_sum(self, buffer: Any) -> PendingSum:  # noqa: ANN401 -- a tensor
        return super().start_allreduce_sum(np.asarray(buffer))


def test_a_rank_without_memory_fails_the_trial_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table(2)
    ranks = [Tensors(table, rank, 2) for rank in range(2)]
    follower = threading.Thread(
        target=follow, args=(load_engine("torch", 1), FakeDataset(), ranks[1]), name="rank 1"
    )
    follower.start()
    try:
        engine = LeadingEngine(load_engine("torch", 1), ranks[0])
        dataset = LeadingDataset(FakeDataset(), ranks[0])
        network = engine.build(initial_state())
        first, second, *_ = dataset.train(1, 8, 0)
        before = network.weights()
        with monkeypatch.context() as patched:
            allocating = [(torch, "zeros"), (torch, "empty_like"), (TorchNetwork, "_outputs")]
            for owner, name in allocating:
                patched.setattr(owner, name, full_on(follower, getattr(owner, name)))
            with pytest.raises(EngineError, match="1 of 2 ranks failed; see their log"):
                network.train_step(first, 0.1)
        after = network.weights()
        for name in GRAPH.parameters:
            np.testing.assert_array_equal(after[name], before[name])
        # Both ranks are at the same batch, and continue.
        network.train_step(second, 0.1)
        network.close()
        announce(ranks[0], Command.END)
    except BaseException:
        table.barrier.abort()
        raise
    finally:
        follower.join(PATIENCE_SECONDS)
    assert not follower.is_alive()


def full_on(thread: threading.Thread, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTorch that runs out of memory in one thread."""

    def allocate(*given: Any, **named: Any) -> Any:  # noqa: ANN401 -- any function's
        if threading.current_thread() is thread:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(*given, **named)

    return allocate
