"""The sampling thread: one on each host, whose failures end nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.support.clock import Clock
from tests.support.telemetry import sample
from tests.support.waiting import until

from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.errors import JournalError
from aiperf_hpc.telemetry import sampler as sampler_module
from aiperf_hpc.telemetry.sampler import Record, claim_host, sample_until, sampled
from aiperf_hpc.telemetry.values import Equipment, TelemetrySample


class Idle:
    """Processes that use nothing."""

    def totals(self) -> tuple[float, int]:
        return 0.0, 0


class Recorded:
    """Recorded values."""

    def __init__(self) -> None:
        self.all: list[Equipment | TelemetrySample] = []

    def __call__(self, value: Equipment | TelemetrySample) -> None:
        self.all.append(value)

    def wait(self, number: int = 1) -> None:
        until(lambda: len(self.all) >= number)


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    """A host name that no other test uses."""
    yield str(tmp_path)[-60:]
    claim = claim_host(str(tmp_path)[-60:])
    assert claim is not None
    claim.close()


def sampling(name: str, record: Record, seconds: float = 600.0) -> AbstractContextManager[None]:
    return sampled(name, Idle(), seconds=seconds, clock=SYSTEM, record=record)


def test_another_process_samples_once_the_first_has_ended(name: str) -> None:
    claim = claim_host(name)
    assert claim is not None
    during, recorded = Recorded(), Recorded()
    with sampling(name, during):
        pass
    assert during.all == []  # Otherwise the last sample, at least.
    with sampling(name, recorded, seconds=0.01):
        claim.close()
        recorded.wait(4)
    assert isinstance(recorded.all[0], Equipment)
    assert all(isinstance(value, TelemetrySample) for value in recorded.all[1:])


class Scripted:
    """A sampler and an end on a simulated clock, with the times of their calls."""

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

    def take(self) -> TelemetrySample:
        self.asked.append(("take", self.now))
        return sample()

    def wait(self, timeout: float) -> bool:
        self.clock.advance(min(timeout, self.end - self.now))
        return self.now >= self.end


@pytest.mark.parametrize(
    ("quick", "seconds", "slow", "asked"),
    [
        (True, 6.5, 0.0, "read 1, read 2, take 3, read 4, read 5, take 6, take 6.5"),
        # Late readings are not repeated.
        (True, 13.0, 7.5, "read 1, read 2, take 3, read 10.5, read 11.5, take 12, take 13"),
        # Without values to read in between, there are samples only.
        (False, 7.0, 0.0, "take 3, take 6, take 7"),
    ],
)
def test_energy_is_read_once_a_second_between_samples(
    quick: bool, seconds: float, slow: float, asked: str
) -> None:
    own: Any = Scripted(seconds, quick=quick)
    delays = [slow]

    def record(_: Equipment | TelemetrySample) -> None:
        own.clock.advance(delays.pop() if delays else 0.0)

    sample_until(own, own, seconds=3.0, clock=own.clock, record=record)
    assert ", ".join(f"{what} {when:g}" for what, when in own.asked) == asked


def test_a_journal_error_ends_only_the_telemetry(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = threading.Event()

    def record(_: Equipment | TelemetrySample) -> NoReturn:
        refused.set()
        raise JournalError("the disk is full")

    with sampling(name, record):
        assert refused.wait(60.0)
    assert capsys.readouterr().err == "aiperf: no more telemetry: the disk is full\n"


def test_an_unexpected_error_is_recorded_and_ends_only_the_telemetry(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError("nobody")

    monkeypatch.setattr(sampler_module, "sampler", broken)
    recorded = Recorded()
    with sampling(name, recorded):
        recorded.wait()
    (last,) = recorded.all
    assert isinstance(last, Equipment)
    assert last.absent == {"telemetry": "unexpected ZeroDivisionError: nobody"}
    assert "Traceback" in capsys.readouterr().err
