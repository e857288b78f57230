"""Tests of losses and metrics in both engines, against PyTorch's and scikit-learn's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.support.engine_steps import ENGINES, network_of, outputs_of
from tests.support.networks import sequential
from torch.nn import functional

from aiperf_hpc.graph import Graph, Node, layers
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import (
    ACCURACY,
    CLASSIFICATION,
    INTERSECTION_OVER_UNION,
    MEAN_ABSOLUTE_ERROR,
    QUALITY_METRICS,
    Objective,
    QualityMetric,
    regression,
    segmentation,
)
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import EvaluationSums, RankNetwork
from aiperf_hpc.replica.engines.tensorflow import objectives as tensorflow_objectives
from aiperf_hpc.replica.engines.torch import objectives as torch_objectives
from aiperf_hpc.replica.tensorflow_import import tf
from aiperf_hpc.trial import TensorSpec

TWO_INPUTS = Graph(
    (
        Node("left", layers.Input((3,))),
        Node("right", layers.Input((5,))),
        Node("a", layers.Dense(4), ("left",)),
        Node("b", layers.Dense(4), ("right",)),
        Node("sum", layers.Add(), ("a", "b")),
        Node("relu", layers.LeakyReLU(), ("sum",)),
        Node("dense", layers.Dense(2), ("relu",)),
        Node("values", layers.Tanh(), ("dense",)),
    )
)


def built(name: str, objective: Objective, graph: Graph = TWO_INPUTS) -> RankNetwork:
    weights = initial_weights(graph, np.random.default_rng(3))
    return network_of(load_engine(name, 2, objective=objective), graph, weights, momentum=0.0)


def part_of(batch: Batch, start: int, stop: int) -> Batch:
    inputs, targets = (
        {key: array[start:stop] for key, array in arrays.items()}
        for arrays in (batch.inputs, batch.targets)
    )
    return Batch(inputs, targets)


def regression_batch(samples: int) -> Batch:
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((samples, n), np.float32) for n in (3, 5))
    values = rng.uniform(-1.0, 1.0, (samples, 2)).astype(np.float32)
    # Not in the graph's order: inputs are found by their names.
    return Batch({"right": right, "left": left}, {"values": values})


def outputs_by_pytorch(weights: Mapping[str, Any], batch: Batch) -> torch.Tensor:
    a = torch.from_numpy(batch.inputs["left"]) @ weights["a/kernel"] + weights["a/bias"]
    b = torch.from_numpy(batch.inputs["right"]) @ weights["b/kernel"] + weights["b/bias"]
    hidden = functional.leaky_relu(a + b, 0.3)
    return torch.tanh(hidden @ weights["dense/kernel"] + weights["dense/bias"])


def tensors_of(network: RankNetwork) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(a).requires_grad_() for key, a in network.weights().items()}


def assert_descends(
    network: RankNetwork, batch: Batch, weights: Mapping[str, torch.Tensor], loss: torch.Tensor
) -> None:
    """Check that a step has PyTorch's loss, and goes down its gradients."""
    gradients = torch.autograd.grad(loss, list(weights.values()))
    network.train_step(batch, 0.1)
    assert network.drain_training() == pytest.approx(loss.item(), rel=1e-5)
    trained = network.weights()
    for (key, before), gradient in zip(weights.items(), gradients, strict=True):
        wanted = (before.detach() - 0.1 * gradient).numpy()
        np.testing.assert_allclose(trained[key], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_a_network_of_two_inputs_is_trained_on_the_mean_squared_error(name: str) -> None:
    network = built(name, regression(2))
    weights = tensors_of(network)
    batch = regression_batch(8)
    loss = functional.mse_loss(
        outputs_by_pytorch(weights, batch), torch.from_numpy(batch.targets["values"])
    )
    assert_descends(network, batch, weights, loss)


@pytest.mark.parametrize("name", ENGINES)
def test_the_mean_absolute_error_is_pytorchs_over_batches_of_any_size(name: str) -> None:
    network = built(name, regression(2))
    whole = regression_batch(21)
    output = torch.from_numpy(outputs_of(network, whole.inputs))
    wanted = functional.l1_loss(output, torch.from_numpy(whole.targets["values"]))
    found = EvaluationSums()
    for start, stop in ((0, 8), (8, 16), (16, 21)):
        network.evaluate_step(part_of(whole, start, stop))
        if stop > 8:  # Drained in the middle too.
            found = found.merged(network.drain_evaluation(), MEAN_ABSOLUTE_ERROR)
    sums = found.sums(MEAN_ABSOLUTE_ERROR)
    assert found.samples == 21
    assert sums["values"] == 42
    assert MEAN_ABSOLUTE_ERROR.quality(sums, 21) == pytest.approx(wanted.item(), rel=1e-5)
    assert network.drain_evaluation() == EvaluationSums()


SENTENCES = sequential(
    words=layers.Input((6,), "int32"),
    embedded=layers.Embedding(11, 4),
    flat=layers.Flatten(),
    values=layers.Dense(1),
)


def sentences(samples: int, length: int) -> Batch:
    """Words, and what they are to give: a mean of as many numbers as a mask says there are."""
    rng = np.random.default_rng(length)
    there = rng.integers(1, length + 1, samples)
    return Batch(
        {"words": rng.integers(0, 11, (samples, 6)).astype(np.int32)},
        {
            "values": rng.standard_normal((samples, length), np.float32),
            "mask": np.arange(length) < there[:, None],
        },
    )


@pytest.mark.parametrize("name", ENGINES)
def test_masked_targets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_torch(
        output: torch.Tensor, targets: Mapping[str, torch.Tensor], _: float
    ) -> torch.Tensor:
        there = targets["mask"].float()
        squares = (output - targets["values"]).square() * there
        return squares.sum(1) / there.sum(1)

    def by_tensorflow(output: tf.Tensor, targets: Mapping[str, tf.Tensor], _: float) -> tf.Tensor:
        there = tf.cast(targets["mask"], tf.float32)
        squares = tf.square(output - targets["values"]) * there
        return tf.reduce_sum(squares, 1) / tf.reduce_sum(there, 1)

    monkeypatch.setitem(torch_objectives.LOSSES, "masked", by_torch)
    monkeypatch.setitem(tensorflow_objectives.LOSSES, "masked", by_tensorflow)
    objective = Objective(
        kind="regression",
        targets={
            "values": TensorSpec(shape=(None,)),
            "mask": TensorSpec(shape=(None,), dtype="bool"),
        },
        loss="masked",
        metric="mean_absolute_error",
    )
    network = built(name, objective, SENTENCES)
    network.warm(3)
    for length in (5, 2, 7):
        weights = tensors_of(network)
        batch = sentences(8, length)
        words = functional.embedding(
            torch.from_numpy(batch.inputs["words"]).long(), weights["embedded/table"]
        )
        output = words.flatten(1) @ weights["values/kernel"] + weights["values/bias"]
        given = {key: torch.from_numpy(array) for key, array in batch.targets.items()}
        assert_descends(network, batch, weights, by_torch(output, given, 0.0).mean())


AUC = QualityMetric(
    name="area_under_curve",
    label="area under the curve",
    sums=("area",),
    quality=lambda sums, _: sums["area"],
    impossible=lambda sums, _: "" if 0 <= sums["area"] <= 1 else "no area",
    goal="maximize",
    perfect=1.0,
    rows=("score", "label"),
    summarize=lambda rows: {"area": float(roc_auc_score(rows["label"], rows["score"]))},
)
"""A metric that no sum over samples gives."""


@pytest.fixture
def auc(monkeypatch: pytest.MonkeyPatch) -> Objective:
    monkeypatch.setitem(QUALITY_METRICS, AUC.name, AUC)
    monkeypatch.setitem(
        torch_objectives.QUALITIES,
        AUC.name,
        lambda output, targets: (output[:, 1] - output[:, 0], targets["label"]),
    )
    monkeypatch.setitem(
        tensorflow_objectives.QUALITIES,
        AUC.name,
        lambda output, targets: (
            output[:, 1] - output[:, 0],
            tf.cast(targets["label"], tf.float32),
        ),
    )
    return CLASSIFICATION.model_copy(update={"metric": AUC.name})


@pytest.mark.parametrize("name", ENGINES)
def test_a_metric_of_all_samples_at_once_keeps_their_rows(name: str, auc: Objective) -> None:
    network = built(name, auc)
    network.warm(4)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, 50).astype(np.int32)
    whole = Batch(regression_batch(50).inputs, {"label": labels})
    output = outputs_of(network, whole.inputs)
    wanted = roc_auc_score(labels, output[:, 1] - output[:, 0])
    found = EvaluationSums()
    for start in range(0, 50, 16):
        network.evaluate_step(part_of(whole, start, start + 16))
        found = found.merged(network.drain_evaluation(), AUC)
    assert found.samples == 50
    assert found.parts["score"].shape == (50,)
    assert found.sums(AUC) == {"area": pytest.approx(wanted, abs=1e-6)}


