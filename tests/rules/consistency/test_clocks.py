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

from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run import records
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.trial import JobPhase, TimePhase

HOUR = 3600.0
STARTED = records.ReplicaStarted(replica="r0", pid=1, engine="torch", machine=MACHINE)
BEAT = records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1)
ENDED = records.ReplicaEnded(reason="the run's time is over")
BY = ", answered by /lib/libfaster.so,"
Step = tuple[str, float, AnyEvent]
"""The writer of a record, its time in seconds since START, and the event."""


def begins(starts: records.ClockStarts = "first") -> Step:
    return "primary", 0.0, run_started().model_copy(update={"clock_starts": starts})


def granted(replica: str, at: float, said: float) -> Step:
    """SLURM's answer to the primary; it accepted the jobs after 1 s."""
    times = {"submitted_utc": START + 1.0, "started_utc": START + at}
    return "primary", said, records.JobState(replica=replica, phase=JobPhase.RUNNING, **times)


def started(
    at: float = 600.0, *, submitted: float = 1.0, given: float = 600.0, said: float = 610.0
) -> Step:
    times = {"start_utc": at, "submitted_utc": submitted, "granted_utc": given}
    since = {name: START + seconds for name, seconds in times.items()}
    return "primary", said, records.ClockStarted(replica="r0", **since)


def came(replica: str, at: float, alive: float = 3.0) -> Step:
    return replica, at, replica_started(replica).model_copy(update={"alive_seconds": alive})


def seen(replica: str, said: float, at: float = 600.0) -> Step:
    return replica, said, records.ClockSeen(start_utc=START + at)


def checked(folder: Path, *steps: Step) -> RuleResult:
    """Write a run of two replicas; return the result of the rule on the start of its clock."""
    writer = RunWriter(folder)
    write_manifest(writer.paths, Plan(replicas=2))
    for who, at, event in sorted(steps, key=lambda step: step[1]):
        if who == "primary":
            writer.primary(at, event)
        else:
            writer.replica(at, event, name=who)
    return check_rule("clock", writer.paths)


R0, R1 = granted("r0", 600.0, 605.0), granted("r1", 700.0, 705.0)
QUEUED = [begins(), R0, R1]
ALL = [begins("all"), R0, R1]
READY = records.ReplicaReady()
STARTS: dict[str, tuple[list[Step], list[str]]] = {
    "with the first node": (
        [*QUEUED, started(), came("r0", 604.0), seen("r0", 604.0),
         came("r1", 704.0), seen("r1", 704.0)],
        []),
    "with the run": ([begins("now"), R0, R1], []),
    "twice": (
        [begins("now"), R0, R1, started(said=706.0)],
        ["a record starts the clock of a run whose clock started with it"]),
    # The scheduler's time was moved with the clock's; the replica's own record was not.
    "after the beginning of a replica": (
        [*QUEUED, started(), came("r0", 500.0, alive=2.0)],
        ["the clock started 102.000 s after r0, attempt 0.0, began"]),
    "by another event, later": (
        [*QUEUED, started(), came("r0", 604.0), ("primary", 800.0, begins("all")[2]),
         started(790.0, said=800.0)],
        ["a later primary records another event as the start of the clock",
         "the clock started 2 times"]),
    "never, as the run ended in the queue": (QUEUED, []),
    "never, though samples were executed": (
        [*QUEUED, came("r0", 604.0), ("r0", 604.0, trial_started()),
         ("r0", 604.0, progress(train=1))],
        ["samples were executed, and no record states when the clock started"]),
    "as the replicas did not learn": (
        [*QUEUED, started(), came("r0", 604.0), seen("r0", 604.0, 570.0), came("r1", 704.0),
         ("r1", 704.0, trial_started("t2")), ("r1", 1400.0, progress("t2", train=1))],
        ["r0, attempt 0.0: it recorded a clock that started 30.000 s earlier",
         "r1, attempt 0.0: it worked but never recorded the clock's start"]),
    "before all were ready": (
        [*ALL, started(720.0, said=720.0), came("r0", 604.0), ("r0", 604.0, READY),
         seen("r0", 604.0, 720.0), came("r1", 715.0), seen("r1", 715.0, 720.0)],
        ["the clock started when 1 of 2 replicas were ready"]),
    "when all were ready": (
        [*ALL, started(720.0, said=720.0), came("r0", 604.0), ("r0", 604.0, READY),
         came("r1", 715.0), ("r1", 716.0, READY)],
        []),
    "before the record of it": (
        [*ALL, started(720.0, said=740.0), came("r0", 604.0), ("r0", 604.0, READY),
         came("r1", 704.0), ("r1", 704.0, READY)],
        ["the clock started 20.000 s before the record of it"]),
}  # fmt: skip


