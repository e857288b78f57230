"""CosmoFlow's network: its sizes and operations, and what it computes, after the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.engine_steps import (
    ENGINES,
    assert_trains_by,
    hyperparameters,
    outputs_of,
    relative_error,
)
from tests.support.generated import some_of
from tests.support.rank_threads import followed
from tests.support.torch_counts import counted_apart, executed_apart
from tests.support.torch_network import channels_first, gradients_of, to_tensors
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.config import CosmoFlowConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Weights, initial_weights
from aiperf_hpc.objective import regression
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState, RankEngine
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine
from aiperf_hpc.workloads.networks.volumes import cosmoflow


def network(
    shape: tuple[int, ...] = (128, 128, 128, 4), outputs: int = 4, /, **settings: object
) -> Graph:
    return cosmoflow(shape, outputs, CosmoFlowConfig.model_validate(settings))


@pytest.mark.parametrize(
    ("side", "kernel", "parameters", "forward", "training"),
    [
        (32, 3, 4_778_788, 1_075_986_944, 3_001_468_416),
        (64, 3, 5_237_540, 8_607_777_280, 24_011_392_512),
        (128, 3, 8_907_556, 68_862_099_968, 192_090_785_280),
        (128, 2, 5_597_604, 20_409_500_160, 56_933_533_184),
    ],
)
def test_sizes_and_operations_are_the_published_ones(
    side: int, kernel: int, parameters: int, forward: int, training: int
) -> None:
    """8,907,556 parameters are published for 128³; the rest is PyTorch's count of the reference."""
    graph = network((side, side, side, 4), kernel_size=kernel)
    assert graph.parameter_count == parameters
    assert counted_apart(graph) == (forward, training)


@pytest.mark.parametrize(
    "graph",
    [
        network((64, 32, 96, 4)),
        network((160, 32, 32, 4), kernel_size=2),
        network((24, 40, 8, 3), 2, conv_layers=3, width=5),
        network((48, 48, 48, 1), 7, conv_layers=4, kernel_size=2, width=6),
    ],
    ids=["flat", "long", "three convolutions", "four convolutions"],
)
def test_operations_of_any_size_are_pytorchs(graph: Graph) -> None:
    assert executed_apart(graph) == counted_apart(graph)


@pytest.mark.parametrize("shape", [(128, 128, 130, 4), (16, 16, 16, 4), (64, 64, 4)])
def test_a_volume_that_cannot_be_halved_as_often_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="each side must be a multiple of 32.*halves it 5 times"):
        network(shape)


SIDE = 8


def small(**settings: object) -> Graph:
    """Two convolutions of 3 and 6 channels; nothing is dropped."""
    settings = {"conv_layers": 2, "width": 3, "dropout": 0.0, **settings}
    return network((SIDE, SIDE, SIDE, 4), **settings)


def reference(volumes: Tensor, tensors: dict[str, Tensor], kernel: int) -> Tensor:
    """The network as the reference writes it, by PyTorch's functions, channels first.

    ``same`` pads an even kernel behind alone; a flatten goes over depth, height, width, channels.
    """
    x = volumes
    for name in ("conv1", "conv2"):
        weight = tensors[f"{name}/kernel"]
        x = functional.pad(x, ((kernel - 1) // 2, kernel // 2) * 3)
        x = functional.leaky_relu(functional.conv3d(x, weight, tensors[f"{name}/bias"]), 0.3)
        x = functional.max_pool3d(x, 2)
    x = x.movedim(1, -1).flatten(1)
    for name in ("dense1", "dense2"):
        x = functional.leaky_relu(x @ tensors[f"{name}/kernel"] + tensors[f"{name}/bias"], 0.3)
    return 1.2 * torch.tanh(x @ tensors["dense3/kernel"] + tensors["dense3/bias"])


def weights_of(graph: Graph) -> Weights:
    return initial_weights(graph, np.random.default_rng(5))


def a_batch(samples: int = 6) -> Batch:
    rng = np.random.default_rng(0)
    volumes = np.log1p(rng.poisson(2.0, (samples, SIDE, SIDE, SIDE, 4))).astype(np.float32)
    return Batch(
        {"volume": volumes}, {"values": rng.uniform(-1, 1, (samples, 4)).astype(np.float32)}
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kernel", "l2"), [(3, 0.0), (2, 0.05)])
def test_outputs_and_gradients_are_the_references(engine: str, kernel: int, l2: float) -> None:
    """The gradients are those of the penalty too."""
    graph = small(kernel_size=kernel, l2=l2)
    weights, batch = weights_of(graph), a_batch()
    built = load_engine(engine, 2, objective=regression(4)).build(
        NetworkState(graph, weights, hyperparameters())
    )
    tensors = to_tensors(graph, weights)
    outputs = reference(channels_first(batch.inputs["volume"]), tensors, kernel)
    assert relative_error(outputs_of(built, batch.inputs), outputs.detach().numpy()) < 1e-5
    loss = functional.mse_loss(outputs, torch.from_numpy(batch.targets["values"]))
    penalty = sum(tensors[f"{name}/kernel"].square().sum() for name in ("dense1", "dense2"))
    wanted = gradients_of(loss + l2 * penalty, graph, tensors)
    assert_trains_by(built, batch, loss.item(), wanted, 1e-4)


@pytest.mark.parametrize("name", ENGINES)
def test_ranks_get_the_gradients_of_one_process(name: str) -> None:
    """Three ranks, of 6 samples in one step and of 4 in the next: the penalty counts once."""
    graph, data = small(l2=0.05), some_of(a_batch(10))
    used = hyperparameters().model_copy(update={"batch_size": 6})

    def made() -> RankEngine:
        return load_engine(name, 2, objective=regression(4))

    with followed(3, made, data) as own:
        alone = made().build(NetworkState(graph, weights_of(graph), used))
        together = LeadingEngine(made(), own).build(NetworkState(graph, weights_of(graph), used))
        whole, parts = data.train(1, 6, 0), LeadingDataset(data, own).train(1, 6, 0)
        for batch, part in zip(whole, parts, strict=True):
            alone.train_step(batch, 0.1)
            together.train_step(part, 0.1)
        assert together.drain_training() == pytest.approx(alone.drain_training(), rel=1e-5)
        found, wanted = together.optimizer_state(), alone.optimizer_state()
        assert found.keys() == wanted.keys()
        for slot in wanted:
            assert relative_error(found[slot], wanted[slot]) < 1e-4, slot
        together.close()
        alone.close()
