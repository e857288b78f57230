"""Clocks: faults among the differences of readings and the starts of the run's clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.host_clocks import UP, clocks
from tests.support.rules import check_rule
from tests.support.run_factory import Plan, write_manifest
from tests.support.run_writer import (
    MACHINE,
    START,
    RunWriter,
    progress,
    replica_started,
    run_started,
    trial_started,
)

from aiperf_hpc.run import records
from aiperf_hpc.run.records import (
    AnyEvent,
    ClockSeen,
    ClockStarted,
    ClockStarts,
    JobState,
    ReplicaReady,
    RunStarted,
)
from aiperf_hpc.trial import JobPhase, TimePhase

HOUR = 3600.0
STARTED = records.ReplicaStarted(replica="r0", pid=1, engine="torch", machine=MACHINE)
BEAT = records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1)
ENDED = records.ReplicaEnded(reason="the run's time is over")
BY = ", answered by /lib/libfaster.so,"


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
        (started(604.0), ["4.000 s after the scheduler gave r0", "after r0, attempt 0.0, began"]),
        (started(590.0), ["10.000 s before the scheduler gave r0 its node"]),
        (started(-5.0), ["5.000 s before the run", "before the scheduler gave r0 its node"]),
        (started(given=580.0), ["the first node was given 20.000 s later than"]),
        (started(submitted=40.0), ["the job was taken 39.000 s earlier than"]),
        (started(615.0), ["5.000 s after the record of it", "after the scheduler", "began"]),
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
    assert run.wrong() == ["the clock started 102.000 s after r0, attempt 0.0, began"]


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
        "a later primary records another event as the start of the clock",
        "the clock started 2 times",
    ]  # fmt: skip


def test_samples_without_a_clock_are_found(run: Run) -> None:
    run.write()
    assert run.wrong() == []  # It ended in the queue, say.
    run.replica("r0", 604.0, trial_started(), progress(train=1))
    assert run.wrong() == ["samples were executed, and no record states when the clock started"]


def test_what_replicas_learned_of_the_clock_is_compared(run: Run) -> None:
    run.write(started())
    run.replica("r0", 604.0, seen(570.0))
    run.replica("r1", 704.0, trial_started("t2"))
    run.writer.replica(1400.0, progress("t2", train=1), name="r1")
    assert run.wrong() == [
        "r0, attempt 0.0: it learned of a clock that started 30.000 s earlier",
        "r1, attempt 0.0: it worked and never learned of the clock's start",
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
    assert run.wrong() == ["the clock started 20.000 s before the record of it"]


def read(seconds: float, **off: float) -> AnyEvent:
    """Return a reading so long after the start whose clocks agree, but for those that are off."""
    values = {"utc": START + seconds, "monotonic": START + seconds - UP}
    values |= {"raw": values["monotonic"], "boot": values["monotonic"], "ahead": 0.0}
    values["spread_seconds"] = 0.0001
    return clocks(**{name: value + off.get(name, 0.0) for name, value in values.items()})


class Life:
    """A replica's journal."""

    def __init__(self, folder: Path) -> None:
        self.writer = RunWriter(folder)
        write_manifest(self.writer.paths, Plan(replicas=1))
        self.at(0.0, STARTED)

    def at(self, seconds: float, *events: AnyEvent) -> None:
        self.writer.replica(seconds, *events)

    def wrong(self) -> list[str]:
        result = check_rule("timekeeping", self.writer.paths)
        prefix = "replicas/r0/0.0/journal.jsonl, "
        return [line.removeprefix(prefix) for line in (*result.failures, *result.notes)]


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


@pytest.mark.parametrize(
    "off",
    [
        {"raw": 0.9, "boot": 0.9, "ahead": 0.9},
        {"utc": 50.0, "boot": 50.0, "ahead": 0.5},  # The machine was suspended.
        {"raw": 4.6, "boot": 4.6, "spread_seconds": 4.0},  # The clocks were not read at once.
    ],
)
def test_what_time_services_and_suspended_machines_do_is_no_fault(
    life: Life, off: dict[str, float]
) -> None:
    life.at(0.0, read(0.0))
    life.at(HOUR, BEAT)
    # The record's own times are compared elsewhere.
    life.at(HOUR + off.get("utc", 0.0), read(HOUR, **off))
    wrong = [line for line in life.wrong() if "its times are" not in line]
    assert wrong == []


@pytest.mark.parametrize(
    ("off", "said"),
    [
        ({"raw": 4.6}, f"the monotonic clock ran 3600.000 s while the raw one ran 3604.600 s{BY}"),
        ({"boot": 4.6}, f"UTC ran 3600.000 s while the uptime advanced 3604.600 s{BY}"),
        ({"ahead": -4.6}, f"UTC moved -4.600 s against the file server's clock{BY}"),
        ({"raw": 4.6, "monotonic": 4.6, "utc": -4.6, "boot": -4.6},
         "the raw clock ran 3604.600 s while the uptime advanced 3595.400 s"),
    ],
)  # fmt: skip
def test_a_clock_that_ran_otherwise_is_found(life: Life, off: dict[str, float], said: str) -> None:
    life.at(0.0, read(0.0))
    life.at(HOUR, BEAT)
    life.at(HOUR, read(HOUR, **off))
    assert f"record 3: {said} since record 1" in life.wrong()


def test_readings_of_two_lives_are_not_compared(life: Life) -> None:
    life.at(0.0, read(0.0))
    life.at(5.0, read(5.0), ENDED)
    life.at(9.0, STARTED, read(9.0, raw=-1e6, boot=-1e6))
    assert life.wrong() == []


def test_a_killed_process_says_nothing_at_its_end_and_a_stopped_one_in_between(life: Life) -> None:
    life.at(0.0, read(0.0))
    life.at(10.0, BEAT)
    life.at(10.0 + 5 * HOUR, BEAT, read(10.0 + 5 * HOUR))
    assert life.wrong() == []


def test_readings_that_were_left_out_are_missed(life: Life) -> None:
    life.at(0.0, read(0.0))
    for minute in range(0, 150, 5):
        life.at(60.0 * minute, BEAT)
    life.at(2.5 * HOUR, ENDED)
    unread, unended = life.wrong()
    assert unread == "record 0: its clocks were not recorded for 2 h 30 min 00 s"
    assert unended == "record 0: its clocks were not recorded when it ended"
    life.at(2.6 * HOUR, STARTED, BEAT, BEAT)
    assert life.wrong()[-1] == "record 33: the clocks of this process were not recorded"


def test_a_reading_of_another_time_is_found(life: Life) -> None:
    life.at(7.0, read(7.0, utc=30.0, boot=30.0))
    assert life.wrong() == ["record 1: its times are -30.000 s off those of the clocks in it"]


def test_a_run_of_an_earlier_version_recorded_none(life: Life) -> None:
    life.at(HOUR, BEAT, BEAT, ENDED)
    assert life.wrong() == []
    assert check_rule("timekeeping", life.writer.paths).checked == 0
