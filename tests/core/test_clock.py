"""The clock of this machine."""

from __future__ import annotations

import time

from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.clock import SYSTEM


def test_a_pause_below_zero_is_none() -> None:
    began = time.monotonic()
    SYSTEM.sleep(-1e9)
    SYSTEM.wait(-1e9, lambda: False)
    assert time.monotonic() - began < PATIENCE_SECONDS


def test_the_system_clock_returns_this_machines_time() -> None:
    began = time.monotonic()
    assert began <= SYSTEM.monotonic() <= time.monotonic()
    assert abs(SYSTEM.utc() - time.time()) < PATIENCE_SECONDS


def test_a_wait_lasts_as_long_as_asked_for() -> None:
    began = time.monotonic()
    SYSTEM.wait(0.25, lambda: False)
    assert 0.25 <= time.monotonic() - began < PATIENCE_SECONDS


def test_a_wait_ends_when_it_is_over() -> None:
    asked = iter([False, False, True])
    began = time.monotonic()
    SYSTEM.wait(1e6, lambda: next(asked))
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert next(asked, None) is None
