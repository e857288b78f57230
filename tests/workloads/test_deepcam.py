"""DeepCAM's network: its sizes and operations, and what it computes, after the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.engine_steps import ENGINES, assert_trains_by, hyperparameters
from tests.support.networks import deepcam as small
from tests.support.torch_counts import counted_apart, executed_apart
from tests.support.torch_network import channels_first, gradients_of, to_tensors
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.config import DeepCAMConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import segmentation
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.engines.torch.operation_count import CORRECTED, matrix_operations
from aiperf_hpc.workloads.deepcam import WORKLOAD
from aiperf_hpc.workloads.networks.deepcam import deepcam


@pytest.mark.parametrize(
    ("height", "width", "operations", "training"),
    [
        (768, 1152, 655_337_666_560, 1_963_974_567_936),
        (192, 288, 40_959_587_200, 122_751_359_616),
        (96, 144, 10_240_683_232, 30_690_199_200),
    ],
)
def test_sizes_and_operations_are_the_references(
    height: int, width: int, operations: int, training: int
) -> None:
    """56,454,720 parameters are published; the rest is PyTorch's count of the reference."""
    graph = deepcam((height, width, 16), 3, DeepCAMConfig())
    assert graph.parameter_count == 56_454_720
    assert counted_apart(graph) == (operations, training)


@pytest.mark.parametrize(
    "make",
    [
        lambda: small((80, 112, 3), 32, 16),
        lambda: small((16, 16, 1), 5, 0),
        lambda: small((48, 208, 9), 13, 2),
    ],
    ids=["whole", "no middle block", "narrow"],
)
def test_operations_of_any_size_are_pytorchs(make: Callable[[], Graph]) -> None:
    graph = make()
    found = matrix_operations(graph)
    assert (
        executed_apart(graph, CORRECTED) == counted_apart(graph) == (found.forward, found.training)
    )


@pytest.mark.parametrize("shape", [(100, 144, 16), (96, 150, 16), (96, 144)])
def test_an_image_that_cannot_be_made_as_much_smaller_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="height and width must be multiples of 16"):
        deepcam(shape, 3, DeepCAMConfig())


def test_what_is_drawn_first_is_the_references() -> None:
    """Kaiming's normal numbers in the trunk, depthwise too; PyTorch's own in the decoder."""
    graph = small((16, 16, 16), 32, 1)
    weights = initial_weights(graph, np.random.default_rng(0))
    for name, fan_in in (("block4a_depthwise", 9), ("block4a", 728), ("aspp3", 9 * 2048)):
        spread = weights[f"{name}/kernel"].std() * np.sqrt(fan_in / 2.0)
        assert spread == pytest.approx(1.0, rel=0.03)
    for name, fan_in in (("up1", 9 * 256), ("fusea", 9 * 304), ("fusec", 256)):
        bound = 1.0 / np.sqrt(fan_in)
        assert np.abs(weights[f"{name}/kernel"]).max() == pytest.approx(bound, rel=1e-3)
    assert 0.9 / 16 < np.abs(weights["fusec/bias"]).max() <= 1 / 16
    assert weights["logits/kernel"].shape == (3, 3, 3, 256)


