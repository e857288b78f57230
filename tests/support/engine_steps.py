"""Samples, networks and assertions for tests of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.networks import trained_weights

from aiperf_hpc.graph import BatchNorm, Graph
from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.replica.data.base import Batch, labelled_images
from aiperf_hpc.replica.engines.base import Network, NetworkState, RankEngine, RankNetwork
from aiperf_hpc.trial import Hyperparameters

ENGINES = ("tensorflow", "torch")
Arrays = Mapping[str, NDArray[Any]]
GRADIENTS_BETWEEN_PARTS = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)
"""For tests that compile parts of a network: PyTorch's compiler looks for gradients of what one
part gives the next, and hides its own warning of it where warnings are no errors."""


def hyperparameters(**changed: object) -> Hyperparameters:
    return Hyperparameters.model_validate({"batch_size": 8, "learning_rate": 0.05} | changed)


def momenta_of(network: Network) -> Weights:
    state = network.optimizer_state()
    return {key.removeprefix("momentum:"): array for key, array in state.items() if ":" in key}


def samples(graph: Graph, number: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.standard_normal((number, *graph.shapes["image"]), np.float32)


def labelled(graph: Graph, number: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    classes = graph.shapes[graph.output.name][0]
    return labelled_images(
        samples(graph, number, rng), rng.integers(0, classes, number).astype(np.int32)
    )


def outputs_of(network: Any, inputs: Arrays) -> NDArray[np.float32]:  # noqa: ANN401 -- internals
    """A network's output in inference mode; a softmax's inputs if it ends in one."""
    if not hasattr(network, "_inference"):
        tensors = network._inputs(inputs)
        return cast(
            "NDArray[np.float32]",
            network._functions._outputs(network._variables, tensors).numpy(),
        )
    network._show(evaluated=True)
    given = network._feed.inputs(Batch(inputs, {}), network._graph.inputs)
    output = network._inference(*network._lowered(given)).float()
    return cast("NDArray[np.float32]", output.detach().cpu().numpy())


def relative_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def assert_trains_by(
    network: Network, batch: Batch, loss: float, gradients: Weights, tolerance: float
) -> None:
    """Require a batch's loss and gradients, which are the momenta after a step of rate 1."""
    network.train_step(batch, 1.0)
    assert network.drain_training() == pytest.approx(loss, rel=1e-5)
    momenta = momenta_of(network)
    assert momenta.keys() == gradients.keys()
    for name, momentum in momenta.items():
        assert relative_error(-momentum, gradients[name]) < tolerance, name
    network.close()


def trained_by_more_than_rounding(graph: Graph) -> list[str]:
    """All parameters but biases that a normalisation takes away again: their gradients are 0."""
    normed = {n.inputs[0] for n in graph.nodes if isinstance(n.layer, BatchNorm)}
    return [name for name in graph.parameters if name.removesuffix("/bias") not in normed]


def given(network: RankNetwork, batch: Batch, share: float) -> list[NDArray[np.float32]]:
    """Copies of the buckets that a network gives, which may use their memory again."""
    buckets: list[NDArray[np.float32]] = []
    network.gradients(batch, share, lambda bucket: buckets.append(np.array(bucket)))
    return buckets


def network_of(
    engine: RankEngine, graph: Graph, weights: Weights, **changed: object
) -> RankNetwork:
    return engine.build(NetworkState(graph, weights, hyperparameters(**changed)))


def built(engine: RankEngine, graph: Graph, seed: int = 0, **changed: object) -> RankNetwork:
    """Build a network with weights as after some training."""
    return network_of(engine, graph, trained_weights(graph, np.random.default_rng(seed)), **changed)


def assert_equal(found: Weights, wanted: Weights, but: tuple[str, ...] = ()) -> None:
    """Compare arrays to the last bit, except those of some nodes."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        if name.split("/")[0] not in but:
            np.testing.assert_array_equal(found[name], array, name)
