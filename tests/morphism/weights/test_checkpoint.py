from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.clock import Clock
from tests.support.damage import failing, flip
from tests.support.networks import SMALL, THIN, random_chain, residual, trained_weights, two_stems
from tests.support.weight_files import with_header

from aiperf_hpc.errors import CheckpointError
from aiperf_hpc.graph import Conv2D, Distribution, Graph, Input, Node
from aiperf_hpc.morphism.operators.morphisms import grow_with_weights
from aiperf_hpc.morphism.weights.weight_file import (
    Array,
    Predictions,
    Weights,
    check_weights,
    initial_weights,
    load_checkpoint,
    load_predictions,
    save_checked,
    save_checkpoint,
    save_predictions,
    serialized,
)
from aiperf_hpc.run.storage import BackoffRetry

GRAPH = residual()
WEIGHTS = trained_weights(GRAPH, np.random.default_rng(0))


def changed(**arrays: Array) -> Weights:
    return {**WEIGHTS, **{name.replace("__", "/"): array for name, array in arrays.items()}}


def without(name: str) -> Weights:
    return {key: array for key, array in WEIGHTS.items() if key != name}


@pytest.mark.parametrize("make", [*SMALL, *THIN])
def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path, make: Callable[[], Graph]) -> None:
    rng = np.random.default_rng(1)
    graph = make()
    chain = random_chain(graph, 4, rng)
    graph, weights = grow_with_weights(graph, trained_weights(graph, rng), chain, rng)
    path = tmp_path / "folder" / "t1.safetensors"
    save_checkpoint(path, graph, weights)
    again, loaded = load_checkpoint(path)
    assert again == graph
    assert loaded.keys() == weights.keys()
    for name, array in weights.items():
        assert loaded[name].dtype == np.float32
        np.testing.assert_array_equal(loaded[name], array)
    assert [p.name for p in path.parent.iterdir()] == ["t1.safetensors"]


def test_arrays_that_lie_otherwise_in_memory_come_back_right(tmp_path: Path) -> None:
    name = "logits/kernel"
    fortran = np.asfortranarray(WEIGHTS[name])
    reverse = np.ascontiguousarray(WEIGHTS[name][::-1])[::-1]
    for array in (fortran, reverse):
        assert not array.flags.c_contiguous
        save_checkpoint(tmp_path / "c", GRAPH, {**WEIGHTS, name: array})
        np.testing.assert_array_equal(load_checkpoint(tmp_path / "c")[1][name], WEIGHTS[name])


def test_values_that_are_not_finite_come_back(tmp_path: Path) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    save_checkpoint(tmp_path / "c", GRAPH, changed(logits__bias=odd))
    loaded = load_checkpoint(tmp_path / "c")[1]["logits/bias"]
    assert loaded.tobytes() == odd.tobytes()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (without("hidden/bias"), r"missing \['hidden/bias'\], unknown \[\]"),
        (changed(other__kernel=np.zeros(1, np.float32)), r"missing \[\], unknown \['other/kernel'"),
        (
            changed(logits__bias=np.zeros(6, np.float32)),
            r"logits/bias is \(6,\), not \(5,\)",
        ),
        (
            changed(logits__kernel=np.ascontiguousarray(WEIGHTS["logits/kernel"].T)),
            r"logits/kernel is \(5, 7\), not \(7, 5\)",
        ),
        (
            changed(logits__bias=np.zeros(5, np.float64)),
            "logits/bias is float64, not float32",
        ),
        ({}, "missing"),
    ],
)
def test_wrong_weights_are_neither_accepted_nor_saved(
    tmp_path: Path, weights: Weights, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_weights(GRAPH, weights)
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path / "c", GRAPH, weights)
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_weights_are_another_graphs_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checked(path, WEIGHTS, {"graph": two_stems().to_json()})
    with pytest.raises(CheckpointError, match=rf"{path} is damaged: weights do not fit"):
        load_checkpoint(path)


