"""A real SLURM cluster of three nodes on this machine, for the whole session."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.support.cache import unavailable
from tests.support.command import AIPERF, Done, aiperf, aiperf_process
from tests.support.present import present
from tests.support.waiting import PATIENCE_SECONDS, until, until_recorded

from aiperf_hpc.deploy.local_cluster import missing_programs, stop
from aiperf_hpc.primary.launchers.slurm.client import RATE_LIMIT
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import JobState
from aiperf_hpc.trial import JobPhase

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "end_to_end" / "tiny.yaml"
FAST = Path(__file__).with_name("fast.yaml")
LOCAL_CLUSTER = ROOT / "deploy" / "local-cluster"
CLIENTS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct", "srun", "salloc")
COUNTED = """\
#!/bin/sh
echo "$(date +%s.%N) {name} $*" >> "{log}"
exec {program} "$@"
"""


class Cluster:
    """The cluster, and what was asked of it by its clients."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.log = folder / "calls.log"
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            **environment,
        }

    def control(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run deploy/local-cluster."""
        command = [LOCAL_CLUSTER, *arguments, "--dir", self.folder]
        return _carried_out(command, {**os.environ, "PYTHON": sys.executable})

    def count_calls(self) -> None:
        """Put programs before SLURM's own that write down each call."""
        (self.folder / "bin").mkdir()
        for name in CLIENTS:
            wrapper = self.folder / "bin" / name
            program = shutil.which(name) or "/bin/false"
            wrapper.write_text(COUNTED.format(name=name, log=self.log, program=program))
            wrapper.chmod(0o755)

    def calls(self) -> list[tuple[float, str]]:
        """Return when each client was called, UTC seconds, and with what."""
        if not self.log.exists():
            return []
        lines = (line.partition(" ") for line in self.log.read_text("utf-8").splitlines())
        return [(float(at), command) for at, _, command in lines]

    def programs(self) -> list[str]:
        """Return the name of the client of each call."""
        return [command.split()[0] for _, command in self.calls()]

    def questions(self) -> list[tuple[float, str]]:
        """Return the calls that ask the controller something; srun is the work itself."""
        return [(at, command) for at, command in self.calls() if not command.startswith("srun")]

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a command that finds this cluster, uncounted."""
        return _carried_out(command, {**self.environment, "PATH": os.environ["PATH"]})

    def cancel(self, *jobs: str) -> None:
        """Cancel jobs, and wait until their nodes are free."""
        self.run("scancel", *jobs)
        listed = ("squeue", "-h", "-j", ",".join(jobs))
        until(lambda: not self.run(*listed).stdout, lambda: self.run("squeue").stdout, pause=0.2)

    def aiperf(self, *arguments: object) -> Done:
        """Carry out a command in this process, as one that finds this cluster.

        It asks SLURM at once, as in a process of its own, whatever was asked before.
        """
        with patch.object(RATE_LIMIT, "_last", -math.inf):
            return aiperf(*arguments, environment=self.environment)

    def refusal(self, *arguments: object) -> str:
        """Return the only line of a command that is refused."""
        done = self.aiperf(*arguments)
        assert done.returncode == 2, done.stdout
        (line,) = done.stderr.splitlines()
        return line

    def aiperf_process(self, *arguments: object) -> Done:
        """Carry out a command that conducts a run to its end."""
        return aiperf_process(*arguments, environment=self.environment)


def _carried_out(
    command: Iterable[object], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=PATIENCE_SECONDS,
    )


class SlurmRun:
    """A run that is under way on the cluster, its primary in the background."""

    def __init__(
        self, cluster: Cluster, folder: Path, *arguments: object, config: Path = FAST
    ) -> None:
        self.cluster, self.paths = cluster, RunPaths(folder)
        self.history = RunHistory(self.paths)
        cluster.log.unlink(missing_ok=True)
        command = [*AIPERF, "start", "--config", config, "--yes", "--run-dir", folder, *arguments]
        self.process = self._primary(*command)

    def _primary(self, *command: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.cluster.environment,
        )

    def kill_primary(self) -> None:
        """Let it have no last words."""
        self.process.kill()
        self.process.communicate()

    def resume(self) -> None:
        """Go on with another primary."""
        self.process = self._primary(*AIPERF, "resume", self.paths.root)

    def wait_until(self, condition: Callable[[RunHistory], bool]) -> None:
        """Wait until the records say so."""
        until_recorded(condition, self.history, self.process)

    def stop(self) -> None:
        """Stop the run."""
        stopped = self.cluster.aiperf("stop", self.paths.root)
        assert stopped.returncode == 0, stopped.stderr

    def finish(self) -> str:
        """Wait for the primary to succeed, and verify the score; return its errors."""
        out, err = self.end()
        assert self.process.returncode == 0, out + err
        assert any(line.startswith("Score ") for line in out.splitlines())
        self.verify()
        return err

    def verify(self) -> None:
        """Require that the run's records prove its score."""
        verified = self.cluster.aiperf("verify", self.paths.root)
        assert verified.returncode == 0, verified.stdout

    @property
    def job(self) -> str:
        name = present(self.history.replicas["r0"].job)
        return re.split("[_+]", name)[0]

    def end(self) -> tuple[str, str]:
        """Wait for the primary; return what it said."""
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        self.history.refresh()
        return out, err

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            present(pipe).close()
        self.history.refresh()
        if "r0" in self.history.replicas and self.history.replicas["r0"].job:
            self.cluster.cancel(self.job)


Start = Callable[..., SlurmRun]
"""Starts a run with the arguments of `aiperf start`."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes. Where SLURM is missing tests are skipped; in CI they fail."""
    yield from _cluster("--nodes", 3)


def require_slurm() -> None:
    """Skip the test, or in CI fail, if SLURM is not installed."""
    if missing := missing_programs():
        unavailable(f"no {', '.join(missing)} on this machine; `make slurm` installs them")


def _cluster(*arguments: object) -> Iterator[Cluster]:
    require_slurm()
    # Not in pytest's own folder: the name of a socket may have 107 characters only.
    folder = Path(tempfile.mkdtemp(prefix="aiperf-slurm-"))
    made = Cluster(folder)
    try:
        started = made.control("start", *arguments)
        assert started.returncode == 0, started.stderr
        made.count_calls()
        yield made
    finally:
        made.control("stop")
        stop(folder)  # Reaps the daemons that tests of this process have started again.
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def hosts() -> Iterator[Cluster]:
    """Two nodes that are hosts of their own: networks, host names, mounts. Needs root."""
    require_slurm()
    if os.getuid() != 0:
        pytest.skip("separate hosts need root")
    yield from _cluster("--nodes", 2, "--separate-hosts")


@pytest.fixture(scope="module")
def accelerated() -> Iterator[Cluster]:
    """Two nodes with four accelerators each, on which nothing computes."""
    yield from _cluster("--nodes", 2, "--gpus", 4)


@contextmanager
def allocated(cluster: Cluster, *asked: str) -> Iterator[Cluster]:
    """Yield the cluster as seen from inside an allocation, which ends afterwards."""
    granted = cluster.run("salloc", "--no-shell", "--no-kill", "--job-name=held", *asked)
    assert granted.returncode == 0, granted.stderr
    job = min(cluster.run("squeue", "-h", "--name=held", "--format=%A").stdout.split(), key=int)
    try:
        yield Cluster(cluster.folder, SLURM_JOB_ID=job)
    finally:
        cluster.cancel(job)


@pytest.fixture
def slurm_run(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Start runs that end with the test."""
    runs: list[SlurmRun] = []

    def start(
        *arguments: object,
        config: Path = FAST,
        folder: Path | None = None,
        on: Cluster = cluster,
    ) -> SlurmRun:
        place = folder or tmp_path / f"run{len(runs)}"
        runs.append(SlurmRun(on, place, *arguments, config=config))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def phase(history: RunHistory, replica: str) -> JobPhase | None:
    """Return the phase of a replica's job."""
    state = history.replicas[replica].job_state
    return state.phase if state else None


def all_run(history: RunHistory) -> bool:
    """Return whether the jobs of all replicas run."""
    return all(phase(history, name) is JobPhase.RUNNING for name in history.replicas)


def job_state(history: RunHistory, replica: str) -> JobState:
    """Return the state of a replica's job, which is known."""
    return present(history.replicas[replica].job_state)


def gaps(times: list[float]) -> list[float]:
    """Return the seconds from each time to the next."""
    return [after - before for before, after in itertools.pairwise(times)]
