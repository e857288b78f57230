"""What verification finds wrong with how often and in which attempts a replica trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.hostile import in_event
from tests.support.rules import check_rule
from tests.support.run_writer import evaluated, trial_started

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history.trials import Evaluation, Trial
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import TRAININGS_DONE
from aiperf_hpc.verification.audit import evidence_of

ROUNDS = 4
"""Of each replica of the run."""


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", 2).paths


def failures(run: RunPaths, requested: int | None) -> list[str]:
    """Return what the rule finds if this number of training runs was requested."""
    search = SearchConfig.model_validate({"method": "fixed", "max_trainings": requested})
    found = evidence_of(RunView(run))
    found.config = found.config.model_copy(update={"search": search})
    return sorted(check_rule("trainings", found).failures)


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        (None, []),
        (ROUNDS, []),
        (ROUNDS + 1, []),
        (ROUNDS - 1, ["r0 began training 4 of 3", "r1 began training 4 of 3"]),
    ],
)
def test_more_training_runs_than_requested_are_found(
    run: RunPaths, requested: int | None, found: list[str]
) -> None:
    assert failures(run, requested) == found


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        (ROUNDS, []),
        (ROUNDS + 1, ["r0 ended as if done, with 4 training runs of 5",
                      "r1 ended as if done, with 4 training runs of 5"]),
        (None, ["r0 ended as if done, with 4 training runs of any",
                "r1 ended as if done, with 4 training runs of any"]),
    ],
)  # fmt: skip
def test_a_replica_that_ended_as_done_has_all_requested_training_runs(
    run: RunPaths, requested: int | None, found: list[str]
) -> None:
    in_event("replica_ended", reason=TRAININGS_DONE)(run)
    assert failures(run, requested) == found


def test_evaluations_of_a_resumed_trial_are_those_of_its_epochs(run: RunPaths) -> None:
    """An attempt evaluates again the epochs that it repeats, the third one those of both others."""
    found = evidence_of(RunView(run))
    before: str | None = None
    for launch, epochs in enumerate((range(1, 5), range(3, 5), range(2, 4))):
        started = trial_started(f"a{launch}", resumes=before, first_epoch=epochs[0])
        trial = Trial("r0", started, float(launch), incarnation=Incarnation(launch))
        trial.evaluations += [
            Evaluation.of(launch, evaluated(trial.id, correct=9, epoch=epoch)) for epoch in epochs
        ]
        found.history.trials[trial.id] = trial
        before = trial.id
    chosen = [(each.trial, each.epoch) for each in found.evaluations(trial)]
    assert chosen == [("a0", 1), ("a2", 2), ("a2", 3)]
    trial.incarnation = Incarnation(0)  # An attempt resumes none of a later one.
    assert [each.epoch for each in found.evaluations(trial)] == [2, 3]
