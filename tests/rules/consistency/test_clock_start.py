"""When the clock of a run started that waited for its nodes: what is no fault, and what is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.rules import check_rule
from tests.support.run_factory import Plan, write_manifest
from tests.support.run_writer import (
    START,
    RunWriter,
    progress,
    replica_started,
    run_started,
    trial_started,
)

from aiperf_hpc.run.records import (
    AnyEvent,
    ClockSeen,
    ClockStarted,
    ClockStarts,
    JobState,
    ReplicaReady,
    RunStarted,
)
from aiperf_hpc.trial import JobPhase


def begins(starts: ClockStarts = "first") -> RunStarted:
    return run_started().model_copy(update={"clock_starts": starts})


def granted(replica: str, at: float) -> JobState:
    """What SLURM says, in seconds since START; it took the jobs after 1 s."""
    return JobState(
        replica=replica, phase=JobPhase.RUNNING, submitted_utc=START + 1.0, started_utc=START + at
    )


def started(at: float = 600.0, *, submitted: float = 1.0, given: float = 600.0) -> ClockStarted:
    return ClockStarted(
        start_utc=START + at,
        replica="r0",
        submitted_utc=START + submitted,
        granted_utc=START + given,
    )


def seen(at: float = 600.0) -> ClockSeen:
    return ClockSeen(start_utc=START + at)


class Run:
    """Two replicas, of which the first had its node after 600 s and the second after 700 s."""

    def __init__(self, folder: Path) -> None:
        self.writer = RunWriter(folder)
        write_manifest(self.writer.paths, Plan(replicas=2))

    def write(
        self, *clocks: ClockStarted, starts: ClockStarts = "first", said: float = 610.0
    ) -> None:
        writer = self.writer
        writer.primary(0.0, begins(starts))
        writer.primary(605.0, granted("r0", 600.0))
        writer.primary(said, *clocks)
        writer.primary(705.0, granted("r1", 700.0))

    def replica(self, name: str, at: float, *events: AnyEvent, alive: float = 3.0) -> None:
        came = replica_started(name).model_copy(update={"alive_seconds": alive})
        self.writer.replica(at, came, *events, name=name)

    def wrong(self) -> list[str]:
        return list(check_rule("clock", self.writer.paths).failures)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_clock_that_started_with_the_first_node_is_right(run: Run) -> None:
    run.write(started())
    run.replica("r0", 604.0, seen())
    run.replica("r1", 704.0, seen())
    assert run.wrong() == []
    assert check_rule("clock", run.writer.paths).checked == 4


def test_a_clock_that_started_with_the_run_has_no_record_of_its_own(run: Run) -> None:
    run.write(starts="now")
    assert run.wrong() == []
    run.writer.primary(706.0, started())
    assert run.wrong() == ["a record starts the clock of a run whose clock started with it"]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (started(604.0), ["4.000 s after the scheduler gave r0", "after r0, life 0.0, began"]),
        (started(590.0), ["10.000 s before the scheduler gave r0 its node"]),
        (started(-5.0), ["5.000 s before the run", "before the scheduler gave r0 its node"]),
        (started(given=580.0), ["the first node was given 20.000 s later than"]),
        (started(submitted=40.0), ["the job was taken 39.000 s earlier than"]),
        (started(615.0), ["5.000 s after the record that says so", "after the scheduler", "began"]),
    ],
)  # fmt: skip
def test_a_clock_that_started_at_another_time_is_found(
    run: Run, event: ClockStarted, said: list[str]
) -> None:
    run.write(event)
    run.replica("r0", 604.0)
    wrong = run.wrong()
    assert len(wrong) == len(said)
    assert all(part in line for part, line in zip(said, wrong, strict=True))


def test_work_before_what_the_scheduler_is_said_to_have_given_is_found(run: Run) -> None:
    """The scheduler's time was moved with the clock's; the replica's own record was not."""
    run.write(started())
    run.replica("r0", 500.0, alive=2.0)
    assert run.wrong() == ["the clock started 102.000 s after r0, life 0.0, began"]


def test_what_a_silent_scheduler_told_later_was_not_known(run: Run) -> None:
    run.writer.primary(0.0, begins())
    run.writer.primary(670.0, started(603.0, submitted=0.0, given=603.0))
    run.writer.primary(900.0, granted("r0", 600.0))
    run.replica("r0", 606.0)
    assert run.wrong() == []


def test_a_clock_starts_once_and_what_starts_it_stays(run: Run) -> None:
    run.write(started())
    run.replica("r0", 604.0)
    run.writer.primary(800.0, begins("all"), started(790.0))
    assert run.wrong() == [
        "a later primary says that something else starts the clock", "the clock started 2 times",
    ]  # fmt: skip


def test_samples_without_a_clock_are_found(run: Run) -> None:
    run.write()
    assert run.wrong() == []  # It ended in the queue, say.
    run.replica("r0", 604.0, trial_started(), progress(train=1))
    assert run.wrong() == ["samples were executed, and no record says when the clock started"]


def test_what_replicas_learned_of_the_clock_is_compared(run: Run) -> None:
    run.write(started())
    run.replica("r0", 604.0, seen(570.0))
    run.replica("r1", 704.0, trial_started("t2"))
    run.writer.replica(1400.0, progress("t2", train=1), name="r1")
    assert run.wrong() == [
        "r0, life 0.0: it learned of a clock that started 30.000 s earlier",
        "r1, life 0.0: it worked and never learned of the clock's start",
    ]


def test_where_all_are_waited_for_all_have_to_be_ready(run: Run) -> None:
    run.write(started(720.0), starts="all", said=720.0)
    run.replica("r0", 604.0, ReplicaReady(), seen(720.0))
    run.replica("r1", 715.0, seen(720.0))
    assert run.wrong() == ["the clock started when 1 of 2 replicas were ready"]
    run.writer.replica(716.0, ReplicaReady(), name="r1")
    assert run.wrong() == []


def test_where_all_are_waited_for_the_clock_starts_at_its_record(run: Run) -> None:
    run.write(started(720.0), starts="all", said=740.0)
    run.replica("r0", 604.0, ReplicaReady())
    run.replica("r1", 704.0, ReplicaReady())
    assert run.wrong() == ["the clock started 20.000 s before the record that says so"]
