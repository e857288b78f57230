"""Networks of the torch engine, placed as a test needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tests.support.engine_steps import hyperparameters
from tests.support.networks import trained_weights
from torch import Tensor, fx

from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.engines.torch.network import Placement, TorchNetwork


class RecordingBackend:
    """A back end of ``torch.compile`` that records what it compiles, and executes it as it is."""

    def __init__(self) -> None:
        self.compiled: list[object] = []
        """Of each module: what the compiled code is found again by."""
        self.events: list[str] = []
        """``compiled`` and ``executed``, in their order."""
        self.given: list[Sequence[Tensor]] = []
        """The arguments of each execution."""

    def __call__(self, module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        shapes = [(t.shape, t.stride(), t.dtype, t.requires_grad) for t in inputs]
        self.compiled.append((module.code, torch.is_grad_enabled(), shapes))
        self.events.append("compiled")

        def execute(*given: Tensor) -> object:
            self.events.append("executed")
            self.given.append(given)
            return module.forward(*given)

        return execute


PLAIN = Placement(torch.device("cpu"), cores=1, compiled=False)


def compiled(backend: Any, **options: Any) -> Placement:  # noqa: ANN401 -- a placement's own
    """Return the CPU, with networks compiled by a back end."""
    return PLAIN._replace(compiled=True, backend=backend, **options)


def torch_network(
    graph: Graph, placement: Placement = PLAIN, seed: int = 0, **used: object
) -> TorchNetwork:
    weights = trained_weights(graph, np.random.default_rng(seed))
    return TorchNetwork(
        NetworkState(graph, weights, hyperparameters(**used)), CLASSIFICATION, placement
    )
