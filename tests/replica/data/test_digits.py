from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
from tests.support.refusals import refused

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.replica.data import digits
from aiperf_hpc.replica.data.arrays import ArrayDataset


@pytest.fixture(scope="module")
def dataset() -> ArrayDataset:
    return digits.load(DatasetConfig(name="digits"), 1)


def test_the_parts_are_all_of_the_digits(dataset: ArrayDataset) -> None:
    source = sklearn.datasets.load_digits()
    every = np.concatenate([dataset.training.images, dataset.held_out.images]).reshape(1797, 64)
    labels = np.concatenate([dataset.training.labels, dataset.held_out.labels])
    ours = sorted(zip(every.tolist(), labels.tolist(), strict=True))
    theirs = zip(source.data.astype(int).tolist(), source.target.tolist(), strict=True)
    assert ours == sorted(theirs)
    assert dataset.info.train_samples == len(dataset.training.labels) == 1437
    assert dataset.info.validation_samples == len(dataset.held_out.labels) == 360
    assert dataset.info.sha256 == digits.SHA256


def test_each_class_has_its_share_in_validation(dataset: ArrayDataset) -> None:
    all_of_them = np.bincount(sklearn.datasets.load_digits().target)
    held_out = np.bincount(dataset.held_out.labels)
    assert np.all(np.abs(held_out - all_of_them * 360 / 1797) < 1)


def test_normalization_constants_are_those_of_the_training_set(dataset: ArrayDataset) -> None:
    pixels = dataset.training.images.astype(np.float64)
    assert digits.NORMALIZATION.mean == (round(float(pixels.mean()), 6),)
    assert digits.NORMALIZATION.std == (round(float(pixels.std()), 6),)


def test_digits_are_shifted_by_a_pixel_at_most_and_never_mirrored(dataset: ArrayDataset) -> None:
    assert dataset.augmentation is not None
    moves = dataset.augmentation.draw(1437, 0, 0)
    assert not moves.mirrored.any()
    assert set(moves.down.tolist()) == set(moves.right.tolist()) == {0, 1, 2}


def test_other_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "SHA256", "0" * 64)
    with refused("has different digits"):
        digits.load(DatasetConfig(name="digits"), 1)


def test_scikit_learn_without_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = ModuleSpec("sklearn", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(digits, "find_spec", lambda _: other)
    with refused(r"cannot read .*digits\.csv\.gz: .*another version"):
        digits.load(DatasetConfig(name="digits"), 1)
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    with refused("pip install scikit-learn"):
        digits.load(DatasetConfig(name="digits"), 1)


def test_they_come_without_the_import_of_scikit_learn() -> None:
    script = (
        "import sys; from aiperf_hpc.config import DatasetConfig;"
        "from aiperf_hpc.replica.data import digits; digits.load(DatasetConfig(name='digits'), 1);"
        "assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
