from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.networks import sequential, trained_weights, two_stems
from tests.support.torch_network import run, to_tensors
from torch import Tensor

from aiperf_hpc.graph import (
    Add,
    Conv2D,
    Dense,
    Flatten,
    Graph,
    Input,
    LeakyReLU,
    Node,
    ReLU,
    Shape,
    Softmax,
)
from aiperf_hpc.morphism.weights.calibration import channel_moments
from aiperf_hpc.morphism.weights.weight_file import Array, Weights


def noise(shape: Shape, samples: int, rng: np.random.Generator) -> Tensor:
    """What a normalised dataset is taken for: mean 0, variance 1, independent."""
    height, width, channels = shape
    return torch.from_numpy(rng.standard_normal((samples, channels, height, width)))


def executed(graph: Graph, weights: Weights, inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return run(graph, to_tensors(graph, weights, torch.float64), inputs, training=True)


@pytest.mark.parametrize(
    ("name", "mean_tolerance", "deviation_tolerance"),
    [
        ("image", 0.01, 0.01),
        ("image_relu", 0.01, 0.01),
        ("third_conv", 0.02, 0.02),  # 1 x 1: no border.
        ("left_conv", 0.02, 0.12),  # 3 x 3: zeros come in at the border.
        ("norm", 1e-4, 1e-4),
        ("relu", 0.1, 0.2),  # What is rectified is not quite normal.
        ("loop_norm", 1e-4, 1e-4),
        ("loop_relu", 0.25, 0.4),  # The addends are not independent.
        ("down_relu", 0.15, 0.3),
    ],
)
def test_moments_are_near_those_that_data_has(
    name: str, mean_tolerance: float, deviation_tolerance: float
) -> None:
    """Means in measured deviations, deviations in themselves; of every channel."""
    graph, rng = two_stems((12, 12, 2), 16), np.random.default_rng(0)
    weights = trained_weights(graph, rng)
    output = executed(graph, weights, noise((12, 12, 2), 256, rng))[name]
    mean, deviation = output.mean((0, 2, 3)).numpy(), output.std((0, 2, 3)).numpy()
    moments = channel_moments(graph, weights, name)
    assert moments.mean.shape == moments.variance.shape == graph.shapes[name][-1:]
    assert np.abs((moments.mean - mean) / deviation).max() < mean_tolerance
    assert np.abs(np.sqrt(moments.variance) / deviation - 1).max() < deviation_tolerance


def test_the_moments_of_a_dense_layer_have_its_bias() -> None:
    graph = sequential(samples=Input((2,)), dense=Dense(2), probabilities=Softmax())
    weights: dict[str, Array] = {
        "dense/kernel": np.array([[1.0, 0.0], [2.0, 3.0]], np.float32),
        "dense/bias": np.array([0.5, -4.0], np.float32),
    }
    moments = channel_moments(graph, weights, "dense")
    np.testing.assert_allclose(moments.mean, [0.5, -4.0])
    np.testing.assert_allclose(moments.variance, [1 + 4, 9])


def test_a_rectified_normal_variable_has_its_textbook_moments() -> None:
    graph = sequential(image=Input((2, 2, 1)), relu=ReLU())
    moments = channel_moments(graph, {}, "relu")
    np.testing.assert_allclose(moments.mean, [1 / np.sqrt(2 * np.pi)])
    np.testing.assert_allclose(moments.variance, [0.5 - 0.5 / np.pi])


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, 2.0])
def test_a_leaky_relu_of_normal_variables_has_the_moments_that_samples_have(slope: float) -> None:
    """Of some means and variances: a million samples each, to three digits."""
    graph = sequential(samples=Input((1,)), dense=Dense(4), leaky=LeakyReLU(slope))
    scale, shift = np.array([1.0, 2.0, 0.5, 3.0]), np.array([0.0, -1.0, 2.0, 5.0])
    weights: dict[str, Array] = {
        "dense/kernel": scale[None].astype(np.float32),
        "dense/bias": shift.astype(np.float32),
    }
    normal = shift + scale * np.random.default_rng(0).standard_normal((1_000_000, 1))
    wanted = np.where(normal > 0, normal, slope * normal)
    found = channel_moments(graph, weights, "leaky")
    np.testing.assert_allclose(found.mean, wanted.mean(axis=0), atol=5e-3)
    np.testing.assert_allclose(found.variance, wanted.var(axis=0), rtol=1e-2)


def test_a_flatten_gives_the_moments_of_its_channels_one_pixel_after_another() -> None:
    graph = sequential(image=Input((2, 3, 2)), conv=Conv2D(2, 1), flat=Flatten())
    kernel = np.array([[3.0, 0.0], [4.0, 1.0]], np.float32).reshape(1, 1, 2, 2)
    moments = channel_moments(graph, {"conv/kernel": kernel}, "flat")
    np.testing.assert_allclose(moments.mean, np.zeros(12))
    np.testing.assert_allclose(moments.variance, [25.0, 1.0] * 6)


def test_a_channel_that_never_varies_has_finite_moments() -> None:
    graph, rng = two_stems(), np.random.default_rng(0)
    weights = dict(trained_weights(graph, rng))
    weights["norm/gamma"] = np.zeros_like(weights["norm/gamma"])
    weights["norm/beta"] = np.array([-1.0, 0.0, 2.0], np.float32)
    moments = channel_moments(graph, weights, "relu")
    np.testing.assert_allclose(moments.mean, [0.0, 0.0, 2.0], atol=1e-6)
    np.testing.assert_allclose(moments.variance, 0.0, atol=1e-6)


def test_moments_of_a_deep_sum_need_no_deep_recursion() -> None:
    nodes = [Node("image", Input((1, 1, 1))), Node("n0", Conv2D(1, 1), ("image",))]
    nodes += [Node(f"n{n}", Add(), (f"n{n - 1}", "image")) for n in range(1, 1001)]
    weights = {"n0/kernel": np.full((1, 1, 1, 1), 3.0, np.float32)}
    moments = channel_moments(Graph(tuple(nodes)), weights, "n1000")
    np.testing.assert_allclose(moments.variance, [9.0 + 1000])
