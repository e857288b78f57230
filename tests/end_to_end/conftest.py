"""Real runs: the installed command, real replicas, the real engine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.command import AIPERF
from tests.support.waiting import PATIENCE_SECONDS, until_recorded

from aiperf_hpc.primary.control.resume import end_leftovers
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import RoundPhase

TINY = Path(__file__).with_name("tiny.yaml")
FAST = Path(__file__).parents[1] / "slurm" / "fast.yaml"
"""The configuration for what does not depend on what is computed: replicas are there at once, and
train one long trial with a checkpoint after each epoch, in which time passes and nothing else."""
LONG = [
    argument
    for setting in (
        "training.checkpoint_interval_seconds=0", "training.max_epochs=4000",
        "training.patience=4000", "rounds.warmup_epochs=[4000,4000,4000]",
    )
    for argument in ("--set", setting)
]  # fmt: skip
"""Long trials with a checkpoint after every epoch, so that deaths find something to go on with."""
TORCH = ["--set", "engine.name=torch"]
"""For runs with many networks whose engine does not matter: TensorFlow traces each of them."""


class LiveRun:
    """A run that is under way in the background."""

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        config: Path = TINY,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.paths = RunPaths(folder)
        self.environment = os.environ if environment is None else environment
        """Not that of the C library: readline sets COLUMNS there."""
        self.history = RunHistory(self.paths)
        self.primaries: list[subprocess.Popen[str]] = []
        command = ["start", "--nodes", 2, "--hours", 1, "--config", config, "--yes"]
        command += ["--launcher", "local", "--run-dir", folder, *arguments]
        self.process = self._primary(*command)

    def _primary(self, *command: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*AIPERF, *(str(part) for part in command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.primaries.append(process)
        return process

    def resume(self, folder: Path | None = None) -> subprocess.Popen[str]:
        """Go on with another primary, which may know the run by another name of its folder."""
        self.process = self._primary("resume", folder or self.paths.root)
        return self.process

    def wait_until(self, condition: Callable[[RunHistory], bool]) -> None:
        """Wait until the records say so."""
        until_recorded(condition, self.history, self.process)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> subprocess.CompletedProcess[str]:
        """Ask the primary to end in order, and wait until it has."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait until the primary has ended."""
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        self.history.refresh()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def replica_pid(self, replica: str) -> int:
        started = self.history.replicas[replica].started
        assert started is not None
        return started.pid

    def close(self) -> None:
        """Leave no process behind, whatever the test did."""
        for primary in self.primaries:
            with primary:  # Its pipes are closed, and it is waited for.
                primary.kill()
        self.history.refresh()
        end_leftovers(self.history)


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[Callable[..., LiveRun]]:
    """Start runs that end with the test."""
    runs: list[LiveRun] = []

    def start(*arguments: object, config: Path = TINY) -> LiveRun:
        runs.append(LiveRun(tmp_path / f"run{len(runs)}", *arguments, config=config))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def tuned(history: RunHistory) -> bool:
    """Both replicas are past their warm-up, and have trained what the optimiser proposed."""
    tuned = [t for t in history.trials.values() if t.started.phase is RoundPhase.HPO]
    return len({t.replica for t in tuned if t.state.ended}) == 2


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[RunPaths, subprocess.CompletedProcess[str]]:
    """One short run of ResNet-50's topology, with all that a run has, from nothing to its score."""
    resnet50 = ["--set", "model.blocks=[3,4,6,3]"]
    run = LiveRun(tmp_path_factory.mktemp("finished") / "run", *resnet50, *TORCH)
    try:
        run.wait_until(tuned)
        return run.paths, run.interrupt()
    finally:
        run.close()
