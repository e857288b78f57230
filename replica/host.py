"""The host of a replica: clock, measurements and processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import psutil
from optuna.storages import BaseStorage, JournalStorage

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.host.machine import available_bytes, cpu_model
from aiperf_hpc.host.processes import in_background
from aiperf_hpc.host.schedulers import job_variable
from aiperf_hpc.morphism.search.run_knowledge import RunKnowledge
from aiperf_hpc.replica.data.base import Dataset
from aiperf_hpc.replica.data.local_copy import LocalCopy
from aiperf_hpc.replica.engines.base import Engine
from aiperf_hpc.replica.engines.peaks import rank_peak
from aiperf_hpc.replica.node_check import (
    check_node,
    checked_dataset,
    imported_modules,
    package_versions,
)
from aiperf_hpc.replica.runtime.background import background_thread
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.telemetry import node_telemetry, replica_tree
from aiperf_hpc.replica.trials.hpo import StudyLog, Warn
from aiperf_hpc.run.clocks import ClockReading, Clocks, read_clock, read_clocks
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal_digest import JournalDigest, published
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import Identity, RunPaths
from aiperf_hpc.run.records import AnyEvent, ModulesImported
from aiperf_hpc.run.search_digest import Digest
from aiperf_hpc.run.storage import BackoffRetry, Retry, to_stable_storage
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.system.node import describe_rank
from aiperf_hpc.trial import DevicePeak, Machine


class Workers(Protocol):
    """A replica's search workers."""

    def revive(self) -> None:
        """Restart workers that have exited; their journals have the reasons."""


class Host:
    """The real host: this process is the replica, and search workers are child processes.

    The simulation overrides all of it.
    """

    clock: Clock = SYSTEM
    look_seconds = 1.0
    """Polling interval of the stop file in seconds."""

    def __init__(self, sharing: int, several_ranks: bool = False) -> None:
        """Detect the host.

        Args:
            sharing: number of replicas on it.
            several_ranks: whether this process is one of several ranks of the replica.
        """
        self._sharing = sharing
        self.cores = tuple(sorted(os.sched_getaffinity(0)))
        """The logical CPUs that the trainer may use."""
        self.pid = os.getpid()
        self.job = job_variable("id")
        """The scheduler's identifier of the replica's job."""
        self._tree = replica_tree(several_ranks)
        self._cpu_seconds, _ = self._tree.totals()
        self._looked = self.clock.monotonic()

    def seconds_alive(self) -> float:
        """Return the age of this process, to a hundredth of a second (proc(5))."""
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)

    def connect(self, stop: StopFlag) -> None:
        """Install signal handlers that request a stop."""
        stop.install()

    def patience(self, give_up: Callable[[], bool]) -> BackoffRetry:
        """Return a retry that waits for storage until ``give_up`` returns True."""
        return BackoffRetry(give_up, clock=self.clock)

    def sync(self, file: int) -> None:
        """Write an open file's data to stable storage."""
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

    def describe(self, folders: Mapping[str, Path]) -> RankDescription | None:
        """Describe this process and its node; None if simulated. Vendor tools may need seconds."""
        return describe_rank(folders)

    def imported(self, rank: int) -> ModulesImported | None:
        """Return the record of this process's imported modules; None if simulated."""
        return imported_modules(rank)

    def peak(self, config: RunConfig, device: int) -> DevicePeak | None:
        """Measure the device of the first rank; None unless the configuration requests it."""
        return rank_peak(config, len(self.cores), device)

    def check(self, manifest: RunManifest) -> None:
        """Require the versions and the dataset of the run. Raises PreflightError."""
        check_node(manifest)

    def dataset(self, manifest: RunManifest) -> tuple[Dataset, LocalCopy]:
        """Load the run's dataset. Raises PreflightError."""
        return checked_dataset(manifest, len(self.cores))

    def file_clock(self, folder: Path) -> ClockReading | None:
        """Compare the clock with the file server's; None if there is no difference to report."""
        return read_clock(folder, self.clock.utc)

    def clocks(self, folder: Path) -> Clocks | None:
        """Read all clocks, using a folder of the run for the file server's; None if simulated."""
        return read_clocks(folder)

    def primary_digest(self, paths: RunPaths) -> JournalDigest | None:
        """Return the latest digest of the primary's journal, if there is one."""
        return published(paths)

    def available_bytes(self, ranks: int) -> int:
        """Return the memory in bytes that is available to each of the ranks here."""
        return available_bytes(self._sharing * ranks)

    def usage(self) -> tuple[float, int]:
        """Return CPU and memory usage of the replica's processes.

        Returns:
            CPU utilization since the last call, or since the start, in percent of one core: 200
            for two busy cores. Sum of the resident set sizes in bytes; shared memory counts once
            per process.
        """
        (seconds, memory), now = self._tree.totals(), self.clock.monotonic()
        # The total decreases when a process leaves the tree.
        used, passed = max(0.0, seconds - self._cpu_seconds), now - self._looked
        self._cpu_seconds = seconds
        self._looked = now
        return 100.0 * used / passed if passed > 0.0 else 0.0, memory

    @contextmanager
    def every(
        self, seconds: float, action: Callable[[], None], failed: Callable[[str], None]
    ) -> Iterator[None]:
        """Do ``action`` periodically in a thread while the block runs; report its failure."""

        def repeat(over: threading.Event) -> None:
            while not over.wait(seconds):
                try:
                    action()
                except Exception as error:
                    # Without heartbeats the replica would count as exited.
                    failed(f"its pulse failed: {type(error).__name__}: {error}")
                    raise

        with in_background(repeat, "pulse"):
            yield

    def telemetry(
        self, paths: RunPaths, seconds: float, append: Callable[[AnyEvent], object]
    ) -> AbstractContextManager[None]:
        """Append the node's telemetry periodically while the block runs, once per node."""
        return node_telemetry(paths, seconds=seconds, clock=self.clock, append=append)

    def background(self) -> AbstractContextManager[Executor]:
        """Provide an executor with one thread, used during training."""
        return background_thread()

    def search(self, paths: RunPaths, who: Identity, count: int) -> AbstractContextManager[Workers]:
        """Run search workers while the block runs."""
        return _SearchProcesses(paths, who, count)

    def knowledge(self, paths: RunPaths, replica: str, retry: Retry) -> RunKnowledge:
        """Return the trainer's view of the run, read with ``retry``."""
        history = RunHistory(paths, replica=replica, retry=retry)
        return RunKnowledge(replica, history, Digest(paths, retry))

    def study(self, path: Path, retry: Retry, warn: Warn) -> BaseStorage:
        """Return the storage of a study in ``path``, written with ``retry``.

        ``warn`` is called if its file was lost and had to be written anew.
        """
        return JournalStorage(StudyLog(path, retry, warn))


SEARCH_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""Environment variables that limit a search worker's linear algebra to one thread. Several threads
would spin while they wait for each other, and at low priority steal time from the training."""


class _SearchProcesses:
    """Search workers as child processes, in a context manager that starts and ends them."""

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
