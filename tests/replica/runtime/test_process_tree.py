"""Resource usage of a replica, measured on real process trees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.clock import Clock

from aiperf_hpc.replica.host import Host

BURNT = 0.5
"""CPU seconds."""
BURN = f"""
import sys, time
held = bytearray(64 * 2**20)
while time.process_time() < {BURNT}:
    pass
print("burnt", flush=True)
sys.stdin.readline()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
child.wait()
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host with a simulated clock."""
    monkeypatch.setattr(Host, "clock", Clock())
    return Host(1)


def used(host: Host) -> tuple[float, int]:
    """Return the usage of CPU and memory, after ten seconds by the host's clock."""
    clock = host.clock
    assert isinstance(clock, Clock)
    clock.advance(10.0)
    return host.usage()


SHARE = 100.0 * BURNT / 10.0
"""Minimum utilization in percent of one core by a burner in ten seconds."""


@pytest.mark.parametrize("arguments", [(BURN,), (PARENT, BURN)])
def test_descendants_count(host: Host, arguments: tuple[str, ...]) -> None:
    _, before = used(host)
    with process(*arguments) as child:
        assert line(child) == "burnt"
        cpu_percent, during = used(host)
        assert cpu_percent >= 0.95 * SHARE  # Clock ticks are rounded down.
        assert during >= before + 64 * 2**20
        # The burner sleeps now, and its time is not counted again.
        assert used(host)[0] < 0.5 * SHARE
    assert used(host)[1] < during - 64 * 2**20


def test_exited_descendants_count(host: Host) -> None:
    used(host)
    with process(BURN) as child:
        assert line(child) == "burnt"
        child.kill()
        child.wait()
    assert used(host)[0] >= 0.95 * SHARE


RANK = """
import sys
from aiperf_hpc.replica.host import Host
host = Host(1, several_ranks=sys.argv[1] == "several")
print("ready", flush=True)
sys.stdin.readline()
before = host._looked
cpu_percent, _ = host.usage()
print(cpu_percent * (host._looked - before) / 100.0, flush=True)
"""


@pytest.mark.parametrize(("ranks", "counts"), [("several", True), ("one", False)])
def test_other_ranks_on_the_host_count(ranks: str, counts: bool) -> None:
    """These are the other children of this process's parent, unless the replica has one rank."""
    with process(RANK, ranks) as rank:
        assert line(rank) == "ready"
        with process(BURN) as other:
            assert line(other) == "burnt"
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
            seconds = float(line(rank))
    assert (seconds >= 0.95 * BURNT) == counts
