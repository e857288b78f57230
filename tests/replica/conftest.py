"""Fixtures of the replica's tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from aiperf_hpc.replica.engines import load_engine


@pytest.fixture(scope="session", autouse=True)
def _engine_first() -> None:
    """As in a replica: the engine sets its threads before anything else uses the framework."""
    load_engine("tensorflow", 2)


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Restore this process's signal handlers after the test."""
    before = [(n, signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    yield
    for number, handler in before:
        signal.signal(number, handler)
