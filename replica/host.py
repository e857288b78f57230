"""What a replica needs of where it runs, and the one that is a process of a real machine."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil
from optuna.storages import BaseStorage

from aiperf_hpc import __version__
from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.host.machine import available_bytes, cpu_model
from aiperf_hpc.host.processes import in_background
from aiperf_hpc.host.schedulers import job_variable
from aiperf_hpc.integrity.release import FILES, package_digest
from aiperf_hpc.morphism.weights.checked_file import Tell
from aiperf_hpc.replica.engines.base import Engine
from aiperf_hpc.replica.engines.rank_peak import rank_peak
from aiperf_hpc.replica.node_check import Loaded, check_node, checked_dataset
from aiperf_hpc.replica.runtime.background import background_thread
from aiperf_hpc.replica.runtime.process_tree import replica_tree
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.telemetry import node_telemetry
from aiperf_hpc.replica.search.run_knowledge import RunKnowledge
from aiperf_hpc.replica.trials.hpo import journal_storage
from aiperf_hpc.run.clocks import ClockReading, Clocks, read_clock, read_clocks
from aiperf_hpc.run.digest import Digest
from aiperf_hpc.run.heads import Head, published
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.identity import Identity
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.run.storage import BackoffRetry, Retry, to_stable_storage
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.system.node import describe_rank
from aiperf_hpc.trial import DevicePeak, Machine


class Usage(NamedTuple):
    """Telemetry of a replica's processes on one host."""

    cpu_percent: float
    """The share of one core since the last time: 200 for two that were busy all the time."""
    memory_bytes: int
    """The sum of the resident sets; what processes share counts for each of them."""


class Workers(Protocol):
    """A replica's search workers."""

    def revive(self) -> None:
        """Start those again that have died; their journals say what they died of."""
        ...


class Host(Protocol):
    """Where a replica runs."""

    @property
    def clock(self) -> Clock: ...

    @property
    def cores(self) -> tuple[int, ...]:
        """The logical CPUs that the trainer may use."""
        ...

    @property
    def pid(self) -> int: ...

    @property
    def job(self) -> str | None:
        """The scheduler's number of the job that it runs in."""
        ...

    @property
    def look_seconds(self) -> float:
        """Between two looks at the file that asks for a stop."""
        ...

    def seconds_alive(self) -> float:
        """Return for how long the replica has existed."""
        ...

    def connect(self, stop: StopFlag) -> None:
        """Let whoever asks the replica to stop be heard."""
        ...

    def patience(self, give_up: Callable[[], bool]) -> BackoffRetry:
        """Return how to wait for storage until ``give_up`` says that it is pointless."""
        ...

    def sync(self, file: int) -> None:
        """Bring what was written to an open file to stable storage."""
        ...

    def machine(self, engine: Engine) -> Machine: ...

    def describe(self, folders: Mapping[str, Path]) -> RankDescription | None:
        """Return what this process and its node are; None where both are made up.

        May take seconds, where a vendor's tools do.
        """
        ...

    def peak(self, config: RunConfig, device: int) -> DevicePeak | None:
        """Measure the device of the first rank; None where that is not asked for."""
        ...

    def check(self, manifest: RunManifest) -> None:
        """Require the versions and the dataset of the run. Raises PreflightError."""
        ...

    def dataset(self, manifest: RunManifest) -> Loaded:
        """Load the run's dataset. Raises PreflightError."""
        ...

    def file_clock(self, folder: Path) -> ClockReading | None:
        """Compare the clock with that of the file server, where that says something."""
        ...

    def clocks(self, folder: Path) -> Clocks | None:
        """Read all clocks, with a folder of the run to write in; None where time is made up."""
        ...

    def primary_head(self, paths: RunPaths) -> Head | None:
        """Return what the primary told last of its journal, where that can be had."""
        ...

    def available_bytes(self, ranks: int) -> int:
        """Return the memory that a training may take now on each of so many ranks here."""
        ...

    def usage(self) -> Usage: ...

    def every(
        self, seconds: float, action: Callable[[], None], failed: Callable[[str], None]
    ) -> AbstractContextManager[None]:
        """Do ``action`` every so often while the block runs; tell ``failed`` if it cannot."""
        ...

    def telemetry(
        self, paths: RunPaths, seconds: float, append: Callable[[AnyEvent], object]
    ) -> AbstractContextManager[None]:
        """Append the node's telemetry every so often while the block runs, if none else does."""
        ...

    def background(self) -> AbstractContextManager[Executor]:
        """Give what does jobs beside the training, one after the other."""
        ...

    def search(self, paths: RunPaths, who: Identity, count: int) -> AbstractContextManager[Workers]:
        """Keep search workers working while the block runs."""
        ...

    def knowledge(self, paths: RunPaths, replica: str, retry: Retry) -> RunKnowledge:
        """Return what the replica's trainer knows of the run; ``retry`` reads it."""
        ...

    def study(self, path: Path, retry: Retry, tell: Tell) -> BaseStorage:
        """Return where a study is kept that belongs to ``path``; ``retry`` writes it.

        ``tell`` is told when its file was lost and had to be written anew.
        """
        ...


