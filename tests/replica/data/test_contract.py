"""What every dataset promises, tested over all of them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.config.run import PREPARED_DATASETS
from aiperf_hpc.replica.data import Batch, Dataset, dataset_names, load_dataset
from aiperf_hpc.replica.data.base import Part

Make = Callable[[bool], Dataset]

BATCH = 7
SIZE = 32


GENERATED = {
    "density": {"image_size": 9},
    "synthetic": {"image_size": 31, "classes": 3},
    "volumes": {"image_size": 9},
    "weather_boxes": {"image_size": 24},
    "weather_masks": {"image_size": 24},
}
COUNTS = {"train_samples": 45, "validation_samples": 20}
OTHERS = ("digits", "imagenet", "imagenet without TensorFlow")


@pytest.fixture(params=[*OTHERS, *GENERATED])
def make(request: pytest.FixtureRequest) -> Make:
    name, _, without = request.param.partition(" ")
    config: dict[str, object] = {"name": name, "image_size": SIZE}
    if name in GENERATED:
        config |= GENERATED[name] | COUNTS
    if name == "imagenet":
        config["path"] = request.getfixturevalue("imagenet_folder")
    return lambda augment: load_dataset(
        DatasetConfig.model_validate(config | {"augment": augment}),
        2,
        "torch" if without else "tensorflow",
    )


def _content(batches: Iterable[Batch]) -> list[str]:
    """Return a digest of each sample's arrays, in order."""
    return [
        hashlib.sha256(b"".join(np.asarray(array[n]).tobytes() for array in arrays)).hexdigest()
        for batch in batches
        for arrays in [[*map(np.asarray, batch.inputs.values()), *batch.targets.values()]]
        for n in range(batch.size)
    ]


@pytest.mark.parametrize("name", GENERATED)
def test_the_digest_is_of_all_settings(name: str) -> None:
    settings = {"name": name, **GENERATED[name], **COUNTS}
    keys = ["image_size", "train_samples", "validation_samples"]
    keys += ["classes"] if "classes" in settings else []
    changed = [settings, *(settings | {key: int(str(settings[key])) + 2} for key in keys)]
    found = [load_dataset(DatasetConfig.model_validate(each), 1).info.sha256 for each in changed]
    assert len(set(found)) == len(changed)
    assert load_dataset(DatasetConfig.model_validate(settings), 1).info.sha256 == found[0]


def test_training_and_validation_samples_differ(make: Make) -> None:
    dataset = make(False)
    training, held_out = (set(_content(b)) for b in (dataset.train(0, 9, 0), dataset.validation(9)))
    assert not training & held_out


def test_every_dataset_is_loaded_here() -> None:
    """Except the simulated one, whose samples are all equal."""
    assert {*PREPARED_DATASETS, *GENERATED, "digits", "simulated"} == set(dataset_names())


@pytest.mark.parametrize("name", PREPARED_DATASETS)
def test_a_missing_folder_is_refused(name: str, tmp_path: Path) -> None:
    config = DatasetConfig.model_validate({"name": name, "path": tmp_path / "none"})
    with refused(f"dataset '{name}': there is no folder"):
        load_dataset(config, 1)


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
            for arrays, specs in ((batch.inputs, info.inputs), (batch.targets, info.targets)):
                assert arrays.keys() == specs.keys()
                for array, (key, spec) in zip(arrays.values(), specs.items(), strict=True):
                    found = np.asarray(array)
                    assert (str(found.dtype), len(found)) == (spec.dtype, batch.size), key
                    assert np.isfinite(found).all()
            name = "volume" if "volume" in info.inputs else "image"
            assert np.asarray(batch.inputs[name]).shape[1:] == info.input_shape(name)
            if "label" in batch.targets:
                labels = np.asarray(batch.targets["label"])
                assert labels.shape == (batch.size,)
                assert 0 <= labels.min() <= labels.max() < (info.classes or 0)


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


@pytest.mark.parametrize(("batch_size", "ranks"), [(BATCH, 3), (4, 5)])
def test_the_parts_of_all_ranks_are_the_batches(make: Make, ranks: int, batch_size: int) -> None:
    dataset = make(True)

    for read in (partial(dataset.train, 2, batch_size, 5), partial(dataset.validation, batch_size)):
        whole = _content(read())
        found = [_content(read(part=Part(rank, ranks))) for rank in range(ranks)]
        for start in range(0, len(whole), batch_size):
            batch = whole[start : start + batch_size]
            for rank, own in enumerate(found):
                first, last = Part(rank, ranks).bounds(len(batch))
                assert own[: last - first] == batch[first:last]
                del own[: last - first]
        assert found == [[]] * ranks
