"""Where the time of the replicas went."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_factory import DATASET, Plan, refreshed, write_manifest
from tests.support.run_writer import (
    RunWriter,
    evaluated,
    replica_started,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.config import load_config
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.records import DatasetLoaded, PrimaryHeartbeat, TimeSpent, TrainingStarted
from aiperf_hpc.service.answers.progress import time
from aiperf_hpc.trial import RoundPhase, TimePhase


def test_time_is_told_by_phase_and_what_is_left_is_unrecorded(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write_manifest(run.paths, Plan(replicas=2))
    run.primary(0.0, run_started())
    run.replica(0.0, replica_started(), trial_started())
    run.replica(90.0, trial_ended(), TimeSpent(trial="t1", seconds={TimePhase.TRAIN: 60.0}))
    run.primary(100.0, PrimaryHeartbeat())
    told = time(refreshed(run.paths))
    seconds = {phase.name: phase.seconds for phase in told.phases}
    shares = {phase.name: phase.share for phase in told.phases}
    assert told.elapsed_seconds == 200.0, "of two replicas"
    assert (seconds["train"], seconds["unrecorded"]) == (60.0, 140.0)
    assert (shares["train"], shares["unrecorded"]) == pytest.approx((0.3, 0.7))


def test_a_run_that_has_not_started_has_no_time(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write_manifest(run.paths, Plan())
    assert time(refreshed(run.paths)).elapsed_seconds == 0.0


def test_trainings_are_told_as_the_report_divides_them(tmp_path: Path) -> None:
    """Staged in 4 s before, built in 2 s, and an epoch of 60 s; the second one is under way."""
    run = RunWriter(tmp_path)
    config = load_config("volumes", ["training.target=0.5"])
    manifest = RunManifest(
        run_id="run", nodes=1, hours=1.0, launcher="local", cores=((0,),), versions={}, commit="c",
        rules=RULES, config=config,
    )  # fmt: skip
    manifest.save(run.paths)
    run.primary(0.0, run_started())
    run.replica(1.0, replica_started())
    run.replica(9.0, DatasetLoaded(dataset=DATASET, staged_seconds=4.0))
    for trial, begun in (("t1", 10.0), ("t2", 80.0)):
        run.replica(begun, trial_started(trial, phase=RoundPhase.FIXED))
        run.replica(begun + 2.0, TrainingStarted(trial=trial))
    run.replica(72.0, evaluated("t1", correct=90), trial_ended("t1"))
    run.primary(100.0, PrimaryHeartbeat())
    (told,) = time(refreshed(run.paths)).trainings
    assert (told.trial, told.reached, told.seconds) == ("t1", True, 66.0)
    assert (told.staging_seconds, told.compute_seconds, told.extra_seconds) == (4.0, 60.0, 2.0)
