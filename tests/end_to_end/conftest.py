"""Real runs: the installed command, real replicas, the real engine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aiperf_hpc.history import RunHistory
from aiperf_hpc.paths import RunPaths
from aiperf_hpc.primary.resume import end_leftovers

TINY = Path(__file__).with_name("tiny.yaml")
AIPERF = [sys.executable, "-m", "aiperf_hpc.primary.cli"]


def aiperf(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [*AIPERF, *(str(argument) for argument in arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, timeout=300
    )


class LiveRun:
    """A run that is under way in the background."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.paths = RunPaths(folder)
        self.history = RunHistory(self.paths)
        command = [*AIPERF, "start", "--nodes", 2, "--hours", 1, "--config", TINY, "--yes"]
        command += ["--launcher", "local", "--run-dir", folder, *arguments]
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until(self, condition: Callable[[RunHistory], bool], seconds: float = 120) -> None:
        """Wait until the records say so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.process.communicate()
            self.history.refresh()
            if condition(self.history):
                return
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds} s: {self.history.trials}")

    def replica_pid(self, replica: str) -> int:
        started = self.history.replicas[replica].started
        assert started is not None
        return started.pid

    def close(self) -> None:
        """Leave no process behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self.process.wait()
        self.history.refresh()
        end_leftovers(self.history)


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[Callable[..., LiveRun]]:
    """Start runs that end with the test."""
    runs: list[LiveRun] = []

    def start(*arguments: object) -> LiveRun:
        runs.append(LiveRun(tmp_path / f"run{len(runs)}", *arguments))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[RunPaths, subprocess.CompletedProcess[str]]:
    """One short run from nothing to its score."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    done = aiperf(
        "start", "--nodes", 2, "--hours", 0.0125, "--config", TINY, "--run-dir", folder, "--yes",
        "--launcher", "local",
    )  # fmt: skip
    return RunPaths(folder), done
