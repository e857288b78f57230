"""The thread that samples beside the rest: one on each host, and never a failure of the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.support.clock import Clock
from tests.support.telemetry import sample

from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.errors import JournalError
from aiperf_hpc.telemetry import sampler as sampler_module
from aiperf_hpc.telemetry.sampler import Record, claim_host, sample_until, sampled
from aiperf_hpc.telemetry.values import Equipment, Sample


class Idle:
    """Processes that use nothing."""

    def totals(self) -> tuple[float, int]:
        return 0.0, 0


class Told:
    """What was recorded, and an event for its coming."""

    def __init__(self) -> None:
        self.all: list[Equipment | Sample] = []
        self.any = threading.Event()

    def __call__(self, told: Equipment | Sample) -> None:
        self.all.append(told)
        self.any.set()


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    """A name that no other test has."""
    yield str(tmp_path)[-60:]
    claim = claim_host(str(tmp_path)[-60:])
    assert claim is not None, "who has ended has left the host to others"
    claim.close()


def sampling(name: str, record: Record, seconds: float = 600.0) -> AbstractContextManager[None]:
    return sampled(name, Idle(), seconds=seconds, clock=SYSTEM, record=record)


def test_the_first_of_a_host_samples_it_until_the_end(name: str) -> None:
    first, second = Told(), Told()
    with sampling(name, first):
        assert first.any.wait(60.0)
        with sampling(name, second):
            pass
    assert [type(told) for told in first.all] == [Equipment, Sample]
    assert second.all == []


def test_another_goes_on_when_the_first_has_ended(name: str) -> None:
    claim = claim_host(name)
    assert claim is not None
    told = Told()
    with sampling(name, told, seconds=0.01):
        assert told.all == []
        claim.close()
        assert told.any.wait(60.0)
    assert isinstance(told.all[0], Equipment)


def test_samples_come_in_time(name: str) -> None:
    several, seen = threading.Event(), []

    def record(told: Equipment | Sample) -> None:
        seen.append(told)
        if len(seen) > 3:
            several.set()

    with sampling(name, record, seconds=0.01):
        assert several.wait(60.0)
    assert all(isinstance(told, Sample) for told in seen[1:])


class Scripted:
    """A sampler and an end that go by a clock, and note when they are asked."""

    def __init__(self, seconds: float, *, quick: bool = True) -> None:
        self.quick = quick
        self.clock = Clock()
        self.begun = self.clock.monotonic()
        self.end = seconds
        self.asked: list[tuple[str, float]] = []

    @property
    def now(self) -> float:
        return self.clock.monotonic() - self.begun

    def read(self) -> None:
        self.asked.append(("read", self.now))

    def take(self) -> Sample:
        self.asked.append(("take", self.now))
        return sample()

    def wait(self, timeout: float) -> bool:
        self.clock.advance(min(timeout, self.end - self.now))
        return self.now >= self.end


@pytest.mark.parametrize(
    ("quick", "seconds", "slow", "asked"),
    [
        (True, 6.5, 0.0, "read 1, read 2, take 3, read 4, read 5, take 6, take 6.5"),
        # What was late is not made up for.
        (True, 13.0, 7.5, "read 1, read 2, take 3, read 10.5, read 11.5, take 12, take 13"),
        # What has nothing to read waits for the sample.
        (False, 7.0, 0.0, "take 3, take 6, take 7"),
    ],
)
def test_energy_is_read_once_a_second_between_samples(
    quick: bool, seconds: float, slow: float, asked: str
) -> None:
    own: Any = Scripted(seconds, quick=quick)
    delays = [slow]

    def record(_: Equipment | Sample) -> None:
        own.clock.advance(delays.pop() if delays else 0.0)

    sample_until(own, own, seconds=3.0, clock=own.clock, record=record)
    assert ", ".join(f"{what} {when:g}" for what, when in own.asked) == asked


def test_a_journal_that_refuses_ends_the_telemetry_and_nothing_else(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = threading.Event()

    def record(_: Equipment | Sample) -> NoReturn:
        refused.set()
        raise JournalError("the disk is full")

    with sampling(name, record):
        assert refused.wait(60.0)
    assert capsys.readouterr().err == "aiperf: no more telemetry: the disk is full\n"


def test_what_nobody_thought_of_is_told_and_ends_nothing(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("nobody")

    monkeypatch.setattr(sampler_module, "sampler", broken)
    told = Told()
    with sampling(name, told):
        assert told.any.wait(60.0)
    (last,) = told.all
    assert isinstance(last, Equipment)
    assert last.absent == {"telemetry": "unexpected ZeroDivisionError: nobody"}
    assert "Traceback" in capsys.readouterr().err
