"""Every engine computes every layer as PyTorch's own functions do, and trains through it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.engine_steps import (
    ENGINES,
    built,
    labelled,
    momenta_of,
    network_of,
    samples,
)
from tests.support.networks import flat_images, sequential, trained_weights
from tests.support.torch_network import channels_first, to_tensors
from tests.support.torch_network import gradients as torch_gradients
from tests.support.torch_network import run as torch_run

from aiperf_hpc.graph import Graph, Layer, Node, Shape, layers
from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.replica.data.base import Batch, labelled_images
from aiperf_hpc.replica.engines.base import RankEngine, RankNetwork
from aiperf_hpc.replica.engines.tensorflow import steps as tensorflow_steps
from aiperf_hpc.replica.engines.tensorflow.layers import OPERATIONS
from aiperf_hpc.replica.engines.torch import regions
from aiperf_hpc.replica.engines.torch.graph import BUILDERS, build_module
from aiperf_hpc.replica.tensorflow_import import tf

IMAGE, VOLUME = (7, 6, 5), (5, 6, 7, 3)


def channels_last(found: torch.Tensor) -> Array:
    tensor = found.detach()
    last: Array = (tensor.movedim(1, -1) if tensor.ndim > 3 else tensor).numpy()
    return last


def one_layer(layer: Layer, shape: Shape) -> Graph:
    """It alone, between samples and nothing; what takes several inputs takes the samples twice."""
    inputs = ("image",) * layer.inputs[0]
    return Graph((Node("image", layers.Input(shape)), Node("layer", layer, inputs)))


def executed(
    engine: str, graph: Graph, weights: Weights, inputs: Array, *, training: bool = False
) -> Array:
    """What the layers of an engine give, without a loss; a softmax is left to the loss."""
    if engine == "tensorflow":
        variables = {name: tf.Variable(array) for name, array in weights.items()}
        found = tensorflow_steps.execute(
            graph, variables, {"image": inputs}, "fp32", training=training
        )
        return np.array(found.numpy())
    module = build_module(graph, to_tensors(graph, weights), training=training, on_cpu=True)
    return channels_last(module(channels_first(inputs)))


CASES: list[tuple[Layer, Shape]] = [
    (layers.Conv2D(4, 1), IMAGE),
    (layers.Conv2D(4, 3), IMAGE),
    (layers.Conv2D(4, 5, 2), IMAGE),
    *[(layers.Conv3D(4, k, s), VOLUME) for k in (1, 2, 3, 4) for s in (1, 2)],
    (layers.Conv3D(4, 3, bias=True), VOLUME),
    (layers.Conv3D(4, 3), (1, 2, 1, 3)),
    (layers.Dense(4), (6,)),
    (layers.BatchNorm(), (6,)),
    (layers.BatchNorm(), IMAGE),
    (layers.BatchNorm(), VOLUME),
    *[
        (layer, shape)
        for layer in (layers.ReLU(), layers.LeakyReLU(), layers.Tanh())
        for shape in ((6,), IMAGE)
    ],
    (layers.Scale(1.2), VOLUME),
    (layers.Dense(4, l2=0.1), (6,)),
    (layers.LeakyReLU(0.01), VOLUME),
    (layers.LeakyReLU(0.0), VOLUME),
    (layers.Add(), VOLUME),
    (layers.MaxPool2D(3, 2), IMAGE),
    *[(layers.MaxPool2D(k, s, same=True), IMAGE) for k in (1, 3, 5) for s in (1, 2, 3)],
    (layers.MaxPool2D(3, 2, same=True), (1, 2, 3)),
    *[(layers.MaxPool3D(k, s), VOLUME) for k in (2, 3) for s in (1, 2, 3)],
    (layers.MaxPool3D(2, 2), (4, 6, 8, 3)),
    (layers.MaxPool3D(2, 2), (1, 1, 1, 3)),
    *[
        (layers.DepthwiseConv2D(k, s, d), IMAGE)
        for k, s, d in ((3, 1, 1), (3, 2, 1), (5, 1, 2), (3, 2, 3))
    ],
    *[(layers.AtrousConv2D(4, k, d), IMAGE) for k, d in ((1, 6), (3, 2), (3, 9))],
    *[(layers.Conv2D(4, k, s, bias=True), IMAGE) for k in (1, 3) for s in (1, 2)],
    *[
        (layers.ConvTranspose2D(4, k, s), IMAGE)
        for k, s in ((1, 1), (3, 1), (3, 2), (5, 2), (5, 3))
    ],
    *[
        (layer, shape)
        for layer in (layers.ChannelAffine(), layers.Concat())
        for shape in ((6,), IMAGE, VOLUME)
    ],
    (layers.Concat(), (4, 6)),
    (layers.ImagePool2D(), IMAGE),
    (layers.Tile(2, 3), (1, 1, 5)),
    (layers.GlobalAveragePool2D(), IMAGE),
    (layers.Flatten(), (6,)),
    (layers.Flatten(), IMAGE),
    (layers.Flatten(), VOLUME),
    (layers.Dropout(0.5), (6,)),
    (layers.Dropout(0.5), VOLUME),
]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_a_layer_gives_what_pytorchs_function_gives(name: str, layer: Layer, shape: Shape) -> None:
    """All samples below zero, too: padding must be no maximum. Samples are not written to."""
    graph, rng = one_layer(layer, shape), np.random.default_rng(0)
    weights = trained_weights(graph, rng)
    noise = rng.standard_normal((3, *shape), np.float32)
    for inputs in (noise, noise - np.float32(10.0)):
        kept, tensors = inputs.copy(), to_tensors(graph, weights)
        wanted = channels_last(torch_run(graph, tensors, channels_first(inputs))["layer"])
        found = executed(name, graph, weights, inputs)
        assert found.shape[1:] == graph.shapes["layer"]
        executed(name, graph, weights, inputs, training=True)
        np.testing.assert_array_equal(inputs, kept)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_every_layer_is_known_to_both_engines_and_tried_here() -> None:
    """But for what stands at both ends of every network in the contract's other tests, and for what
    reads integers (test_objectives.py). Detectors are PyTorch's alone (test_detection.py)."""
    of_detectors = set(regions.BUILDERS)
    assert set(BUILDERS) == set(OPERATIONS) | of_detectors == set(layers.LAYERS.values())
    elsewhere = {layers.Input, layers.Softmax, layers.Embedding} | of_detectors
    assert {type(layer) for layer, _ in CASES} == set(layers.LAYERS.values()) - elsewhere


