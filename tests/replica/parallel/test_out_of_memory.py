"""A rank of the engine torch whose every allocation fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.replica.parallel.team import GRAPH, initial_state
from tests.support.fakes import FakeDataset
from tests.support.rank_threads import followed

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.torch.network import TorchNetwork
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine


def test_a_rank_without_memory_fails_the_trial_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = partial(load_engine, "torch", 1)
    with followed(2, made, FakeDataset()) as own:
        network = LeadingEngine(made(), own).build(initial_state())
        first, second, *_ = LeadingDataset(FakeDataset(), own).train(1, 8, 0)
        before = network.weights()
        with monkeypatch.context() as patched:
            allocating = [(torch, "zeros"), (torch, "empty_like"), (TorchNetwork, "_outputs")]
            for owner, name in allocating:
                patched.setattr(owner, name, full_on_followers(getattr(owner, name)))
            with pytest.raises(EngineError, match="1 of 2 ranks failed; see their log"):
                network.train_step(first, 0.1)
        after = network.weights()
        for name in GRAPH.parameters:
            np.testing.assert_array_equal(after[name], before[name])
        # Both ranks are at the same batch, and continue.
        network.train_step(second, 0.1)
        network.close()


def full_on_followers(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTorch that runs out of memory in all threads but rank 0's."""

    def allocate(*given: Any, **named: Any) -> Any:  # noqa: ANN401 -- any function's
        if threading.current_thread() is not threading.main_thread():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(*given, **named)

    return allocate
