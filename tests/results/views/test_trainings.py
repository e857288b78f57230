"""The time of trainings in its three parts, as the records tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_factory import DATASET
from tests.support.run_writer import (
    FIRST,
    SECOND,
    START,
    RunWriter,
    evaluated,
    replica_started,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.results.views.models import TrainingTime, training_times
from aiperf_hpc.run.records import DatasetLoaded, TrainingStarted
from aiperf_hpc.trial import RoundPhase, TrialState

EVER = START + 1e6


def loaded(seconds: float) -> DatasetLoaded:
    return DatasetLoaded(dataset=DATASET, staged_seconds=seconds)


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    """Staged for 20 s; a training of two epochs, built in 5 s, begins 30 s after the start."""
    writer = RunWriter(tmp_path)
    writer.primary(0, run_started(10.0))
    writer.life(FIRST, 1, replica_started())
    writer.life(FIRST, 25, loaded(20.0))
    writer.life(FIRST, 30, trial_started("t1", phase=RoundPhase.FIXED))
    writer.life(FIRST, 35, TrainingStarted(trial="t1"))
    writer.life(FIRST, 135, evaluated("t1", correct=50, epoch=1))
    return writer


def of(run: RunWriter, target: float | None = 0.6, until: float = EVER) -> tuple[TrainingTime, ...]:
    return training_times(run.history(), until, target)


def test_a_training_is_staging_compute_and_the_rest(run: RunWriter) -> None:
    run.life(FIRST, 235, evaluated("t1", correct=70, epoch=2))
    run.life(FIRST, 240, trial_ended("t1"))
    (found,) = of(run)
    assert (found.trial, found.replica, found.seed, found.epochs) == ("t1", "r0", 0, 2)
    assert (found.staging_seconds, found.compute_seconds, found.extra_seconds) == (20, 200, 5)
    assert found.seconds == 225
    assert found.reached is True
    assert of(run, target=0.8)[0].reached is False
    assert of(run, target=None)[0].reached is None
    assert of(run, until=START + 200) == ()


def test_what_an_interruption_took_is_in_the_rest(run: RunWriter) -> None:
    """Half an epoch was lost, the dataset brought again in 10 s, and the network built in 2 s."""
    run.life(SECOND, 200, replica_started())
    run.life(SECOND, 215, loaded(10.0))
    again = trial_started("t2", phase=RoundPhase.FIXED)
    run.life(SECOND, 220, again.model_copy(update={"resumes": "t1", "first_epoch": 2}))
    run.life(SECOND, 222, TrainingStarted(trial="t2"))
    run.life(SECOND, 322, evaluated("t2", correct=70, epoch=2))
    run.life(SECOND, 323, trial_ended("t2"))
    (found,) = of(run)
    assert (found.trial, found.epochs) == ("t2", 2)
    assert (found.staging_seconds, found.compute_seconds) == (30, 200)
    assert found.seconds == 20 + 322 - 30
    assert found.extra_seconds == found.seconds - 230


def test_what_was_cut_or_never_evaluated_is_no_training(run: RunWriter) -> None:
    run.life(FIRST, 140, trial_ended("t1", TrialState.STOPPED))
    run.life(FIRST, 141, trial_started("t2", phase=RoundPhase.FIXED))
    run.life(FIRST, 142, trial_ended("t2", TrialState.FAILED))
    run.life(FIRST, 143, trial_started("t3", phase=RoundPhase.FIXED))
    assert of(run) == ()
