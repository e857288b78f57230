"""From a node that SLURM grants to training on it: at the start, and in place of a lost one.

    python benchmarks/freed_node.py             # three nodes on a SLURM of their own

Replicas train on the simulated engine, so that no framework is imported. The daemon of the first
node is killed; once another node was asked for in its place, it is started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aiperf_hpc.deploy import local_cluster
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import JobPhase

AIPERF = [sys.executable, "-m", "aiperf_hpc.cli"]
CONFIG = Path(__file__).parents[1] / "tests" / "slurm" / "fast.yaml"
PATIENCE_SECONDS = 300.0
T = TypeVar("T")


def main() -> None:
    """Print what both launchers take."""
    with tempfile.TemporaryDirectory(prefix="aiperf-freed-") as name:
        folder = Path(name)
        local_cluster.start(folder / "slurm", 3)
        os.environ |= local_cluster.environment(folder / "slurm")
        try:
            for launcher in ("array", "allocation"):
                _measure(folder, launcher)
        finally:
            local_cluster.stop(folder / "slurm")


def _measure(folder: Path, launcher: str) -> None:
    run = folder / launcher
    command = [*AIPERF, "start", "--nodes", "3", "--hours", "0.1", "--config", str(CONFIG)]
    command += ["--launcher", launcher, "--yes", "--run-dir", str(run)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as primary:
        history = RunHistory(RunPaths(run))
        trains = _until(history, lambda: _first_records(history, 0.0, 3))
        start = _until(history, lambda: history.start_utc) or 0.0
        print(f"{launcher}: granted to training {sorted(round(t - start, 1) for t in trains)} s")
        if launcher == "allocation":
            _lose_a_node(folder / "slurm", history)
        subprocess.run([*AIPERF, "stop", str(run)], stdout=subprocess.DEVNULL, check=True)
        primary.wait()


def _lose_a_node(cluster: Path, history: RunHistory) -> None:
    killed = time.time()
    os.kill(local_cluster.pid_of(cluster, "n1"), signal.SIGKILL)
    lost = _until(history, lambda: _phase(history) is JobPhase.REQUEUED and time.time())
    print(f"a node's daemon was killed: seen lost after {lost - killed:.1f} s")
    asked = _until(history, lambda: "PENDING" in _queue() and time.time())
    print(f"another node was asked for {asked - lost:.1f} s later")
    local_cluster.start_slurmd(cluster, "n1")
    granted = _until(history, lambda: "PENDING" not in _queue() and time.time())
    (trains,) = _until(history, lambda: _first_records(history, granted, 1, "r0"))
    print(f"its node was back, and granted: it trains after {trains - granted:.1f} s")


def _phase(history: RunHistory) -> JobPhase | None:
    state = history.replicas["r0"].job_state
    return None if state is None else state.phase


def _queue() -> str:
    command = ["squeue", "--noheader", "--format=%T"]
    return subprocess.run(command, capture_output=True, encoding="locale", check=True).stdout


def _first_records(
    history: RunHistory, after: float, count: int, replica: str | None = None
) -> list[float]:
    """Return when replicas first recorded training after a time, once so many have."""
    first: dict[str, float] = {}
    for execution in history.executions:
        who = history.trials[execution.trial].replica
        if execution.utc > after and replica in (None, who):
            first[who] = min(execution.utc, first.get(who, execution.utc))
    return list(first.values()) if len(first) >= count else []


def _until(history: RunHistory, found: Callable[[], T]) -> T:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        history.refresh()
        if what := found():
            return what
        time.sleep(0.1)
    raise TimeoutError


if __name__ == "__main__":
    main()
