"""Small networks whose shapes hold every case that a morphism can meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from aiperf_hpc.config import CosmoFlowConfig, DeepCAMConfig
from aiperf_hpc.graph import (
    Add,
    BatchNorm,
    Conv2D,
    Conv3D,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePool2D,
    Graph,
    Input,
    Layer,
    LeakyReLU,
    MaxPool2D,
    MaxPool3D,
    Node,
    ReLU,
    Shape,
    Softmax,
    Tanh,
)
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Morphism
from aiperf_hpc.morphism.resnet import V1_5, resnet50
from aiperf_hpc.morphism.weights.weight_file import Array, Weights, initial_weights
from aiperf_hpc.workloads.networks.deepcam import deepcam as deepcam_network
from aiperf_hpc.workloads.networks.volumes import cosmoflow as cosmoflow_network

if TYPE_CHECKING:  # Ranks that are no tests import this too.
    import pytest


def sequential(**layers: Layer) -> Graph:
    """Return a chain of layers by the names of their nodes."""
    names = (None, *layers)
    return Graph(
        tuple(
            Node(name, layer, () if source is None else (source,))
            for source, (name, layer) in zip(names, layers.items(), strict=False)
        )
    )


def rng(seed: int = 0) -> np.random.Generator:
    """Return a generator that is the same every time."""
    return np.random.default_rng(seed)


def plain(input_shape: Shape = (4, 4, 3)) -> Graph:
    """Nothing but a convolution: no ReLU, no channels that may widen, no kernel to grow."""
    return sequential(image=Input(input_shape), conv=Conv2D(2, 7))


def residual(input_shape: Shape = (9, 8, 3), width: int = 4, classes: int = 5) -> Graph:
    """A max-pool, an identity block, a strided block, a hidden dense layer."""
    return Graph(
        (
            Node("image", Input(input_shape)),
            Node("stem_conv", Conv2D(width, 3), ("image",)),
            Node("stem_norm", BatchNorm(), ("stem_conv",)),
            Node("stem_relu", ReLU(), ("stem_norm",)),
            Node("stem_pool", MaxPool2D(3, 2), ("stem_relu",)),
            Node("one_conv_a", Conv2D(width + 1, 1), ("stem_pool",)),
            Node("one_norm_a", BatchNorm(), ("one_conv_a",)),
            Node("one_relu_a", ReLU(), ("one_norm_a",)),
            Node("one_conv_b", Conv2D(width, 3), ("one_relu_a",)),
            Node("one_norm_b", BatchNorm(), ("one_conv_b",)),
            Node("one_add", Add(), ("one_norm_b", "stem_pool")),
            Node("one_relu", ReLU(), ("one_add",)),
            Node("two_conv", Conv2D(2 * width, 5, 2), ("one_relu",)),
            Node("two_norm", BatchNorm(), ("two_conv",)),
            Node("two_shortcut", Conv2D(2 * width, 1, 2), ("one_relu",)),
            Node("two_add", Add(), ("two_norm", "two_shortcut")),
            Node("two_relu", ReLU(), ("two_add",)),
            Node("pool", GlobalAveragePool2D(), ("two_relu",)),
            Node("hidden", Dense(7), ("pool",)),
            Node("hidden_norm", BatchNorm(), ("hidden",)),
            Node("hidden_relu", ReLU(), ("hidden_norm",)),
            Node("logits", Dense(classes), ("hidden_relu",)),
            Node("probabilities", Softmax(), ("logits",)),
        )
    )


def two_stems(input_shape: Shape = (6, 6, 2), width: int = 3) -> Graph:
    """Convolutions that read the image side by side, one behind a ReLU; one ReLU read twice."""
    return Graph(
        (
            Node("image", Input(input_shape)),
            Node("image_relu", ReLU(), ("image",)),
            Node("left_conv", Conv2D(width, 3), ("image",)),
            Node("right_conv", Conv2D(width, 1), ("image_relu",)),
            Node("third_conv", Conv2D(width, 1), ("image",)),
            Node("total", Add(), ("left_conv", "right_conv", "third_conv")),
            Node("norm", BatchNorm(), ("total",)),
            Node("relu", ReLU(), ("norm",)),
            Node("loop_conv", Conv2D(width, 3), ("relu",)),
            Node("loop_norm", BatchNorm(), ("loop_conv",)),
            Node("loop_add", Add(), ("relu", "loop_norm", "relu")),
            Node("loop_relu", ReLU(), ("loop_add",)),
            Node("down_conv", Conv2D(2 * width, 3, 3), ("loop_relu",)),
            Node("down_norm", BatchNorm(), ("down_conv",)),
            Node("down_relu", ReLU(), ("down_norm",)),
            Node("pool", GlobalAveragePool2D(), ("down_relu",)),
            Node("logits", Dense(4), ("pool",)),
            Node("probabilities", Softmax(), ("logits",)),
        )
    )


def volumes(input_shape: Shape = (7, 6, 9, 2), width: int = 4) -> Graph:
    """Convolutions of volumes: even and odd kernels, strides, with a bias and without."""
    return Graph(
        (
            Node("image", Input(input_shape)),
            Node("one", Conv3D(width, 3, bias=True), ("image",)),
            Node("one_relu", LeakyReLU(0.3), ("one",)),
            Node("one_pool", MaxPool3D(2, 2), ("one_relu",)),
            Node("two", Conv3D(width + 1, 2), ("one_pool",)),
            Node("two_norm", BatchNorm(), ("two",)),
            Node("two_tanh", Tanh(), ("two_norm",)),
            Node("three", Conv3D(width, 3, 2, bias=True), ("two_tanh",)),
            Node("shortcut", Conv3D(width, 1, 2), ("two_tanh",)),
            Node("sum", Add(), ("three", "shortcut")),
            Node("sum_relu", LeakyReLU(0.1), ("sum",)),
            Node("sum_pool", MaxPool3D(3, 1), ("sum_relu",)),
            Node("flat", Flatten(), ("sum_pool",)),
            Node("hidden", Dense(7), ("flat",)),
            Node("hidden_relu", LeakyReLU(), ("hidden",)),
            Node("logits", Dense(4), ("hidden_relu",)),
            Node("probabilities", Softmax(), ("logits",)),
        )
    )


def flat_images() -> Graph:
    """An image as a vector, of which half is dropped in training."""
    return sequential(
        image=Input((5, 4, 3)),
        conv=Conv2D(4, 3),
        norm=BatchNorm(),
        relu=ReLU(),
        flat=Flatten(),
        dropped=Dropout(0.5),
        hidden=Dense(16),
        hidden_tanh=Tanh(),
        logits=Dense(4),
        probabilities=Softmax(),
    )


def cosmoflow(side: int = 32, kernel: int = 3) -> Graph:
    """The network of MLPerf HPC's CosmoFlow on volumes of side³ of four channels."""
    settings = CosmoFlowConfig.model_validate({"kernel_size": kernel})
    return cosmoflow_network((side, side, side, 4), 4, settings)


