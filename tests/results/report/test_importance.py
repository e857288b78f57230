"""Hyperparameter importance: which hyperparameter decides, and when it is not computed."""

from __future__ import annotations

from itertools import product

import pytest
from tests.support.reports import trial_report

from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.results.report.importance import MIN_TRIALS, importance_of
from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.results.report.plots.search import importance_plot
from aiperf_hpc.trial import Hyperparameters, RoundPhase


def trials(rounds: int, *, batches: int = 4, kernels: int = 2) -> list[TrialReport]:
    """Return rounds whose quality rises with the round and, within it, with the batch size only."""
    found: list[TrialReport] = []
    for round_, batch, kernel in product(range(rounds), range(batches), range(kernels)):
        used = Hyperparameters(batch_size=8 * (batch + 1), kernel_size=3 + 2 * kernel,
                               learning_rate=0.1 + round_)  # fmt: skip
        found.append(trial_report(
            f"r0-t{len(found)}", phase=str(RoundPhase.HPO), round=round_, hyperparameters=used,
            best_quality=0.01 * batch + 0.05 * round_,
        ))  # fmt: skip
    return found


def test_the_hyperparameter_that_decides_is_important_and_the_candidates_are_not() -> None:
    found = importance_of(trials(10), ACCURACY)
    assert found is not None
    assert found.trials == 80
    assert list(found.importances) == ["batch_size", "kernel_size"]  # The rate is a round's own.
    assert found.importances["batch_size"] > 0.95
    assert sum(found.importances.values()) == pytest.approx(1.0, abs=2e-4)
    assert found == importance_of(trials(10), ACCURACY)
    plot = importance_plot(found)
    assert plot is not None
    assert "PED-ANOVA" in plot.caption
    assert plot.csv.startswith("series,importance (sum 1),y\n")
    assert f"batch size,{found.importances['batch_size']:.6g},batch size" in plot.csv


def test_rounding_is_no_importance() -> None:
    same = [trial.model_copy(update={"best_quality": 0.1}) for trial in trials(20)]
    found = importance_of(same, ACCURACY)
    assert found is not None
    assert found.importances == {}
    assert found.unavailable_reason == "all HPO trials of a round have the same quality"


@pytest.mark.parametrize(
    ("compared", "reason"),
    [
        (
            trials(2),
            f"16 HPO trials in rounds of at least two trials; at least {MIN_TRIALS} are needed",
        ),
        (trials(20, kernels=1), "batch_size varies within a round; at least two hyperparameters"),
        (trials(60, batches=1, kernels=1), "no hyperparameter varies within a round"),
    ],
)
def test_without_enough_trials_the_reason_is_stated(
    compared: list[TrialReport], reason: str
) -> None:
    found = importance_of(compared, ACCURACY)
    assert found is not None
    assert found.importances == {}
    assert reason in found.unavailable_reason
    assert importance_plot(found) is None


def test_without_hpo_there_is_none() -> None:
    assert importance_of([trial_report("r0-t1", phase=str(RoundPhase.WARMUP))], ACCURACY) is None
