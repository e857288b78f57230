"""The start and the end of a run, as known to a replica."""

from __future__ import annotations

import math
from pathlib import Path

from tests.support.run_writer import START, RunWriter, run_started

from aiperf_hpc.replica.runtime.stopping import RunClock
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import ClockStarted, ClockStarts
from aiperf_hpc.run.storage import no_retry

BEGAN, HOUR = START + 100.0, 3600.0


def clock_of(folder: Path, starts: ClockStarts) -> tuple[RunClock, RunWriter]:
    run = RunWriter(folder)
    run.primary(0.0, run_started().model_copy(update={"clock_starts": starts}))
    return RunClock(run.paths, 1.0, BEGAN, no_retry), run


def started(at: float) -> ClockStarted:
    utc = START + at
    return ClockStarted(start_utc=utc, replica="r0", submitted_utc=START, granted_utc=utc)


def test_the_clock_starts_with_the_run(tmp_path: Path) -> None:
    clock, _ = clock_of(tmp_path, "now")
    assert (clock.start_utc, clock.deadline) == (START, START + HOUR)
    assert clock.look() is False


def test_the_clock_starts_with_the_first_replica(tmp_path: Path) -> None:
    """Until its start is recorded, the deadline is that of a start with this replica."""
    clock, run = clock_of(tmp_path, "first")
    assert (clock.start_utc, clock.deadline) == (None, BEGAN + HOUR)
    assert clock.look() is False
    run.primary(130.0, started(40.0))
    assert clock.look() is True
    assert (clock.start_utc, clock.deadline) == (START + 40.0, START + 40.0 + HOUR)
    assert clock.look() is False


def test_a_clock_that_waits_for_all_replicas_has_no_deadline_before(tmp_path: Path) -> None:
    clock, run = clock_of(tmp_path, "all")
    assert clock.deadline == math.inf
    run.primary(130.0, started(130.0))
    assert clock.look() is True
    assert clock.deadline == START + 130.0 + HOUR


def test_without_the_record_of_the_runs_start_the_clock_is_unknown(tmp_path: Path) -> None:
    assert RunClock(RunPaths(tmp_path), 1.0, BEGAN, no_retry).starts is None
