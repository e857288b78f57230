"""What every dataset promises, tested over all of them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import Batch, Dataset, dataset_names, load_dataset
from aiperf_hpc.replica.data.base import Part

Make = Callable[[bool], Dataset]

BATCH = 7
SIZE = 32


@pytest.fixture(params=["digits", "synthetic", "imagenet", "imagenet without TensorFlow"])
def make(request: pytest.FixtureRequest) -> Make:
    name, _, without = request.param.partition(" ")
    config: dict[str, object] = {"name": name, "image_size": SIZE}
    if name == "synthetic":
        config |= {"train_samples": 45, "validation_samples": 20, "classes": 3}
    if name == "imagenet":
        config["path"] = request.getfixturevalue("imagenet_folder")
    return lambda augment: load_dataset(
        DatasetConfig.model_validate(config | {"augment": augment}),
        2,
        "torch" if without else "tensorflow",
    )


def _content(batches: Iterable[Batch]) -> list[tuple[str, int]]:
    """Return a digest and the label of each sample, in order."""
    return [
        (hashlib.sha256(sample.tobytes()).hexdigest(), int(label))
        for batch in batches
        for sample, label in zip(
            np.asarray(batch.inputs["image"]), np.asarray(batch.targets["label"]), strict=True
        )
    ]


def test_all_datasets_of_the_configuration_can_be_loaded() -> None:
    schema = DatasetConfig.model_json_schema()
    assert dataset_names() == sorted(schema["properties"]["name"]["enum"])


def test_batches_are_as_described(make: Make) -> None:
    dataset = make(True)
    info = dataset.info
    for batches, samples in (
        (list(dataset.train(0, BATCH, 0)), info.train_samples),
        (list(dataset.validation(BATCH)), info.validation_samples),
    ):
        assert [batch.size for batch in batches[:-1]] == [BATCH] * (len(batches) - 1)
        assert sum(batch.size for batch in batches) == samples
        for batch in batches:
            inputs, labels = np.asarray(batch.inputs["image"]), np.asarray(batch.targets["label"])
            assert inputs.dtype == np.float32
            assert labels.dtype == np.int32
            assert inputs.shape == (batch.size, *info.input_shape("image"))
            assert labels.shape == (batch.size,)
            assert labels.min() >= 0
            assert labels.max() < (info.classes or 0)
            assert np.isfinite(inputs).all()


def test_epochs_have_the_same_samples_in_different_orders(make: Make) -> None:
    dataset = make(False)
    first, second = (_content(dataset.train(epoch, BATCH, 5)) for epoch in (0, 1))
    other_seed = _content(dataset.train(0, BATCH, 6))
    assert Counter(first) == Counter(second) == Counter(other_seed)
    assert max(Counter(first).values()) == 1
    assert len({tuple(first), tuple(second), tuple(other_seed)}) == 3


@pytest.mark.parametrize("augment", [True, False])
def test_an_epoch_repeats_by_seed_and_epoch(make: Make, augment: bool) -> None:
    epochs = [_content(make(augment).train(4, BATCH, 9)) for _ in range(2)]
    assert epochs[0] == epochs[1]


def test_samples_do_not_depend_on_the_batch_size(make: Make) -> None:
    dataset = make(True)
    assert _content(dataset.train(1, 3, 2)) == _content(dataset.train(1, 1000, 2))
    assert _content(dataset.validation(3)) == _content(dataset.validation(1000))


def test_validation_repeats_and_is_not_augmented(make: Make) -> None:
    augmented, plain = make(True), make(False)
    assert _content(augmented.validation(BATCH)) == _content(plain.validation(BATCH))
    assert augmented.info == plain.info


def test_an_epoch_can_be_left_early(make: Make) -> None:
    dataset = make(True)
    for _ in dataset.train(0, BATCH, 0):
        break
    assert len(_content(dataset.train(0, BATCH, 0))) == dataset.info.train_samples


def test_loading_does_not_import_frameworks() -> None:
    script = "import aiperf_hpc.replica.data, sys; print([m for m in sys.modules if m in WANTED])"
    wanted = "WANTED = ('tensorflow', 'keras', 'torch', 'sklearn', 'PIL');"
    done = subprocess.run(
        [sys.executable, "-c", wanted + script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.cifar10
def test_cifar10_keeps_the_contract(cifar10_folder: Path) -> None:
    dataset = load_dataset(DatasetConfig(name="cifar10", path=cifar10_folder), 2)
    augmented = _content(dataset.train(0, 448, 3))
    assert Counter(label for _, label in augmented) == dict.fromkeys(range(10), 5000)
    assert augmented == _content(dataset.train(0, 1000, 3))
    plain = load_dataset(DatasetConfig(name="cifar10", path=cifar10_folder, augment=False), 2)
    orders = [_content(plain.train(epoch, 448, 0)) for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert Counter(orders[0]) == Counter(orders[1])
    assert Counter(label for _, label in orders[0]) == dict.fromkeys(range(10), 5000)


@pytest.mark.parametrize(("batch_size", "ranks"), [(BATCH, 2), (BATCH, 3), (BATCH, 5), (4, 5)])
def test_the_parts_of_all_ranks_are_the_batches(make: Make, ranks: int, batch_size: int) -> None:
    dataset = make(True)

    def parts(rank: int, *, training: bool) -> list[tuple[str, int]]:
        part = Part(rank, ranks)
        own = (
            dataset.train(2, batch_size, 5, part)
            if training
            else dataset.validation(batch_size, part)
        )
        return _content(own)

    for training in (True, False):
        whole = _content(
            dataset.train(2, batch_size, 5) if training else dataset.validation(batch_size)
        )
        found = [parts(rank, training=training) for rank in range(ranks)]
        for start in range(0, len(whole), batch_size):
            batch = whole[start : start + batch_size]
            for rank, own in enumerate(found):
                first, last = Part(rank, ranks).bounds(len(batch))
                assert own[: last - first] == batch[first:last]
                del own[: last - first]
        assert found == [[]] * ranks