def test_nothing_evaluated_has_no_parts_and_merges_with_everything() -> None:
    some = EvaluationSums(1.0, 4, {"correct": np.float64(3)})  # type: ignore[dict-item]
    nothing = EvaluationSums()
    assert some.merged(nothing, ACCURACY) == some == nothing.merged(some, ACCURACY)


PIXELS = sequential(
    fields=layers.Input((4, 6, 2)), logits=layers.Conv2D(3, 3), classes=layers.Softmax()
)
WEIGHTS = (1.0, 2.5, 0.5)


def masked(samples: int) -> Batch:
    """Fields and masks: of the first sample all of one class, of the next without another."""
    rng = np.random.default_rng(samples)
    mask = rng.integers(0, 3, (samples, 4, 6)).astype(np.int32)
    mask[0] = 0
    mask[1:2][mask[1:2] == 2] = 1
    return Batch({"fields": rng.standard_normal((samples, 4, 6, 2), np.float32)}, {"mask": mask})


def ratios_of(logits: Any, mask: Any) -> float:  # noqa: ANN401 -- arrays, classes last
    """The sum over samples, pixel by pixel as its definition has it."""
    total = 0.0
    for found, there in zip(logits.argmax(-1), mask, strict=True):
        for number in range(3):
            one, other = ({*map(tuple, np.argwhere(m == number))} for m in (found, there))
            total += (len(one & other) / len(one | other) if one | other else 1.0) / 3
    return total


