"""Checkpoints of running trials."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.networks import two_stems

from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.training.checkpoint import load_training, save_training
from aiperf_hpc.replica.training.trial import TrainingState, TrialProgress

GRAPH = two_stems()
WEIGHTS = initial_weights(GRAPH, np.random.default_rng(0))


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
