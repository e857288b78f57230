"""Two ranks of a detector get the mean of the gradients that each would get alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.detectors import BOXES, detector, maps_with_boxes
from tests.support.engine_steps import hyperparameters, momenta_of, relative_error
from tests.support.generated import some_of
from tests.support.rank_threads import followed

from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import detection
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState, RankEngine
from aiperf_hpc.replica.engines.torch import detection as torch_detection
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine

SAMPLES = 8
USED = hyperparameters(
    batch_size=SAMPLES, weight_decay=1e-3, weight_decay_in="loss", learning_rate=1.0
)


@pytest.mark.parametrize("variant", ["fpn", "c4"])
def test_ranks_get_the_mean_gradients_of_a_detectors_parts(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All anchors and all regions are trained on, in one order: nothing is left to be drawn."""
    monkeypatch.setattr(torch_detection, "ANCHORS", 10_000)
    monkeypatch.setattr(torch, "randperm", torch.arange)
    graph = detector(variant=variant, regions_per_image=60)
    data = some_of(maps_with_boxes(SAMPLES))
    state = NetworkState(graph, initial_weights(graph, np.random.default_rng(0)), USED)

    def made() -> RankEngine:
        return load_engine("torch", 2, objective=detection(BOXES[0]))

    with followed(2, made, data) as own:
        network = LeadingEngine(made(), own).build(state)
        batch = next(iter(LeadingDataset(data, own).train(1, SAMPLES, 0)))
        network.train_step(batch, 1.0)
        loss, together = network.drain_training(), momenta_of(network)
        network.close()
    halves, losses = [], []
    for rank in range(2):
        one = made().build(state)
        one.train_step(next(data.train(1, SAMPLES, 0, Part(rank, 2))), 1.0)
        losses.append(one.drain_training())
        halves.append(momenta_of(one))
        one.close()
    assert losses[0] != losses[1]
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    for key in graph.parameters:
        assert relative_error(together[key], (halves[0][key] + halves[1][key]) / 2) < 1e-5, key
