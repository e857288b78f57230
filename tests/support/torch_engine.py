"""Networks of the torch engine, placed as a test needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tests.support.engine_steps import hyperparameters
from tests.support.networks import trained_weights

from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.engines.torch.network import Placement, TorchNetwork

PLAIN = Placement(torch.device("cpu"), cores=1, compiled=False)


def compiled(backend: Any, **options: Any) -> Placement:  # noqa: ANN401 -- a placement's own
    """Return the CPU, with networks compiled by a back end."""
    return PLAIN._replace(compiled=True, backend=backend, **options)


def torch_network(
    graph: Graph, placement: Placement = PLAIN, seed: int = 0, **used: object
) -> TorchNetwork:
    weights = trained_weights(graph, np.random.default_rng(seed))
    return TorchNetwork(graph, weights, hyperparameters(**used), None, CLASSIFICATION, placement)
