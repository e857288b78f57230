"""Each process is its own attempt of a replica, also if the scheduler counts two as one."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.damage import failing

from aiperf_hpc.replica.__main__ import claim_incarnation
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.storage import BackoffRetry, no_retry


def test_an_attempt_has_the_schedulers_number_unless_it_is_claimed(tmp_path: Path) -> None:
    """A killed controller may count a restart twice; the second one gets a higher number."""
    paths = RunPaths(tmp_path)
    paths.replica_log("r0").parent.mkdir(parents=True)
    paths.replica_log("r0").touch()
    for counted, claimed in [
        ("0.0", "0.0"), ("0.1", "0.1"), ("0.1", "0.2"), ("0.2", "0.3"),
        ("0.7", "0.7"), ("0.5", "0.8"), ("1.0", "1.0"),
    ]:  # fmt: skip
        found = claim_incarnation(paths, "r0", Incarnation.parse(counted), no_retry)
        assert str(found) == claimed
    assert claim_incarnation(paths, "r1", Incarnation(0, 0), no_retry) == Incarnation(0, 0)


def test_concurrent_processes_claim_different_attempts(tmp_path: Path) -> None:
    def claim(_: int) -> Incarnation:
        return claim_incarnation(RunPaths(tmp_path), "r0", Incarnation(3, 1), no_retry)

    with ThreadPoolExecutor(8) as threads:
        claimed = list(threads.map(claim, range(40)))
    assert sorted(claimed) == [Incarnation(3, 1 + number) for number in range(40)]


def test_a_claim_is_retried_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Clock()
    monkeypatch.setattr(Path, "mkdir", failing(Path.mkdir, errno.ENOSPC, errno.ESTALE))
    patience = BackoffRetry(lambda: False, clock=time)
    assert claim_incarnation(RunPaths(tmp_path), "r0", Incarnation(), patience) == Incarnation()
    assert len(time.pauses) == 2
