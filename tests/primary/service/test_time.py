"""Where the time of the replicas went."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_factory import Plan, refreshed, write_manifest
from tests.support.run_writer import (
    RunWriter,
    replica_started,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.primary.service.answers.time import time
from aiperf_hpc.run.records import PrimaryHeartbeat, TimeSpent
from aiperf_hpc.trial import TimePhase


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