def test_the_gradient_of_a_pooling_goes_only_to_the_maximum(engine: RankEngine) -> None:
    """TensorFlow without oneDNN gives it to all within 1e-5 of the largest."""
    graph = sequential(
        image=layers.Input((4, 4, 4, 1)),
        conv=layers.Conv3D(1, 1),
        pool=layers.MaxPool3D(2, 2),
        flat=layers.Flatten(),
        logits=layers.Dense(2),
        probabilities=layers.Softmax(),
    )
    weights = trained_weights(graph, np.random.default_rng(3))
    weights["conv/kernel"][...] = 1.0
    images = np.zeros((2, 4, 4, 4, 1), np.float32)
    images[:, ::2, ::2, ::2] = 1.0
    images[:, 1::2, 1::2, 1::2] = 1.0 + 5e-6
    batch = labelled_images(images, np.array([0, 1], np.int32))
    _, gradients = torch_gradients(graph, weights, batch)
    network = network_of(engine, graph, weights)
    network.train_step(batch, 1.0)
    (found,) = momenta_of(network)["conv/kernel"].ravel().tolist()
    assert -found == pytest.approx(gradients["conv/kernel"].item(), rel=1e-4)


DROPPED: Graph = one_layer(layers.Dropout(0.3), (40, 50))


@pytest.mark.parametrize("name", ENGINES)
def test_a_dropout_drops_its_share_and_keeps_the_mean(name: str) -> None:
    """Of 200,000 elements, whose standard deviations of what is counted are a thousandth."""
    inputs = np.full((100, 40, 50), 2.0, np.float32)
    found = executed(name, DROPPED, {}, inputs, training=True)
    dropped = found == 0.0
    assert dropped.mean() == pytest.approx(0.3, abs=6e-3)
    assert found.mean() == pytest.approx(2.0, abs=2e-2)
    np.testing.assert_allclose(found[~dropped], 2.0 / 0.7, rtol=1e-6)
    # Each element by itself: not whole samples, rows or columns.
    for axes in ((1, 2), (0, 1), (0, 2)):
        assert 0.0 < dropped.mean(axis=axes).min() < dropped.mean(axis=axes).max() < 1.0
    again = executed(name, DROPPED, {}, inputs, training=True)
    assert 0.4 < (dropped == (again == 0.0)).mean() < 0.7  # 0.7² + 0.3² by chance.
    nothing = one_layer(layers.Dropout(0.0), (40, 50))
    np.testing.assert_array_equal(executed(name, nothing, {}, inputs, training=True), inputs)


@pytest.mark.parametrize("name", ENGINES)
def test_a_dropout_draws_from_the_frameworks_generator(name: str) -> None:
    """Which has a seed, where a trial gives the engine none."""
    inputs = samples(DROPPED, 5, np.random.default_rng(5))
    seed = tf.random.set_seed if name == "tensorflow" else torch.manual_seed
    drawn: list[NDArray[np.float32]] = []
    for number in (1, 1, 2):
        seed(number)
        drawn.append(executed(name, DROPPED, {}, inputs, training=True))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_a_network_with_dropout_is_trained_evaluated_and_measured(engine: RankEngine) -> None:
    """Its training loss is another every time, its validation loss is not."""
    graph = flat_images()
    network = built(engine, graph, 6)
    network.warm(16)
    batch = labelled(graph, 16)
    assert np.isfinite(network.moments(batch)).all()
    losses = set()
    for _ in range(3):
        network.train_step(batch, 0.0)
        losses.add(network.drain_training())
    assert len(losses) == 3
    first = _evaluated(network, batch)
    assert _evaluated(network, batch) == first
    for _ in range(60):
        network.train_step(batch, 0.05)
    assert _evaluated(network, batch) < 0.5 * first


def _evaluated(network: RankNetwork, batch: Batch) -> float:
    network.evaluate_step(batch)
    return network.drain_evaluation().mean_loss
