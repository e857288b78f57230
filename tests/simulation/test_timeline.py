"""Virtual time: order, ties, waking and cancellation."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from aiperf_hpc.simulation.timeline import Timeline

START = 1000.0


def times(timeline: Timeline, pauses: list[float], log: list[tuple[str, float]], name: str) -> None:
    for pause in pauses:
        timeline.sleep(pause)
        log.append((name, timeline.monotonic()))


def played(*sleepers: list[float]) -> list[tuple[str, float]]:
    """Return what woke when, of tasks that sleep as told."""
    timeline, log = Timeline(START), list[tuple[str, float]]()

    def sleeper(name: str, pauses: list[float]) -> Callable[[], None]:
        return lambda: times(timeline, pauses, log, name)

    def main() -> None:
        tasks = [timeline.spawn(sleeper(f"t{i}", pauses)) for i, pauses in enumerate(sleepers)]
        for task in tasks:
            timeline.join(task)

    timeline.run(main)
    return log


def test_tasks_wake_in_the_order_of_time_and_no_real_time_passes() -> None:
    began = time.perf_counter()
    log = played([30.0, 30.0], [20.0, 15.0], [1e5])
    assert log == [("t1", 20.0), ("t0", 30.0), ("t1", 35.0), ("t0", 60.0), ("t2", 1e5)]
    assert time.perf_counter() - began < 600.0


def test_of_those_that_wake_at_once_the_first_asleep_is_first() -> None:
    assert [name for name, _ in played([5.0, 5.0], [10.0], [5.0, 5.0])] == [
        "t0", "t2", "t1", "t0", "t2",
    ]  # fmt: skip


def test_a_pause_below_zero_is_none() -> None:
    assert played([-5.0, 0.0]) == [("t0", 0.0), ("t0", 0.0)]


def test_clocks_agree_and_begin_where_told() -> None:
    timeline, seen = Timeline(START), list[float]()

    def main() -> None:
        timeline.sleep(7.5)
        seen.extend([timeline.utc(), timeline.monotonic()])

    timeline.run(main)
    assert seen == [START + 7.5, 7.5]
    assert timeline.utc() == START + 7.5


def test_time_spent_is_seen_by_the_spender_at_once_and_paid_with_the_next_sleep() -> None:
    timeline, seen = Timeline(START), list[tuple[str, float]]()

    def spender() -> None:
        timeline.spend(3.0)
        seen.append(("spent", timeline.monotonic()))
        timeline.sleep(1.0)
        seen.append(("slept", timeline.monotonic()))

    def main() -> None:
        task = timeline.spawn(spender)
        timeline.sleep(2.0)
        seen.append(("other", timeline.monotonic()))
        timeline.join(task)

    timeline.run(main)
    assert seen == [("spent", 3.0), ("other", 2.0), ("slept", 4.0)]


def test_a_sleeper_is_woken_once_and_does_not_wake_again() -> None:
    timeline, seen = Timeline(START), list[float]()

    def sleeper() -> None:
        timeline.wait(100.0, lambda: False)
        seen.append(timeline.monotonic())
        timeline.sleep(500.0)
        seen.append(timeline.monotonic())

    def main() -> None:
        task = timeline.spawn(sleeper)
        timeline.sleep(4.0)
        timeline.wake(task)
        timeline.join(task)
        timeline.wake(task)  # It has ended: nothing comes of it.
        timeline.sleep(1.0)

    timeline.run(main)
    assert seen == [4.0, 504.0]


def test_a_cancelled_task_never_goes_on() -> None:
    timeline, seen = Timeline(START), list[str]()

    def beat() -> None:
        while True:
            timeline.sleep(1.0)
            seen.append("beat")

    def main() -> None:
        task = timeline.spawn(beat)
        timeline.sleep(3.5)
        timeline.cancel(task)
        timeline.sleep(10.0)

    timeline.run(main)
    assert seen == ["beat"] * 3


def test_what_any_task_raises_ends_all() -> None:
    timeline = Timeline(START)

    def fail() -> None:
        timeline.sleep(5.0)
        raise KeyError("broken")

    def main() -> None:
        timeline.spawn(fail)
        timeline.sleep(1e9)

    with pytest.raises(KeyError, match="broken"):
        timeline.run(main)
    assert timeline.monotonic() == 5.0


def test_thousands_of_tasks_start_from_within_one_another() -> None:
    timeline, deepest = Timeline(START), list[int]()

    def link(depth: int) -> None:
        timeline.sleep(0.5)
        if depth < 3000:
            timeline.join(timeline.spawn(lambda: link(depth + 1)))
        else:
            deepest.append(depth)

    timeline.run(lambda: link(1))
    assert deepest == [3000]


def test_code_takes_the_time_that_it_takes_only_when_charged() -> None:
    def busy(charge: bool) -> float:
        timeline = Timeline(START, charge=charge)

        def main() -> None:
            began = time.thread_time()
            while time.thread_time() - began < 0.05:
                pass
            timeline.sleep(1.0)

        timeline.run(main)
        return timeline.monotonic()

    assert busy(charge=False) == 1.0
    assert busy(charge=True) > 1.049
