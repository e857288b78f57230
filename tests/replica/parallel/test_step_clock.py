"""The parts to which the time of a step is attributed."""

from __future__ import annotations

import pytest

from aiperf_hpc.replica.parallel.collectives import Copies
from aiperf_hpc.replica.parallel.data_parallel import PARTS, StepClock
from aiperf_hpc.trial import StepPart


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, set by the test."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def step(clock: StepClock, seconds: list[float], *, wait: float, reduce: float) -> None:
    """Compute for a second; ``wait`` is 0 if it was not measured separately."""
    clock.begin()
    for part, taken in ((StepPart.COMPUTE, 1.0), (StepPart.WAIT, wait), (StepPart.REDUCE, reduce)):
        seconds[0] += taken
        clock.book(part)
    clock.count(waited_apart=wait > 0.0)


def test_an_unmeasured_wait_is_estimated_by_the_steps_that_measured_it(
    seconds: list[float],
) -> None:
    clock = StepClock(Copies())
    step(clock, seconds, wait=3.0, reduce=1.0)
    step(clock, seconds, wait=0.0, reduce=8.0)
    assert taken(clock) == (2, {StepPart.COMPUTE: 2.0, StepPart.WAIT: 9.0, StepPart.REDUCE: 3.0})
    step(clock, seconds, wait=0.0, reduce=4.0)
    assert taken(clock) == (1, {StepPart.COMPUTE: 1.0, StepPart.WAIT: 3.0, StepPart.REDUCE: 1.0})
    assert taken(clock) == (0, {})


def test_if_no_step_measured_the_wait_all_of_it_is_reduction(seconds: list[float]) -> None:
    clock = StepClock(Copies())
    step(clock, seconds, wait=0.0, reduce=4.0)
    assert taken(clock) == (1, {StepPart.COMPUTE: 1.0, StepPart.REDUCE: 4.0})


def taken(clock: StepClock) -> tuple[int, dict[StepPart, float]]:
    """Return the steps, and the parts that took time."""
    steps, *each = clock.take()
    return round(steps), {part: s for part, s in zip(PARTS, each, strict=True) if s}
