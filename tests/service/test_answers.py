"""Answers about a run: its time, trials in flight, and telemetry."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.support.clock import START, Clock
from tests.support.run_factory import (
    DATASET,
    Grown,
    Plan,
    Primary,
    Worker,
    initial_graph,
    write_manifest,
)
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import (
    RunWriter,
    evaluated,
    replica_started,
    run_started,
    trial_ended,
    trial_started,
)
from tests.support.telemetry_run import manifest, write_telemetry

from aiperf_hpc.config import load_config
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.manifest import RULES
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import DatasetLoaded, PrimaryHeartbeat, TimeSpent, TrainingStarted
from aiperf_hpc.service.answers.machines import TelemetryQuestion
from aiperf_hpc.service.answers.progress import time
from aiperf_hpc.service.answers.trials import (
    InFlightQuestion,
    TrialOrder,
    TrialProgress,
    TrialsQuestion,
)
from aiperf_hpc.service.metrics import exposition
from aiperf_hpc.service.problem import ProblemError
from aiperf_hpc.service.runs import RunList
from aiperf_hpc.trial import RoundPhase, TimePhase, TrialState

HEARTBEAT = records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=0.0, memory_bytes=0)


def test_time_is_told_by_phase_and_what_is_left_is_unrecorded(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write_manifest(run.paths, Plan(replicas=2))
    run.primary(0.0, run_started())
    run.replica(0.0, replica_started(), trial_started())
    run.replica(90.0, trial_ended(), TimeSpent(trial="t1", seconds={TimePhase.TRAIN: 60.0}))
    run.primary(100.0, PrimaryHeartbeat())
    told = time(RunView.read(run.paths))
    seconds = {phase.name: phase.seconds for phase in told.phases}
    fractions = {phase.name: phase.fraction for phase in told.phases}
    assert told.elapsed_seconds == 200.0, "of two replicas"
    assert (seconds["train"], seconds["unrecorded"]) == (60.0, 140.0)
    assert seconds["in progress"] == 0.0
    assert (fractions["train"], fractions["unrecorded"]) == pytest.approx((0.3, 0.7))


def test_the_time_of_the_trial_under_way_is_in_progress(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write_manifest(run.paths, Plan(replicas=2))
    run.primary(0.0, run_started())
    run.replica(40.0, replica_started(), trial_started())
    run.replica(100.0, HEARTBEAT)
    run.primary(100.0, PrimaryHeartbeat())
    seconds = {phase.name: phase.seconds for phase in time(RunView.read(run.paths)).phases}
    assert (seconds["in progress"], seconds["unrecorded"]) == (60.0, 140.0)


def test_the_time_after_a_replica_exited_is_not_in_progress(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write_manifest(run.paths, Plan(replicas=1))
    run.primary(0.0, run_started())
    run.replica(40.0, replica_started(), trial_started())
    run.replica(50.0, HEARTBEAT)
    run.primary(60.0, records.ReplicaExited(replica="r0", status=-9))
    run.primary(100.0, PrimaryHeartbeat())
    seconds = {phase.name: phase.seconds for phase in time(RunView.read(run.paths)).phases}
    assert (seconds["in progress"], seconds["unrecorded"]) == (10.0, 90.0)


def test_trials_are_sorted_by_their_seconds_so_far(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write_manifest(run.paths, Plan(replicas=1))
    run.primary(0.0, run_started())
    run.replica(1.0, replica_started(), trial_started("ended"))
    run.replica(500.0, trial_ended("ended"))
    run.replica(505.0, trial_started("open"))
    run.primary(510.0, PrimaryHeartbeat())
    found = TrialsQuestion(sort=TrialOrder.SECONDS)(RunView.read(run.paths))
    assert [each.id for each in found.trials] == ["open", "ended"]


def test_a_run_that_has_not_started_has_no_time(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write_manifest(run.paths, Plan())
    assert time(RunView.read(run.paths)).elapsed_seconds == 0.0


def test_trainings_are_told_as_the_report_divides_them(tmp_path: Path) -> None:
    """Staged in 4 s before, built in 2 s, and an epoch of 60 s; the second one is under way."""
    run = RunWriter(tmp_path)
    config = load_config("volumes", ["training.target=0.5"])
    manifest = run_manifest(config, rules=RULES)
    manifest.save(run.paths)
    run.primary(0.0, run_started())
    run.replica(1.0, replica_started())
    run.replica(9.0, DatasetLoaded(dataset=DATASET, staged_seconds=4.0))
    for trial, begun in (("t1", 10.0), ("t2", 80.0)):
        run.replica(begun, trial_started(trial, phase=RoundPhase.FIXED))
        run.replica(begun + 2.0, TrainingStarted(trial=trial))
    run.replica(72.0, evaluated("t1", correct=90), trial_ended("t1"))
    run.primary(100.0, PrimaryHeartbeat())
    (told,) = time(RunView.read(run.paths)).trainings
    assert (told.trial, told.reached, told.seconds) == ("t1", True, 66.0)
    assert (told.staging_seconds, told.compute_seconds, told.extra_seconds) == (4.0, 60.0, 2.0)


class _Run:
    """A run of one replica with one trial."""

    def __init__(self, root: Path, hours: float = 1.0) -> None:
        self.paths, plan = RunPaths(root), Plan(replicas=1, hours=hours)
        config = write_manifest(self.paths, plan).config
        self.primary = Primary(self.paths, plan, Clock(START))
        self.primary.start()
        self.worker = Worker(self.paths, "r0", config, Clock(START))
        self.worker.start()
        self.limit = config.training.max_epochs
        self.trial = self.worker.begin(Grown(initial_graph(config)), RoundPhase.WARMUP, 1)

    def progress(self) -> TrialProgress:
        view = RunView.read(self.paths)
        now = self.worker.clock.now
        view._now = lambda: now  # type: ignore[method-assign]
        (progress,) = InFlightQuestion()(view).trials
        return progress


def test_a_trial_tells_its_epoch_and_the_time_to_its_limit(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    compiling = run.progress()
    assert (compiling.epoch, compiling.epoch_fraction, compiling.remaining_seconds) == (
        1,
        0.0,
        None,
    )
    run.worker.write(records.TrainingStarted(trial=run.trial), after=7.0)
    run.worker.train(run.trial, 1, 25.0)
    run.worker.evaluate(run.trial, 1, 100, 5.0)
    run.worker.train(run.trial, 2, 30.0, halves=1)
    progress = run.progress()
    share = (DATASET.train_samples // 2) / DATASET.train_samples
    assert (progress.trial.id, progress.epoch) == (run.trial, 2)
    assert progress.epoch_fraction == pytest.approx(share)
    assert progress.remaining_seconds == pytest.approx(
        45.0 / (1.0 + share) * (run.limit - 1 - share)
    )
    assert progress.remaining_seconds == pytest.approx(30.0 * (run.limit - 1.5), rel=0.001)


def test_a_trial_has_no_more_time_left_than_its_run(tmp_path: Path) -> None:
    run = _Run(tmp_path, hours=60.0 / 3600.0)
    run.worker.write(records.TrainingStarted(trial=run.trial), after=7.0)
    run.worker.train(run.trial, 1, 25.0)
    assert 0.0 < (run.progress().remaining_seconds or 0.0) <= 60.0 - 32.0


def test_the_time_left_is_known_before_the_clock_of_the_run_starts(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    journal = run.paths.primary_journal
    journal.write_text(
        journal.read_text().replace('"clock_starts":"now"', '"clock_starts":"first"')
    )
    run.worker.write(records.TrainingStarted(trial=run.trial), after=7.0)
    run.worker.train(run.trial, 1, 25.0)
    assert RunView.read(run.paths).history.start_utc is None
    assert run.progress().remaining_seconds == pytest.approx(25.0 * (run.limit - 1))


def test_a_trial_that_is_over_is_not_in_flight(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.worker.end(run.trial, TrialState.FAILED, "no memory")
    answer = InFlightQuestion()(RunView.read(run.paths))
    assert (answer.total, answer.trials) == (0, ())


NO_RUNS = RunList(runs=(), loading=(), unreadable=(), foreign=0)


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    run = write_telemetry(tmp_path)
    manifest().save(run.paths)
    return RunView.read(run.paths)


def test_all_nodes_as_they_are_and_the_course_of_one(view: RunView) -> None:
    found = TelemetryQuestion()(view)
    assert [node.host for node in found.now.nodes] == ["n", "m"]
    assert found.now.energy.joules == 660_000.0
    assert found.now.nodes[0].accelerators[0].celsius == 61.0
    assert [each.host for each in found.absent] == ["n", "m"]
    one = TelemetryQuestion(host="m", points=2)(view)
    assert [(each.host, len(each.points)) for each in one.series] == [("m", 2)]
    assert [node.host for node in one.now.nodes] == [each.host for each in one.absent] == ["m"]


def test_without_a_node_there_is_no_course(view: RunView) -> None:
    assert TelemetryQuestion(points=2)(view).series == ()
    with pytest.raises(ProblemError, match="no telemetry of a node 'x'"):
        TelemetryQuestion(host="x", points=2)(view)


def test_a_runs_status_has_its_nodes_without_each_accelerator(view: RunView) -> None:
    telemetry = view.status().telemetry
    assert telemetry is not None
    assert [node.watts for node in telemetry.nodes] == [1100.0, 1100.0]
    assert telemetry.nodes[0].accelerators == ()


def test_nodes_and_energy_are_metrics(view: RunView) -> None:
    text = exposition(CollectorRegistry(), NO_RUNS, {"a": view.status()}, None).decode()
    told = {
        (family.name, sample.labels.get("host")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert told["aiperf_node_power_watts", "n"] == told["aiperf_node_power_watts", "m"] == 1100.0
    status = view.status().telemetry
    assert status is not None
    percent = status.nodes[0].accelerator_percent
    assert percent is not None
    assert told["aiperf_node_accelerator_ratio", "n"] == percent / 100.0
    assert told["aiperf_run_energy_joules", None] == 660_000.0
