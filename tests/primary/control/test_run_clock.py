"""Start of the clock of a queued run, according to its records."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.present import present
from tests.support.run_writer import (
    FIRST,
    SECOND,
    START,
    THIRD,
    RunWriter,
    replica_started,
    run_started,
)

from aiperf_hpc.primary.control.run_clock import RunClock, start_at_the_end
from aiperf_hpc.primary.launchers.base import WaitLimit
from aiperf_hpc.run.records import ClockStarted, ClockStarts, JobState, ReplicaReady, ReplicaStarted
from aiperf_hpc.trial import JobPhase

GRACE = 60.0


def queued(folder: Path, starts: ClockStarts = "first") -> RunWriter:
    """A run whose primary began at START."""
    run = RunWriter(folder)
    run.primary(0.0, run_started().model_copy(update={"clock_starts": starts}))
    return run


def job(replica: str, started: float | None, submitted: float = 1.0) -> JobState:
    """What the scheduler says, in seconds since START."""
    return JobState(
        replica=replica,
        phase=JobPhase.PENDING if started is None else JobPhase.RUNNING,
        submitted_utc=START + submitted,
        started_utc=None if started is None else START + started,
    )


def came(name: str = "r0", alive: float = 3.0) -> ReplicaStarted:
    return replica_started(name).model_copy(update={"alive_seconds": alive})


def clock_of(
    run: RunWriter, starts: ClockStarts = "first", now: float = 0.0
) -> tuple[RunClock, Clock]:
    clock = Clock(START + now)
    limit = WaitLimit(420.0, "slurm.time_margin_minutes")
    return RunClock(run.history(), starts, 2, clock, grace=GRACE, wait_limit=limit), clock


def started(run: RunWriter, now: float = 0.0) -> ClockStarted:
    """Return the start of the clock, which the records contain."""
    return present(clock_of(run, run.history().clock_starts, now=now)[0].due())


def test_nothing_starts_it_while_all_wait(tmp_path: Path) -> None:
    run = queued(tmp_path)
    run.primary(5.0, job("r0", None), job("r1", None))
    clock, _ = clock_of(run)
    assert clock.due() is None
    assert clock.due(last=True) is None  # Nor does the end of a run that never had a node.


def test_it_starts_when_the_scheduler_gave_the_first_node(tmp_path: Path) -> None:
    run = queued(tmp_path)
    run.primary(605.0, job("r0", 602.0), job("r1", 601.0))
    run.replica(610.0, came())
    due = started(run)
    assert due.start_utc == due.granted_utc == START + 601.0
    assert (due.replica, due.queue_seconds, due.problem) == ("r1", 600.0, "")


@pytest.mark.parametrize("by", ["the scheduler", "the node"])
def test_waiting_for_a_silent_side_times_out(tmp_path: Path, by: str) -> None:
    run = queued(tmp_path)
    if by == "the scheduler":
        run.primary(605.0, job("r0", 601.0))
    else:
        run.replica(604.0, came())
    clock, now = clock_of(run)
    assert clock.due() is None
    now.advance(GRACE)
    for due in (clock.due(), clock_of(run)[0].due(last=True)):
        assert present(due).start_utc == START + 601.0


@pytest.mark.parametrize(
    ("given", "came_at", "start", "problem"),
    [
        (job("r0", 630.0), 610.0, 608.0, "22.0 s ahead of the node's of r0"),
        (job("r0", -20.0, submitted=-25.0), 6.0, 0.0, "25.0 s behind the primary's"),
    ],
)
def test_a_scheduler_whose_clock_is_wrong(
    tmp_path: Path, given: JobState, came_at: float, start: float, problem: str
) -> None:
    """It hides no work, and nothing before the run is charged."""
    run = queued(tmp_path)
    run.primary(came_at - 1.0, given)
    run.replica(came_at, came(alive=2.0))
    due = started(run)
    assert due.start_utc == START + start
    assert due.problem.startswith(f"the scheduler's clock is {problem}")


def test_a_later_life_of_the_first_replica_changes_nothing(tmp_path: Path) -> None:
    run = queued(tmp_path)
    run.primary(605.0, job("r0", 601.0))
    run.primary(700.0, job("r0", None), job("r0", 690.0))
    run.replica(610.0, came())
    assert started(run).start_utc == START + 601.0


def test_where_all_are_waited_for_it_starts_once_the_last_is_ready(tmp_path: Path) -> None:
    run = queued(tmp_path, "all")
    run.primary(605.0, job("r0", 601.0), job("r1", 601.0))
    run.replica(610.0, came(), ReplicaReady())
    run.replica(611.0, came("r1"), name="r1")
    clock, _ = clock_of(run, "all", now=650.0)
    assert clock.due() is None
    assert clock.due(last=True) is None
    assert clock.overdue() is None
    run.replica(640.0, ReplicaReady(), name="r1")
    due = started(run, now=650.0)
    assert (due.start_utc, due.granted_utc, due.replica) == (START + 650.0, START + 601.0, "r1")


def test_a_node_waits_for_the_others_no_longer_than_its_time_limit_allows(tmp_path: Path) -> None:
    run = queued(tmp_path, "all")
    run.primary(605.0, job("r0", 601.0), job("r1", None))
    run.replica(610.0, came(), ReplicaReady())
    clock, now = clock_of(run, "all", now=1_020.0)
    assert clock.overdue() is None
    now.advance(1.0)
    assert clock.overdue() == (
        "1 of 2 replicas were ready 7 min after the first node was granted; raise "
        "slurm.time_margin_minutes, or use --start-when first"
    )


def test_a_run_that_is_ended_for_its_primary_has_its_clock(tmp_path: Path) -> None:
    """The primary died while the run was queued, and the replicas worked on."""
    run = queued(tmp_path)
    assert start_at_the_end(run.history(), 2) == []
    run.replica(604.0, came())
    (due,) = start_at_the_end(run.history(), 2)
    assert (due.start_utc, due.queue_seconds) == (START + 601.0, 601.0)
    run.primary(700.0, due)
    assert start_at_the_end(run.history(), 2) == []


def test_a_run_that_waited_for_nothing_has_its_clock(tmp_path: Path) -> None:
    run = queued(tmp_path, "now")
    run.replica(4.0, came())
    assert start_at_the_end(run.history(), 1) == []


def test_who_was_ready_before_its_node_was_lost_is_not_ready(tmp_path: Path) -> None:
    run = queued(tmp_path, "all")
    run.life(FIRST, 610.0, came(), ReplicaReady())
    assert [r.id for r in run.history().ready] == ["r0"]
    run.primary(620.0, JobState(replica="r0", phase=JobPhase.REQUEUED))
    assert run.history().ready == []
    run.life(SECOND, 630.0, came(), ReplicaReady())
    assert [r.id for r in run.history().ready] == ["r0"]
    run.primary(640.0, run_started().model_copy(update={"clock_starts": "all"}))
    assert run.history().ready == []  # Another primary launches another one.
    run.life(THIRD, 650.0, came(), ReplicaReady())
    assert [r.id for r in run.history().ready] == ["r0"]
