"""No two processes are the same life of a replica, whatever their scheduler has counted."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.clock import Clock

from aiperf_hpc.replica.__main__ import claim_incarnation
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.storage import BackoffRetry, no_retry


def test_a_life_is_what_the_scheduler_counted_unless_another_process_is_it(tmp_path: Path) -> None:
    """A controller that was killed may count a restart a second time: that is a later life."""
    paths = RunPaths(tmp_path)

    def claim(launch: int, restart: int) -> Incarnation:
        return claim_incarnation(paths, "r0", Incarnation(launch, restart), no_retry)

    assert claim(0, 0) == Incarnation(0, 0)
    assert claim(0, 1) == Incarnation(0, 1)
    assert claim(0, 1) == Incarnation(0, 2)
    assert claim(0, 2) == Incarnation(0, 3)
    assert claim(0, 7) == Incarnation(0, 7)
    assert claim(0, 5) == Incarnation(0, 8)  # Later, and so greater.
    assert claim(1, 0) == Incarnation(1, 0)
    paths.replica_log("r0").touch()
    assert claim(1, 1) == Incarnation(1, 1)
    assert claim_incarnation(paths, "r1", Incarnation(0, 0), no_retry) == Incarnation(0, 0)


def test_of_processes_that_start_at_once_each_has_its_own(tmp_path: Path) -> None:
    def claim(_: int) -> Incarnation:
        return claim_incarnation(RunPaths(tmp_path), "r0", Incarnation(3, 1), no_retry)

    with ThreadPoolExecutor(8) as threads:
        lives = list(threads.map(claim, range(40)))
    assert sorted(lives) == [Incarnation(3, 1 + number) for number in range(40)]


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, troubles, time = Path.mkdir, [errno.ENOSPC, errno.ESTALE], Clock()

    def full(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if troubles and path.name == "0.0":
            number = troubles.pop()
            raise OSError(number, os.strerror(number))
        real(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", full)
    patience = BackoffRetry(lambda: False, clock=time)
    assert claim_incarnation(RunPaths(tmp_path), "r0", Incarnation(), patience) == Incarnation()
    assert len(time.pauses) == 2
