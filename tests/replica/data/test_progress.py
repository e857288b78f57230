from __future__ import annotations

import pytest

from aiperf_hpc.replica.data.progress import Meter, Progress


def test_it_is_told_once_a_second_at_most_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    told: list[Progress] = []
    monkeypatch.setattr("time.monotonic", lambda: now)
    meter = Meter(told.append, "doing", 100, "things")
    for _ in range(100):
        now += 0.125
        meter.add()
    assert [progress.done for progress in told[:3]] == [1, 9, 17]
    assert told[-1] == Progress("doing", 100, 100, "things", told[-1].per_second)
    assert len(told) <= 14


def test_what_was_kept_says_nothing_about_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    told: list[Progress] = []
    monkeypatch.setattr("time.monotonic", lambda: now)
    meter = Meter(told.append, "doing", 100, "things", finished=60)
    now += 4.0
    meter.add(8)
    assert told == [Progress("doing", 68, 100, "things", 2.0)]


def test_no_speed_before_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    monkeypatch.setattr("time.monotonic", lambda: 1.0)
    Meter(told.append, "doing", 2, "things").add()
    assert told[0].per_second is None