def test_a_file_whose_server_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, graph = tmp_path / "c.safetensors", two_stems()
    save_checkpoint(path, graph, trained_weights(graph, np.random.default_rng(0)))
    away = failing(Path.read_bytes, errno.EIO, errno.ESTALE)
    monkeypatch.setattr(Path, "read_bytes", away)
    with pytest.raises(CheckpointError, match=f"cannot read the checkpoint {path}: Input/output"):
        load_checkpoint(path)
    found, _ = load_checkpoint(path, BackoffRetry(lambda: False, clock=Clock()))
    assert found.hash == graph.hash


@pytest.mark.parametrize(
    "content",
    [
        b"not a checkpoint at all",
        b"\xff" * 64,
        with_header({}),
        with_header([]),
        with_header(5),
        with_header({"__metadata__": "graph"}),
        with_header({"__metadata__": {}}),
        with_header({"__metadata__": {"graph": 5}}),
        with_header({"__metadata__": {"graph": None}}),
        with_header({"__metadata__": {"graph": "{}"}}),
        with_header({"__metadata__": {"graph": GRAPH.to_json()}}),
        with_header({"__metadata__": {"graph": GRAPH.to_json()}, "a": {"dtype": "F32"}}),
        serialized(WEIGHTS, {"graph": GRAPH.to_json()}) + b"\0",
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(tmp_path / "c")


def test_kernels_by_fan_out_are_normal_but_for_their_tails() -> None:
    """Of 64 x 9 in and 256 out: 147,456 numbers, whose deviation is known to 0.3 %."""
    conv = Conv2D(256, 3, initial=Distribution.FAN_OUT_TRUNCATED_NORMAL)
    nodes = (Node("image", Input((4, 4, 64))), Node("conv", conv, ("image",)))
    drawn = initial_weights(Graph(nodes), np.random.default_rng(2))["conv/kernel"]
    deviation = np.sqrt(2.0 / (9 * 256))
    assert drawn.std() == pytest.approx(deviation, rel=1e-2)
    assert abs(drawn.mean()) < 0.01 * deviation
    # Cut off at two deviations of what was cut, which is wider than what is left of it.
    assert np.abs(drawn).max() == pytest.approx(2.0 * deviation / 0.8796, rel=1e-3)


def test_initial_weights_of_a_seed_stay_what_they_are() -> None:
    """Those of version 0.1.0: whoever repeats a run begins where it began."""
    weights = initial_weights(residual(), np.random.default_rng(3))
    drawn = np.random.default_rng(3)
    for name, array in weights.items():
        if name.endswith("/kernel"):
            deviation = np.float32(np.sqrt(2.0 / np.prod(array.shape[:-1])))
            normal = drawn.standard_normal(array.shape, np.float32)
            np.testing.assert_array_equal(array, normal * deviation)


def test_initial_parameters_other_than_kernels_are_neutral() -> None:
    weights = initial_weights(residual(), np.random.default_rng(0))
    neutral = {"gamma": 1.0, "variance": 1.0, "beta": 0.0, "mean": 0.0, "bias": 0.0}
    for name, array in weights.items():
        key = name.rsplit("/")[1]
        if key != "kernel":
            assert (array == neutral[key]).all()


@pytest.mark.parametrize(("classes", "width"), [(10, 1), (256, 1), (1000, 2), (100_000, 4)])
def test_predictions_are_stored_in_the_smallest_integers(
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


def test_damaged_predictions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_predictions(path, Predictions("t", 1, np.arange(100)))
    flip(path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_predictions(path)
    with pytest.raises(CheckpointError):
        load_predictions(tmp_path / "nothing")


def test_a_file_without_classes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_checked(path, {"class": np.zeros(3, np.float32)}, {"trial": "t", "epoch": "1"})
    with pytest.raises(CheckpointError, match="no predicted classes"):
        load_predictions(path)