class ProcessHost:
    """This process, with its own search workers as processes beside it."""

    clock: Clock = SYSTEM
    look_seconds = 1.0

    def __init__(self, sharing: int, several_ranks: bool = False) -> None:
        """Look at the machine.

        Args:
            sharing: replicas that share it.
            several_ranks: whether this process is one of several that make the replica.
        """
        self._sharing = sharing
        self.cores = tuple(sorted(os.sched_getaffinity(0)))
        self.pid = os.getpid()
        self.job = job_variable("id")
        self._tree = replica_tree(several_ranks)
        self._cpu_seconds = self._tree.totals().cpu_seconds
        self._looked = self.clock.monotonic()

    def seconds_alive(self) -> float:
        """Return for how long this process has existed, to a hundredth of a second (proc(5))."""
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)

    def connect(self, stop: StopFlag) -> None:
        """Let this process's signals be heard."""
        stop.install()

    def patience(self, give_up: Callable[[], bool]) -> BackoffRetry:
        return BackoffRetry(give_up, clock=self.clock)

    def sync(self, file: int) -> None:
        to_stable_storage(file)

    def machine(self, engine: Engine) -> Machine:
        return Machine(
            host=socket.gethostname(),
            cpu=cpu_model(),
            cores=self.cores,
            memory_bytes=psutil.virtual_memory().total,
            accelerators=engine.accelerators,
            versions=package_versions() | engine.versions,
        )

    def describe(self, folders: Mapping[str, Path]) -> RankDescription:
        return describe_rank(folders)

    def peak(self, config: RunConfig, device: int) -> DevicePeak | None:
        return rank_peak(config, len(self.cores), device)

    def check(self, manifest: RunManifest) -> None:
        check_node(manifest)

    def dataset(self, manifest: RunManifest) -> Loaded:
        return checked_dataset(manifest, len(self.cores))

    def file_clock(self, folder: Path) -> ClockReading | None:
        return read_clock(folder, self.clock.utc)

    def clocks(self, folder: Path) -> Clocks | None:
        return read_clocks(folder)

    def primary_head(self, paths: RunPaths) -> Head | None:
        return published(paths)

    def available_bytes(self, ranks: int) -> int:
        return available_bytes(self._sharing * ranks)

    def usage(self) -> Usage:
        """Return that of the whole process tree since the last time, or since the start."""
        (seconds, memory), now = self._tree.totals(), self.clock.monotonic()
        # Less than before, where a process has left the tree.
        used, passed = max(0.0, seconds - self._cpu_seconds), now - self._looked
        self._cpu_seconds = seconds
        self._looked = now
        return Usage(100.0 * used / passed if passed > 0.0 else 0.0, memory)

    @contextmanager
    def every(
        self, seconds: float, action: Callable[[], None], failed: Callable[[str], None]
    ) -> Iterator[None]:
        """Do ``action`` every so often, from a thread of its own, while the block runs."""

        def repeat(over: threading.Event) -> None:
            while not over.wait(seconds):
                try:
                    action()
                except Exception as error:
                    # A replica without a pulse would look dead, and its workers would be.
                    failed(f"its pulse failed: {type(error).__name__}: {error}")
                    raise

        with in_background(repeat, "pulse"):
            yield

    def telemetry(
        self, paths: RunPaths, seconds: float, append: Callable[[AnyEvent], object]
    ) -> AbstractContextManager[None]:
        return node_telemetry(paths, seconds=seconds, clock=self.clock, append=append)

    def background(self) -> AbstractContextManager[Executor]:
        return background_thread()

    def search(self, paths: RunPaths, who: Identity, count: int) -> AbstractContextManager[Workers]:
        return _SearchProcesses(paths, who, count)

    def knowledge(self, paths: RunPaths, replica: str, retry: Retry) -> RunKnowledge:
        history = RunHistory(paths, replica=replica, retry=retry)
        return RunKnowledge(replica, history, Digest(paths, retry))

    def study(self, path: Path, retry: Retry, tell: Tell) -> BaseStorage:
        return journal_storage(path, retry, tell)


def package_versions() -> dict[str, str]:
    """Return the versions of what a replica's results may depend on, but for its engine."""
    return {
        "aiperf-hpc": __version__,  # A checkout's own: on PYTHONPATH it has no metadata.
        FILES: package_digest(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "optuna")},
    }


SEARCH_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""The environment variables that keep a search worker's linear algebra to one thread. Threads that
have to wait for each other spin, and at low priority they wait long: for the training, whose cores
they take."""


class _SearchProcesses:
    """Search workers as processes, in a context: started with it, ended with it."""

    def __init__(self, paths: RunPaths, who: Identity, count: int) -> None:
        base = [sys.executable, "-m", "aiperf_hpc.replica.search.worker", str(paths.root)]
        base += ["--replica", who.replica, "--incarnation", str(who.incarnation)]
        base += ["--parent", str(os.getpid())]
        self._commands = [[*base, "--worker", str(number)] for number in range(count)]
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        self._workers = [self._start(command) for command in self._commands]
        return self

    def revive(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self._workers[number] = self._start(self._commands[number])

    @staticmethod
    def _start(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env={**os.environ, **SEARCH_THREADS})

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()
        end = time.monotonic() + 5.0
        for worker in self._workers:
            try:
                worker.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
