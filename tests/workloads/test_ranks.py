"""Two ranks of the networks with normalisations get the mean of what each would get alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.detectors import BOXES, detector, maps_with_boxes
from tests.support.engine_steps import hyperparameters, labelled, momenta_of, relative_error
from tests.support.generated import some_of
from tests.support.rank_threads import followed

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import V1_5, resnet50
from aiperf_hpc.morphism.weights.weight_file import Weights, initial_weights
from aiperf_hpc.objective import CLASSIFICATION, Objective, detection
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.data.generated import GeneratedDataset
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState, RankEngine
from aiperf_hpc.replica.engines.torch import detection as torch_detection
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine

SAMPLES = 8
USED = hyperparameters(
    batch_size=SAMPLES, weight_decay=1e-3, weight_decay_in="loss", learning_rate=1.0
)


def residual() -> Graph:
    return resnet50((38, 38, 3), 7, base_width=3, blocks=(1, 1, 1, 1), version=V1_5)


@pytest.mark.parametrize("name", ["tensorflow", "torch"])
def test_ranks_get_the_mean_gradients_of_resnet50s_parts(name: str) -> None:
    graph = residual()
    data = some_of(labelled(graph, SAMPLES))
    together, alone = gradients(name, CLASSIFICATION, graph, data)
    for key in graph.parameters:
        assert relative_error(together[key], alone[key]) < 1e-4, key


@pytest.mark.parametrize("variant", ["fpn", "c4"])
def test_ranks_get_the_mean_gradients_of_a_detectors_parts(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All anchors and all regions are trained on, in one order: nothing is left to be drawn."""
    monkeypatch.setattr(torch_detection, "ANCHORS", 10_000)
    monkeypatch.setattr(torch, "randperm", torch.arange)
    graph = detector(variant=variant, regions_per_image=60)
    data = some_of(maps_with_boxes(SAMPLES))
    together, alone = gradients("torch", detection(BOXES[0]), graph, data)
    for key in graph.parameters:
        assert relative_error(together[key], alone[key]) < 1e-5, key


def gradients(
    name: str, objective: Objective, graph: Graph, data: GeneratedDataset
) -> tuple[Weights, Weights]:
    """Return those of the first batch by two ranks, and the mean of those of both its halves.

    The halves' are PyTorch's, whose network is built in less time.
    """
    weights = initial_weights(graph, np.random.default_rng(0))

    def made(name: str = name) -> RankEngine:
        return load_engine(name, 2, objective=objective)

    with followed(2, made, data) as own:
        network = LeadingEngine(made(), own).build(NetworkState(graph, weights, USED))
        batch = next(iter(LeadingDataset(data, own).train(1, SAMPLES, 0)))
        network.train_step(batch, 1.0)
        loss, together = network.drain_training(), momenta_of(network)
        network.close()
    halves, losses = [], []
    for rank in range(2):
        one = made("torch").build(NetworkState(graph, weights, USED))
        one.train_step(next(data.train(1, SAMPLES, 0, Part(rank, 2))), 1.0)
        losses.append(one.drain_training())
        halves.append(momenta_of(one))
        one.close()
    assert losses[0] != losses[1]
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    return together, {key: (halves[0][key] + halves[1][key]) / 2 for key in halves[0]}