def reference(image: Tensor, t: dict[str, Tensor], middle_blocks: int) -> Tensor:
    """Logits as the reference's modules compute them in training, channels first.

    ``t`` has each array as PyTorch lays it out.
    """

    def norm(x: Tensor, name: str) -> Tensor:
        scale, shift = t[f"{name}_norm/gamma"], t[f"{name}_norm/beta"]
        return functional.batch_norm(x, None, None, scale, shift, training=True, eps=1e-5)

    def conv(x: Tensor, name: str, **how: Any) -> Tensor:  # noqa: ANN401
        return functional.conv2d(x, t[f"{name}/kernel"], **how)

    def sep(x: Tensor, name: str, stride: int = 1, rate: int = 1) -> Tensor:
        depthwise = f"{name}_depthwise"
        how = {"stride": stride, "dilation": rate, "padding": rate, "groups": x.shape[1]}
        return conv(conv(x, depthwise, **how), name)

    def block(x: Tensor, name: str, stride: int, normed: bool) -> Tensor:
        made = functional.relu(norm(sep(x, f"{name}a"), f"{name}a"))
        made = norm(sep(made, f"{name}b"), f"{name}b")
        if normed:
            made = norm(sep(functional.relu(made), f"{name}c"), f"{name}c")
            return made + x
        made = sep(made, f"{name}c", stride)
        return made + norm(conv(x, f"{name}_skip", stride=stride), f"{name}_skip")

    def up(x: Tensor, name: str) -> Tensor:
        kernel = t[f"{name}/kernel"]
        return functional.conv_transpose2d(x, kernel, None, 2, 1, output_padding=1)

    x = functional.relu(norm(conv(image, "conv1", stride=2, padding=1), "conv1"))
    x = functional.relu(norm(conv(x, "conv2", padding=1), "conv2"))
    x = block(x, "block1", 2, normed=False)
    low = x
    x = functional.relu(x, inplace=True)  # And with it ``low``.
    for number in (2, 3):
        x = functional.relu(block(x, f"block{number}", 2, normed=False))
    for number in range(4, 4 + middle_blocks):
        x = functional.relu(block(x, f"block{number}", 1, normed=True))
    x = block(x, f"block{4 + middle_blocks}", 1, normed=False)
    for number in (3, 4, 5):
        x = functional.relu(norm(sep(x, f"conv{number}", rate=2), f"conv{number}"))
    parts = [functional.relu(norm(conv(x, "aspp1"), "aspp1"))]
    for number, rate in ((2, 6), (3, 12), (4, 18)):
        made = conv(x, f"aspp{number}", padding=rate, dilation=rate)
        parts.append(functional.relu(norm(made, f"aspp{number}")))
    pooled = conv(x.mean(dim=(2, 3), keepdim=True), "pool_conv")
    scale, shift = (t[f"pool_affine/{key}"].view(1, -1, 1, 1) for key in ("scale", "shift"))
    parts.append(functional.relu(pooled * scale + shift).expand(-1, -1, *x.shape[2:]))
    x = functional.relu(norm(conv(torch.cat(parts, 1), "merge"), "merge"))
    for name in ("up1", "up2"):
        x = functional.relu(norm(up(x, name), name))
    x = torch.cat([x, functional.relu(norm(conv(low, "low"), "low"))], 1)
    for name in ("fusea", "fuseb"):
        x = functional.relu(norm(conv(x, name, padding=1), name))
    x = functional.conv2d(x, t["fusec/kernel"], t["fusec/bias"])
    return up(functional.relu(norm(up(x, "up3"), "up3")), "logits")


WEIGHTS = (1.0, 2.6, 1.7)


def a_batch(graph: Graph) -> Batch:
    rng = np.random.default_rng(1)
    height, width, _ = shape = graph.shapes["image"]
    fields = rng.standard_normal((3, *shape), np.float32)
    return Batch({"image": fields}, {"mask": rng.integers(0, 3, (3, height, width), np.int32)})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_step_is_the_references(engine: str) -> None:
    graph = small()
    weights, batch = initial_weights(graph, np.random.default_rng(5)), a_batch(graph)
    objective = segmentation(*WEIGHTS)
    built = load_engine(engine, 2, objective=objective).build(
        NetworkState(graph, weights, hyperparameters())
    )
    tensors = to_tensors(graph, weights)
    logits = reference(channels_first(batch.inputs["image"]), tensors, 1)
    mask = torch.from_numpy(batch.targets["mask"]).long()
    by_class = torch.tensor(WEIGHTS)
    summed = functional.cross_entropy(logits, mask, by_class, reduction="sum")
    loss = summed / mask.numel()
    wanted = gradients_of(loss, graph, tensors)
    assert_trains_by(built, batch, loss.item(), wanted, 2e-3)


def test_weights_of_classes_are_those_of_the_reference() -> None:
    assert WORKLOAD.objective.class_weights == pytest.approx((1.001730, 2.614611, 1.716420))