@pytest.mark.parametrize("name", ENGINES)
def test_pixels_are_trained_by_weighted_classes_over_all_pixels(name: str) -> None:
    """The mean over pixels, where PyTorch's own divides by the sum of their weights."""
    network = built(name, segmentation(*WEIGHTS), PIXELS)
    batch = masked(5)
    weights = tensors_of(network)
    kernel = weights["logits/kernel"].permute(3, 2, 0, 1)
    fields = torch.from_numpy(batch.inputs["fields"]).movedim(-1, 1)
    logits = functional.conv2d(fields, kernel, padding=1)
    mask = torch.from_numpy(batch.targets["mask"]).long()
    by_class = torch.tensor(WEIGHTS)
    summed = functional.cross_entropy(logits, mask, by_class, reduction="sum")
    loss = summed / mask.numel()
    assert loss.item() != pytest.approx(functional.cross_entropy(logits, mask, by_class).item())
    assert_descends(network, batch, weights, loss)


@pytest.mark.parametrize("name", ENGINES)
def test_intersection_over_union_is_of_each_sample_by_itself(name: str) -> None:
    """What is neither found nor there counts as found: in the first sample two classes may."""
    network = built(name, segmentation(), PIXELS)
    network.warm(4)
    sums, wanted, samples = EvaluationSums(), 0.0, 0
    for number in (5, 2, 1):
        batch = masked(number)
        network.evaluate_step(batch)
        logits = np.asarray(outputs_of(network, batch.inputs))
        last = np.moveaxis(logits, 1, -1) if name == "torch" else logits
        wanted += ratios_of(last, batch.targets["mask"])
        samples += number
    sums = network.drain_evaluation()
    recorded = sums.sums(INTERSECTION_OVER_UNION)
    assert recorded["intersection_over_union"] == pytest.approx(wanted, rel=1e-9)
    quality = INTERSECTION_OVER_UNION.quality(recorded, samples)
    assert 0.0 < quality == pytest.approx(wanted / 8)
