"""All clocks of a host, read together; also where a library slows those that Python reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.host_clocks import clocks

from aiperf_hpc.run.clocks import Clocks, raw_seconds, read_clock, read_clocks
from aiperf_hpc.run.liveness import EVERY_SECONDS, Timekeeping

SLOWING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
typedef int (*Read)(clockid_t, struct timespec *);
static double first[16];
int clock_gettime(clockid_t clock, struct timespec *told) {
    static Read real;
    if (!real) real = (Read)dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, told);
    double now = told->tv_sec + 1e-9 * told->tv_nsec;
    if (!first[clock]) first[clock] = now;
    now = first[clock] + (now - first[clock]) / 2;
    told->tv_sec = (time_t)now;
    told->tv_nsec = (long)((now - told->tv_sec) * 1e9);
    return status;
}
"""
"""A library that halves the speed of every clock of the process that it is loaded into."""
READ_TWICE = """
import sys
from pathlib import Path
from aiperf_hpc.run.clocks import raw_seconds, read_clocks
folder = Path(sys.argv[1])
first = read_clocks(folder)
while raw_seconds() < first.raw + 0.2:
    pass
print(first.model_dump_json())
print(read_clocks(folder).model_dump_json())
"""


def test_a_hosts_clocks_are_read_together(tmp_path: Path) -> None:
    found = read_clocks(tmp_path)
    assert found.utc == pytest.approx(time.time(), abs=60.0)
    assert found.monotonic == pytest.approx(time.monotonic(), abs=60.0)
    assert found.raw == pytest.approx(time.clock_gettime(time.CLOCK_MONOTONIC_RAW), abs=60.0)
    assert found.boot == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60.0)
    assert found.spread_seconds < 1.0
    assert list(tmp_path.iterdir()) == []
    before = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    assert before <= raw_seconds() <= time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    with pytest.raises(FileNotFoundError):
        read_clocks(tmp_path / "nowhere")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_that_halves_the_clocks_speed_halves_not_the_kernels(tmp_path: Path) -> None:
    source, library = tmp_path / "slow.c", tmp_path / "libslow.so"
    source.write_text(SLOWING, "ascii")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    told = subprocess.run(
        [sys.executable, "-c", READ_TWICE, tmp_path],
        env={**os.environ, "LD_PRELOAD": str(library)},
        check=True,
        capture_output=True,
    ).stdout.splitlines()
    one, other = map(Clocks.model_validate_json, told)
    passed = other.raw - one.raw
    assert passed >= 0.2
    assert other.boot - one.boot == pytest.approx(passed, abs=0.03)
    assert other.monotonic - one.monotonic == pytest.approx(passed / 2, rel=0.1)
    assert other.utc - one.utc == pytest.approx(passed / 2, rel=0.1)
    assert other.answered_by == str(library)


def test_clocks_are_recorded_at_the_start_every_hour_and_at_the_end() -> None:
    clock = Clock()
    told = [clocks(clock.utc() + hour, hour).clocks for hour in range(3)]
    left = iter(told)
    keeping = Timekeeping(lambda: next(left), clock)
    assert keeping.if_due() == keeping.at_end() == []  # Before the start there is nothing.
    found = keeping.at_start()
    assert keeping.if_due() == []
    clock.advance(EVERY_SECONDS)
    found += keeping.if_due()
    assert keeping.if_due() == []
    assert [event.clocks for event in found + keeping.at_end()] == told
    simulated = Timekeeping(lambda: None, Clock())
    assert simulated.at_start() == simulated.at_end() == []


@pytest.mark.parametrize("offset", [0.0, 2.5, -7200.0])
def test_a_clock_that_is_off_is_found_out(tmp_path: Path, offset: float) -> None:
    reading = read_clock(tmp_path, lambda: time.time() + offset)
    # A local file system stamps by the kernel's clock, which ticks every few milliseconds.
    assert reading.ahead_seconds == pytest.approx(offset, abs=0.1)
    assert 0.0 <= reading.precision_seconds < 0.1
    assert list(tmp_path.iterdir()) == []


def test_a_slow_server_makes_it_less_precise(tmp_path: Path) -> None:
    now = time.time()
    answers = iter((now, now + 4.0, now, now + 0.2, now, now + 3.0))
    reading = read_clock(tmp_path, lambda: next(answers))
    assert reading.precision_seconds == pytest.approx(0.1)  # The best of three.
