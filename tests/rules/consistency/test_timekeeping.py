"""The clocks that processes recorded: which differences are no fault, and which are one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.host_clocks import UP, clocks
from tests.support.rules import check_rule
from tests.support.run_factory import Plan, write_manifest
from tests.support.run_writer import MACHINE, START, RunWriter

from aiperf_hpc.run import records
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.trial import TimePhase

HOUR = 3600.0
STARTED = records.ReplicaStarted(replica="r0", pid=1, engine="torch", machine=MACHINE)
BEAT = records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1)
ENDED = records.ReplicaEnded(reason="the run's time is over")
BY = ", answered by /lib/libfaster.so,"


def read(seconds: float, **off: float) -> AnyEvent:
    """Return a reading so long after the start whose clocks agree, but for those that are off."""
    values = {"utc": START + seconds, "monotonic": START + seconds - UP}
    values |= {"raw": values["monotonic"], "boot": values["monotonic"], "ahead": 0.0}
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
        ({"boot": 4.6}, f"UTC ran 3600.000 s while the kernel grew 3604.600 s older{BY}"),
        ({"ahead": -4.6}, f"UTC moved -4.600 s against the file server's clock{BY}"),
        ({"raw": 4.6, "monotonic": 4.6, "utc": -4.6, "boot": -4.6},
         "the raw clock ran 3604.600 s while the kernel grew 3595.400 s older"),
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
