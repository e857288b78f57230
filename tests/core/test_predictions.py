"""Predictions are kept whole, in few bytes, and damage of them is seen."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tests.support.damage import flip

from aiperf_hpc.errors import CheckpointError
from aiperf_hpc.morphism.weights.weight_file import (
    Predictions,
    load_predictions,
    save_checked,
    save_predictions,
)


@pytest.mark.parametrize(("classes", "width"), [(10, 1), (256, 1), (1000, 2), (100_000, 4)])
def test_what_was_kept_is_read_in_the_smallest_integers(
    classes: int, width: int, tmp_path: Path
) -> None:
    drawn = np.random.default_rng(1).integers(0, classes, 5000)
    drawn[0] = classes - 1
    path = tmp_path / "kept" / "t.safetensors"
    digest = save_predictions(path, Predictions("r0-t7", 12, drawn))
    found = load_predictions(path)
    assert (found.trial, found.epoch) == ("r0-t7", 12)
    np.testing.assert_array_equal(found.classes, drawn)
    assert path.stat().st_size < 5000 * width + 500
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_damage_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_predictions(path, Predictions("t", 1, np.arange(100)))
    flip(path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_predictions(path)
    with pytest.raises(CheckpointError):
        load_predictions(tmp_path / "nothing")


def test_what_holds_no_classes_is_none(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_checked(path, {"class": np.zeros(3, np.float32)}, {"trial": "t", "epoch": "1"})
    with pytest.raises(CheckpointError, match="no predicted classes"):
        load_predictions(path)
