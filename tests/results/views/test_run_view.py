"""The read interface, on runs written by the real writers."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.support.clock import START, Clock
from tests.support.run_factory import (
    DATASET,
    Grown,
    Plan,
    Primary,
    Worker,
    initial_graph,
    started_run,
    write_manifest,
    write_run,
)

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.results.views.replica_status import ReplicaStatus
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.results.views.trials import trials_text
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.liveness import LAG_SECONDS
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import JobPhase, RoundPhase, TimePhase, TrialState

ONE = Plan(replicas=1)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"has no run\.yaml"):
        RunView(RunPaths(tmp_path))


def test_the_records_of_a_view_are_freed_with_it(tmp_path: Path) -> None:
    view = RunView.read(write_run(tmp_path, ONE))
    view.counts(next(iter(view.history.trials.values())).started.graph)
    history = weakref.ref(view.history)
    gc.disable()
    try:
        del view
        assert history() is None
    finally:
        gc.enable()


def test_a_run_that_has_not_started(tmp_path: Path) -> None:
    write_manifest(RunPaths(tmp_path), ONE)
    view = RunView.read(RunPaths(tmp_path))
    status = view.status(START)
    assert status.state is RunState.STARTING
    assert status.elapsed_seconds == 0.0
    assert status.remaining_seconds == pytest.approx(900.0)
    assert status.score.operations == 0
    assert status.score.ops == 0.0
    assert status.score.regulated is None
    assert view.series.official() == []
    assert view.trials(START) == []
    assert view.history.bytes_read == {}


def test_a_primary_whose_process_is_gone_from_this_machine_is_said_to_be(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_manifest(paths, ONE)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    started = records.RunStarted(
        run_id="r", nodes=1, hours=1.0, launcher="local", host=socket.gethostname(), pid=gone.pid
    )
    with Primary(paths, ONE) as primary:
        primary.write(started)
        view = RunView.read(paths)
        status = view.status(START + 1.0)
        assert status.state is RunState.GONE
        assert status.reason.startswith(
            f"the primary, process {gone.pid} on this machine, has exited; `aiperf resume"
        )
        # This process is the primary, e.g. one that serves its own status.
        primary.write(started.model_copy(update={"pid": os.getpid()}))
        view.refresh()
        assert view.status(START + 1.0).state is RunState.RUNNING
        primary.write(records.PrimaryFailed(reason="unexpected ValueError: no"))
        view.refresh()
        assert view.status(START + 1.0).state is RunState.GONE
        primary.write(started.model_copy(update={"host": "elsewhere"}))  # Resumed.
        view.refresh()
        assert view.status(START + 1.0).state is RunState.RUNNING


def test_the_states_of_a_run(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_manifest(paths, ONE)
    view = RunView(paths)
    with Primary(paths, ONE) as primary:
        primary.start()
        view.refresh()
        assert view.status(START + 10.0).state is RunState.RUNNING
        silent = view.status(START + LAG_SECONDS + 5.0)
        assert (silent.state, silent.reason) == (
            RunState.SILENT,
            "the primary has written nothing for 65 s",
        )
        primary.write(records.StopRequested(reason="stopped by a test"), after=20.0)
        view.refresh()
        stopping = view.status(START + 21.0)
        assert (stopping.state, stopping.reason) == (RunState.STOPPING, "stopped by a test")
        primary.end("the time is over")
    view.refresh()
    ended = view.status(START + 1_000_000.0)
    assert (ended.state, ended.reason) == (RunState.ENDED, "the time is over")
    assert ended.elapsed_seconds == pytest.approx(20.0)
    assert ended.remaining_seconds == 0.0


def test_a_trial_from_its_start_to_its_end(tmp_path: Path) -> None:
    with started_run(tmp_path) as run:  # For 4 s.
        worker, paths = run.worker, run.paths
        trial = worker.begin(Grown(initial_graph(worker.config)), RoundPhase.WARMUP, 1)
        (compiling,) = RunView.read(paths).trials(run.now + 2.0)
        assert compiling.state == TrialState.COMPILING
        assert compiling.started_seconds == pytest.approx(4.0)
        assert compiling.seconds == pytest.approx(2.0)
        assert compiling.best_accuracy is None
        worker.write(records.TrainingStarted(trial=trial), after=3.0)
        worker.train(trial, 1, 10.0)
        worker.evaluate(trial, 1, 270, 2.0)
        worker.train(trial, 2, 10.0, halves=1)
        (training,) = RunView.read(paths).trials(run.now)
        assert training.state == TrialState.TRAINING
        assert training.epochs == 1
        assert training.train_samples == 1437 + 718
        assert training.validation_samples == 360
        assert training.best_accuracy == 270 / 360
        worker.end(trial, TrialState.STOPPED, "enough", predicted=0.8)
    (ended,) = RunView.read(paths).trials(run.now + 500.0)
    assert (ended.state, ended.reason) == (TrialState.STOPPED, "enough")
    assert ended.predicted_accuracy == 0.8
    assert ended.seconds == pytest.approx(3.0 + 10.0 + 2.0 + 5.0)
    assert ended.train_operations > 2 * ended.validation_operations > 0


def test_candidates_in_stock_are_queued(tmp_path: Path) -> None:
    with started_run(tmp_path) as run:
        worker, graph = run.worker, initial_graph(run.worker.config)
        first = worker.begin(Grown(graph), RoundPhase.WARMUP, 1)
        grown = worker.propose(graph, first, np.random.default_rng(0))
        status = RunView.read(run.paths).status(run.now)
        assert status.trials_by_state == {"queued": 1, "compiling": 1}
        assert status.replicas[0].queue_length == 1
        worker.begin(grown, RoundPhase.WARMUP, 2)
    status = RunView.read(run.paths).status(run.now)
    assert status.trials_by_state == {"queued": 0, "compiling": 2}
    assert status.rounds == {"r0": 2}


def test_candidates_that_are_left_at_the_end_were_not_trained() -> None:
    states = {"queued": 1, "completed": 2, "failed": 0}
    assert trials_text(states, ended=False) == "2 completed, 1 candidate queued"
    assert trials_text(states, ended=True) == "2 completed, 1 candidate not trained"
    assert trials_text({}, ended=True) == "none"


def test_the_states_of_a_replica(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    config = write_manifest(paths, ONE).config
    clock = Clock()

    def state(after: float = 0.0) -> str:
        return RunView.read(paths).status(clock.now + after).replicas[0].state

    with Primary(paths, ONE, clock) as primary, Worker(paths, "r0", config, clock) as worker:
        primary.start()
        assert state() == "starting"
        worker.start()
        assert state() == TimePhase.TRAIN
        assert state(LAG_SECONDS + 1.0) == "silent"
        worker.write(records.ReplicaEnded(reason="asked to stop"))
        assert state(LAG_SECONDS + 1.0) == "ended"
        primary.write(records.ReplicaExited(replica="r0", status=-9))
        assert state() == "failed (-9)"
    (replica,) = RunView.read(paths).status(clock.now + 5.0).replicas
    assert replica.host == "node000"
    assert replica.cpu_percent == 187.5
    assert replica.memory_bytes == 3 * 2**30
    assert replica.last_record_seconds == pytest.approx(5.0)


def test_a_schedulers_states_of_a_replica(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    config = write_manifest(paths, ONE).config
    clock = Clock()

    def replica(after: float = 0.0) -> ReplicaStatus:
        return RunView.read(paths).status(clock.now + after).replicas[0]

    def job(phase: JobPhase, node: str | None = None, detail: str = "") -> None:
        primary.write(records.JobState(replica="r0", phase=phase, node=node, detail=detail))

    with Primary(paths, ONE, clock) as primary, Worker(paths, "r0", config, clock) as worker:
        primary.start()
        job(JobPhase.PENDING, detail="Resources")
        now = replica()
        assert (now.state, now.node, now.job, now.detail) == ("pending", None, "200", "Resources")
        job(JobPhase.RUNNING, "n1")
        assert (replica().state, replica().node) == ("starting", "n1")
        worker.start()
        assert replica().state == TimePhase.TRAIN
        assert replica(LAG_SECONDS + 1.0).state == "silent"
        primary.write(records.SchedulerState(reachable=False, detail="connect failure"))
        assert replica().state == TimePhase.TRAIN  # Its own records say that it is alive.
        assert replica(LAG_SECONDS + 1.0).state == "unknown"
        assert RunView.read(paths).status(clock.now).scheduler_problem == "connect failure"
        primary.write(records.SchedulerState(reachable=True))
        assert replica(LAG_SECONDS + 1.0).state == "silent"
        job(JobPhase.LOST, "n1", "NODE_FAIL")
        assert replica().state == "lost"
        worker.write(records.ReplicaEnded(reason="SIGTERM"))
        assert replica().state == "ended"
        job(JobPhase.REQUEUED, detail="BeginTime")
        assert (replica().state, replica().node) == ("requeued", None)
        clock.advance(1.0)
        job(JobPhase.RUNNING, "n2")
        assert (replica().state, replica().node) == ("starting", "n2")
        job(JobPhase.FAILED, "n1", "TIMEOUT")
        assert (replica().state, replica().detail) == ("failed", "TIMEOUT")


def test_replicas_that_are_not_alike_are_a_problem(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    plan = Plan(replicas=6)
    config = write_manifest(paths, plan).config
    with Primary(paths, plan) as primary:
        primary.start()
    for number in range(6):
        with Worker(paths, f"r{number}", config) as worker:
            other = {"sha256": "f" * 64} if number == 4 else {}
            worker.start(DATASET.model_copy(update=other))
    assert RunView.read(paths).status().problems == (
        f"the dataset's SHA-256 differs: {DATASET.sha256[:12]} on r0, r1, r2 and 2 more; "
        "ffffffffffff on r4",
    )


def test_replicas_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    view = RunView.read(write_run(tmp_path, Plan(replicas=11, trials=0, hpo_trials=0)))
    assert [r.id for r in view.status().replicas] == [f"r{n}" for n in range(11)]


def test_the_best_is_the_best_until_then(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=2, hpo_trials=0, failed=0))
    view = RunView.read(paths)
    everything = view.history.best_until(view.until)
    assert everything is not None
    assert everything == view.history.best
    before = view.history.best_until(everything.utc - 0.001)
    assert before is not None
    assert before.quality < everything.quality
    assert view.history.best_until(START) is None


def test_score_at_every_interval_and_at_the_end(tmp_path: Path) -> None:
    view = RunView.read(write_run(tmp_path, Plan(replicas=1)))
    points = view.series.official()
    elapsed = view.final().elapsed_seconds
    step = 0.02 * 3600.0
    expected = [step * (i + 1) for i in range(int(elapsed / step))]
    assert [p.elapsed_seconds for p in points[:-1]] == pytest.approx(expected)
    assert points[-1] == view.final()
    assert all(p.ops == p.operations / p.elapsed_seconds for p in points)
    assert [p.operations for p in points] == sorted(p.operations for p in points)


def test_damaged_files_and_rejected_candidates_are_problems(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0))
    with JournalWriter(paths.replica_journal("r0"), clock=Clock(START + 60.0)) as journal:
        journal.append(
            records.FileProblem(file="study.log", problem="study.log is gone", remedy="made again")
        )
        journal.append(records.ProposalRejected(proposal="r0-w0-1", reason="it is damaged"))
    view = RunView.read(paths)
    said = ("r0: study.log is gone; made again", "r0-w0-1 could not be loaded: it is damaged")
    assert view.status().problems == said
