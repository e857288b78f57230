"""Tests of ending a trial at the quality that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.replica.training.test_trainer import Bench
from tests.support.fakes import Script

from aiperf_hpc.trial import TrialState


@pytest.mark.parametrize(
    ("target", "epochs", "reason"),
    [(0.4, 1, "0.4"), (0.6, 2, "0.6"), (0.61, 3, "0.61"), (0.9, 4, "")],
)
def test_a_trial_ends_with_the_first_epoch_that_reaches_the_target(
    tmp_path: Path, target: float, epochs: int, reason: str
) -> None:
    script = Script(losses=(0.9, 0.8, 0.7, 0.6), accuracies=(0.4, 0.6, 0.8, 0.7))
    result = Bench(tmp_path, script, target=target).run(epochs=4)
    assert len(result.values) == epochs
    assert result.state is TrialState.COMPLETED
    assert result.reason == (f"the target, {reason}, is reached" if reason else "")
    assert result.weights is not None
