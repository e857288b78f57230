from __future__ import annotations

import numpy as np
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data.base import Pixels
from aiperf_hpc.replica.data.generated import GeneratedDataset
from aiperf_hpc.replica.data.synthetic import load

SHA256 = "40d83ec0d131773c0db4db06f95d3fe8562b373319698ad5aeacd1b30ef3bc7e"


def _load(**values: float) -> GeneratedDataset:
    settings = {"image_size": 16, "classes": 4, "train_samples": 200, "validation_samples": 80}
    return load(DatasetConfig.model_validate({"name": "synthetic", **settings, **values}), 1)


def test_the_samples_are_pinned() -> None:
    assert _load().info.sha256 == SHA256


def test_classes_are_balanced() -> None:
    labels = np.concatenate([batch.targets["label"] for batch in _load().train(0, 64, 0)])
    assert np.bincount(labels).tolist() == [50] * 4


def test_it_can_be_learned() -> None:
    """The nearest of the training set's class means finds the class of a validation sample."""
    dataset = _load(image_size=32)
    batch = next(dataset.train(0, 200, 0))
    means = np.stack(
        [batch.inputs["image"][batch.targets["label"] == label].mean(0) for label in range(4)]
    )
    held_out = next(dataset.validation(80))
    distances = ((held_out.inputs["image"][:, None] - means[None]) ** 2).sum((2, 3, 4))
    assert np.mean(distances.argmin(1) == held_out.targets["label"]) == 1.0


def test_inputs_are_normal() -> None:
    inputs = next(_load(image_size=32, classes=100, train_samples=400).train(0, 400, 0)).inputs[
        "image"
    ]
    assert abs(float(inputs.mean())) < 0.05
    assert abs(float(inputs.std()) - 1) < 0.05


def test_samples_in_memory_are_the_same_ones_as_bytes() -> None:
    made, kept = _load(), _load(decoded_cache_gib=0.001)
    for one, other in zip(
        [*made.train(1, 64, 3), *made.validation(64)],
        [*kept.train(1, 64, 3), *kept.validation(64)],
        strict=True,
    ):
        assert isinstance(other.inputs["image"], Pixels)
        np.testing.assert_allclose(other.inputs["image"], one.inputs["image"], atol=1e-6)
        np.testing.assert_array_equal(other.targets["label"], one.targets["label"])


def test_samples_that_do_not_fit_in_memory_are_refused() -> None:
    with refused(r"decoded_cache_gib 0.01 is too small: .* need 0.04"):
        _load(decoded_cache_gib=0.01, image_size=224)
