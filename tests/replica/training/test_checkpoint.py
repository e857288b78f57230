"""Checkpoints of running trials, and those of earlier versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.networks import two_stems

from aiperf_hpc.morphism.weights.weight_file import initial_weights, save_checked
from aiperf_hpc.replica.training.checkpoint import load_training, save_training
from aiperf_hpc.replica.training.trial import TrainingState, TrialProgress

GRAPH = two_stems()
WEIGHTS = initial_weights(GRAPH, np.random.default_rng(0))


def test_a_checkpoint_of_the_first_version_is_read(tmp_path: Path) -> None:
    """Its optimizer state was momenta, and its progress had no losses but the lowest."""
    path = tmp_path / "under-way.safetensors"
    momenta = {f"momentum:{name}": WEIGHTS[name] + 1.0 for name in GRAPH.parameters}
    progress = (
        '{"trial":"r0-t1","epochs":2,"accuracies":[0.5,0.6],"lowest_loss":1.5,"since_lowest":1}'
    )
    save_checked(path, {**WEIGHTS, **momenta}, {"graph": GRAPH.to_json(), "course": progress})
    found = load_training(path)
    assert (found.graph, found.weights.keys()) == (GRAPH, WEIGHTS.keys())
    assert found.progress == TrialProgress(
        trial="r0-t1", epochs=2, accuracies=(0.5, 0.6), lowest_loss=1.5, since_lowest=1
    )
    assert found.optimizer_state.keys() == momenta.keys()
    for key, array in momenta.items():
        np.testing.assert_array_equal(found.optimizer_state[key], array)


def test_an_optimizer_state_keeps_its_shapes(tmp_path: Path) -> None:
    """The shape of the step count is ()."""
    path = tmp_path / "under-way.safetensors"
    state = {f"first_moment:{name}": WEIGHTS[name] for name in GRAPH.parameters}
    state["step"] = np.array(7, np.float32)
    save_training(path, TrainingState(TrialProgress(trial="r0-t1"), GRAPH, WEIGHTS, state))
    found = load_training(path).optimizer_state
    assert {k: (a.shape, a.tobytes()) for k, a in found.items()} == {
        k: (a.shape, a.tobytes()) for k, a in state.items()
    }
