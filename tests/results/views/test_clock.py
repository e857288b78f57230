"""What is said of a run that waits for its nodes, or waited for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_factory import Plan, write_manifest
from tests.support.run_writer import START, RunWriter, replica_started, run_ended, run_started

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.terminal.status_line import status_line
from aiperf_hpc.results.views.clock import clock_lines
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView
from aiperf_hpc.run.records import (
    ClockStarted,
    ClockStarts,
    JobState,
    PrimaryHeartbeat,
    ReplicaLaunched,
    ReplicaReady,
)
from aiperf_hpc.trial import JobPhase


def job(replica: str, started: float | None) -> JobState:
    return JobState(
        replica=replica,
        phase=JobPhase.PENDING if started is None else JobPhase.RUNNING,
        detail="Resources" if started is None else "",
        submitted_utc=START + 10.0,
        started_utc=None if started is None else START + started,
    )


class Run:
    """A run of two replicas that SLURM took after 10 s."""

    def __init__(self, folder: Path) -> None:
        self.writer = RunWriter(folder)
        write_manifest(self.writer.paths, Plan(replicas=2))

    def begin(self, starts: ClockStarts = "first") -> None:
        # On a host of its own: whether its primary lives is not to be seen from here.
        self.writer.primary(0.0, run_started().model_copy(update={"clock_starts": starts}))
        for name in ("r0", "r1"):
            self.writer.primary(0.0, ReplicaLaunched(replica=name, job=name))
        self.writer.primary(15.0, job("r0", None), job("r1", None))

    def start_clock(self, at: float, problem: str = "") -> None:
        times = {"submitted_utc": START + 10.0, "granted_utc": START + 600.0}
        event = ClockStarted(start_utc=START + at, replica="r0", problem=problem, **times)
        self.writer.primary(605.0, job("r0", 600.0), event)

    def status(self, at: float) -> RunStatus:
        self.writer.primary(at, PrimaryHeartbeat())
        view = RunView.read(self.writer.paths)
        return view.status(START + at)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_run_in_the_queue_says_so_and_takes_no_time(run: Run) -> None:
    run.begin()
    status = run.status(310.0)
    assert status.state is RunState.QUEUED
    assert status.reason == "no node yet: Resources"
    assert (status.elapsed_seconds, status.remaining_seconds) == (0.0, 900.0)
    assert status_line(status).startswith(
        "queued 5 min 00 s: no node yet: Resources  0.0 s of 15 min"
    )
    assert list(clock_lines(status.clock)) == ["5 min 00 s until the first node, not charged"]


def test_a_replica_that_comes_later_is_idle_and_charged(run: Run) -> None:
    run.begin()
    run.start_clock(600.0)
    status = run.status(640.0)
    assert (status.state, status.elapsed_seconds) == (RunState.RUNNING, 40.0)
    waiting = "9 min 50 s until the first node, not charged; 1 replica came later: "
    assert list(clock_lines(status.clock)) == [f"{waiting}40 node-seconds idle, charged"]
    run.writer.primary(650.0, job("r1", 647.5))
    status = run.status(700.0)
    assert status.clock is not None
    assert (status.clock.queue_seconds, status.clock.idle_node_seconds) == (590.0, 47.5)


def test_nodes_that_wait_for_others_are_shown(run: Run) -> None:
    run.begin("all")
    run.writer.primary(605.0, job("r0", 600.0))
    run.writer.replica(604.0, replica_started(), ReplicaReady())
    status = run.status(640.0)
    assert (status.state, status.reason) == (RunState.QUEUED, "1 of 2 replicas are ready")
    assert [replica.state for replica in status.replicas] == ["ready", "pending"]
    run.start_clock(700.0, problem="the scheduler's clock is off")
    assert list(clock_lines(run.status(900.0).clock)) == [
        "9 min 50 s until the first node, not charged; nodes waited for others: 100 node-seconds",
        "the scheduler's clock is off",
    ]


def test_a_run_whose_clock_started_with_it_waited_for_nothing(run: Run) -> None:
    run.begin("now")
    assert run.status(640.0).clock is None


def test_the_report_states_the_time_in_the_queue(run: Run) -> None:
    run.begin()
    run.start_clock(600.0)
    run.writer.primary(700.0, run_ended())
    view = RunView(run.writer.paths)
    write_report(view)
    paths = run.writer.paths
    queue = "9 min 50 s until the first node, not charged; 1 replica came later: 100 node-seconds"
    assert f" : {queue}" in (paths.report / "result.txt").read_text("utf-8")
    assert f"queue: {queue}" in (paths.report / "report.html").read_text("utf-8")
    assert '"queue_seconds": 590.0' in (paths.report / "report.json").read_text("utf-8")


def test_a_run_that_ended_in_the_queue_has_a_report(run: Run) -> None:
    run.begin()
    run.writer.primary(310.0, run_ended())
    view = RunView(run.writer.paths)
    write_report(view)
    text = (run.writer.paths.report / "result.txt").read_text("utf-8")
    assert "5 min 00 s until the first node, not charged" in text