@pytest.mark.parametrize("case", STARTS)
def test_a_clock_starts_once_with_the_recorded_event(tmp_path: Path, case: str) -> None:
    steps, failures = STARTS[case]
    result = checked(tmp_path, *steps)
    assert list(result.failures) == failures
    times = (isinstance(event, records.JobState | records.ReplicaStarted) for *_, event in steps)
    assert result.checked == (0 if case in ("with the run", "twice") else sum(times))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (started(604.0), ["4.000 s after the scheduler gave r0", "after r0, attempt 0.0, began"]),
        (started(590.0), ["10.000 s before the scheduler gave r0 its node"]),
        (started(-5.0), ["5.000 s before the run", "before the scheduler gave r0 its node"]),
        (started(given=580.0), ["the first node was granted 20.000 s later than"]),
        (started(submitted=40.0), ["the job was accepted 39.000 s earlier than"]),
        (started(615.0), ["5.000 s after the record of it", "after the scheduler", "began"]),
    ],
)  # fmt: skip
def test_a_clock_that_started_at_another_time_is_found(
    tmp_path: Path, event: Step, said: list[str]
) -> None:
    wrong = checked(tmp_path, *QUEUED, event, came("r0", 604.0)).failures
    assert len(wrong) == len(said)
    assert all(part in line for part, line in zip(said, wrong, strict=True))


def test_what_a_silent_scheduler_told_later_was_not_known(tmp_path: Path) -> None:
    late = started(603.0, submitted=0.0, given=603.0, said=670.0)
    steps = [begins(), late, granted("r0", 600.0, 900.0), came("r0", 606.0)]
    assert checked(tmp_path, *steps).passed


def read(seconds: float, **off: float) -> AnyEvent:
    """Return a reading so long after the start whose clocks agree, but for those that are off."""
    values = {"utc": START + seconds, "monotonic": START + seconds - UP}
    values |= {"raw": values["monotonic"], "boot": values["monotonic"], "ahead": 0.0}
    values["spread_seconds"] = 0.0001
    return clocks(**{name: value + off.get(name, 0.0) for name, value in values.items()})


def timekeeping(folder: Path, *steps: Step) -> tuple[list[str], int]:
    """Write a replica's journal; return what the rule on its clocks found and how many it read."""
    writer = RunWriter(folder)
    write_manifest(writer.paths, Plan(replicas=1))
    for _, at, event in (("r0", 0.0, STARTED), *steps):
        writer.replica(at, event)
    result = check_rule("timekeeping", writer.paths)
    prefix = "replicas/r0/0.0/journal.jsonl, "
    found = [line.removeprefix(prefix) for line in (*result.failures, *result.notes)]
    return found, result.checked


def told(at: float, *events: AnyEvent) -> list[Step]:
    return [("r0", at, event) for event in events]


@pytest.mark.parametrize(
    ("off", "said"),
    [
        ({"raw": 0.9, "boot": 0.9, "ahead": 0.9}, None),
        ({"utc": 50.0, "boot": 50.0, "ahead": 0.5}, None),  # The machine was suspended.
        ({"raw": 4.6, "boot": 4.6, "spread_seconds": 4.0}, None),  # Not read at once.
        ({"raw": 4.6}, f"the monotonic clock ran 3600.000 s while the raw one ran 3604.600 s{BY}"),
        ({"boot": 4.6}, f"UTC ran 3600.000 s while the uptime advanced 3604.600 s{BY}"),
        ({"ahead": -4.6}, f"UTC moved -4.600 s against the file server's clock{BY}"),
        ({"raw": 4.6, "monotonic": 4.6, "utc": -4.6, "boot": -4.6},
         "the raw clock ran 3604.600 s while the uptime advanced 3595.400 s"),
    ],
)  # fmt: skip
def test_only_what_time_services_and_suspended_machines_do_is_no_fault(
    tmp_path: Path, off: dict[str, float], said: str | None
) -> None:
    # The record's own times are compared elsewhere.
    at = HOUR + (off.get("utc", 0.0) if said is None else 0.0)
    steps = [*told(0.0, read(0.0)), *told(HOUR, BEAT), *told(at, read(HOUR, **off))]
    found, _ = timekeeping(tmp_path, *steps)
    wrong = [line for line in found if "its times are" not in line]
    assert wrong == [] if said is None else f"record 3: {said} since record 1" in wrong


LATER = 10.0 + 5 * HOUR
UNREAD = [step for minute in range(0, 150, 5) for step in told(60.0 * minute, BEAT)]
READINGS: dict[str, tuple[list[Step], list[str]]] = {
    "two attempts are not compared": (
        [*told(0.0, read(0.0)), *told(5.0, read(5.0), ENDED),
         *told(9.0, STARTED, read(9.0, raw=-1e6, boot=-1e6))],
        []),
    "none at the end of a killed process, and none while one was suspended": (
        [*told(0.0, read(0.0)), *told(10.0, BEAT), *told(LATER, BEAT, read(LATER))], []),
    "left out": (
        [*told(0.0, read(0.0)), *UNREAD, *told(2.5 * HOUR, ENDED),
         *told(2.6 * HOUR, STARTED, BEAT, BEAT)],
        ["record 0: its clocks were not recorded for 2 h 30 min 00 s",
         "record 0: its clocks were not recorded when it ended",
         "record 33: the clocks of this process were not recorded"]),
    "of another time": (
        told(7.0, read(7.0, utc=30.0, boot=30.0)),
        ["record 1: its times are -30.000 s off those of the clocks in it"]),
    "none": (
        told(HOUR, BEAT, BEAT, ENDED),
        ["record 0: the clocks of this process were not recorded"]),
}  # fmt: skip


@pytest.mark.parametrize("case", READINGS)
def test_clocks_are_read_from_start_to_end(tmp_path: Path, case: str) -> None:
    steps, failures = READINGS[case]
    readings = sum(isinstance(event, records.ClocksRead) for *_, event in steps)
    assert timekeeping(tmp_path, *steps) == (failures, readings)