def deepcam(image: Shape = (32, 48, 5), width: int = 4, middle_blocks: int = 1) -> Graph:
    """The network of MLPerf HPC's DeepCAM, by default an eighth as wide and with one block."""
    settings = DeepCAMConfig(width=width, middle_blocks=middle_blocks)
    return deepcam_network(image, 3, settings)


def thin_resnet50() -> Graph:
    """All of ResNet-50's nodes at 1/32 of its width, on 16 x 16 images."""
    return resnet50((16, 16, 3), 6, stem="cifar", base_width=2)


def thin_resnet50_with_pooling() -> Graph:
    """The same with the stem for large images, on images that are not square."""
    return resnet50((37, 32, 3), 6, stem="imagenet", base_width=2)


def thin_resnet50_v15() -> Graph:
    """ResNet-50 v1.5 in the same width, on images that are not square."""
    return resnet50((37, 32, 3), 6, base_width=2, version=V1_5)


SMALL: tuple[Callable[[], Graph], ...] = (residual, two_stems)
THIN: tuple[Callable[[], Graph], ...] = (thin_resnet50, thin_resnet50_with_pooling)


def random_chain(graph: Graph, depth: int, rng: np.random.Generator) -> list[Morphism]:
    """Draw ``depth`` morphisms of random kinds, each of what the one before it made."""
    chain: list[Morphism] = []
    for _ in range(depth):
        kind = sorted(MORPHISMS)[int(rng.integers(len(MORPHISMS)))]
        chain.append(MORPHISMS[kind].sample(graph, rng))
        graph = chain[-1].child(graph)
    return chain


def noted_children(patch: pytest.MonkeyPatch) -> list[Graph]:
    """Return the list of all graphs that morphisms make from now on, as long as ``patch`` lasts."""
    made: list[Graph] = []

    def noting(child: Callable[[Morphism, Graph], Graph]) -> Callable[[Morphism, Graph], Graph]:
        def noted(morphism: Morphism, graph: Graph) -> Graph:
            made.append(child(morphism, graph))
            return made[-1]

        return noted

    for kind in MORPHISMS.values():
        patch.setattr(kind, "child", noting(kind.child))
    return made


def trained_weights(graph: Graph, rng: np.random.Generator) -> Weights:
    """Weights such as training leaves: nothing is one or zero, no statistic is trivial."""
    weights: dict[str, Array] = dict(initial_weights(graph, rng))
    for name, array in weights.items():
        key = name.rsplit("/", 1)[1]
        if key in ("gamma", "variance"):
            weights[name] = rng.uniform(0.5, 2.0, array.shape).astype(np.float32)
        elif key != "kernel":
            weights[name] = rng.normal(0.0, 0.5, array.shape).astype(np.float32)
    return weights
