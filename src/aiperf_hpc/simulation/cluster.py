"""A simulated cluster: replicas and their search workers as tasks, and a file server."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from optuna.storages import BaseStorage, InMemoryStorage

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.morphism.lineage import Grown
from aiperf_hpc.morphism.search.run_knowledge import Observations, RunKnowledge
from aiperf_hpc.primary.launchers.base import Launcher, ReplicaState
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.data import Dataset, load_dataset
from aiperf_hpc.replica.data.local_copy import LocalCopy
from aiperf_hpc.replica.engines.base import Engine
from aiperf_hpc.replica.host import Host
from aiperf_hpc.replica.node_check import package_versions
from aiperf_hpc.replica.parallel.collectives import ALONE
from aiperf_hpc.replica.parallel.handshake import Ranks
from aiperf_hpc.replica.replica import Replica
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.search.worker import serve
from aiperf_hpc.replica.trials.hpo import Warn
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import Identity, Incarnation, RunPaths, replica_name, replica_number
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.run.search_digest import Digest
from aiperf_hpc.run.storage import BackoffRetry, Retry
from aiperf_hpc.simulation.timeline import LocalClock, Task, Timeline
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import JobPhase, Machine

P = ParamSpec("P")
T = TypeVar("T")

START_SECONDS = (0.5, 0.9)
"""Range of the time from dispatch to the start of a replica in seconds, measured on SLURM 22.05."""
LOOK_SECONDS = 30.0
"""Seconds between two checks for a stop request by a simulated replica."""
DEFAULT_GIB = 64.0
WAITING = (JobPhase.PENDING, JobPhase.REQUEUED)
"""Phases of a replica that has no node."""


class FileServer:
    """Model of the latency of synced writes to a file system shared by all replicas."""

    def __init__(self, timeline: Timeline, latency: float, per_second: float) -> None:
        self._timeline = timeline
        self._latency = latency
        self._each = 1.0 / per_second
        self._free = 0.0

    def sync(self, file: int) -> None:
        """Charge the time of one synced write; ``file`` is not actually synced."""
        # Uses the start of the turn, not the task's own time: a task that spent time is ahead of
        # the others, and must not make the server appear busy to them until then.
        now = self._timeline.turn_began
        waited = max(0.0, self._free - now)
        self._free = now + waited + self._each
        self._timeline.spend(waited + self._each + self._latency)


class Cluster:
    """State shared by all simulated replicas of a run."""

    def __init__(self, timeline: Timeline, manifest: RunManifest, paths: RunPaths) -> None:
        model = manifest.config.engine.simulation
        self.timeline = timeline
        self.manifest = manifest
        self.paths = paths
        self.files = FileServer(timeline, model.sync_seconds, model.syncs_per_second)
        self.digest = Digest(paths)
        """Digest shared by all replicas: each would have the same, and thousands would not fit."""
        self.observations = Observations(self.digest)
        self.grown = Grown()
        """Cache of regrown graphs of trials."""
        self.versions = package_versions()
        self.alone = Ranks(ALONE)


class SimulatedHost(Host):
    """A node of a simulated cluster."""

    job: str | None = None
    cores = (0,)
    look_seconds = LOOK_SECONDS

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._number = number
        self._timeline = cluster.timeline
        self.clock = LocalClock(cluster.timeline)
        self.pid = number + 1
        self.stop: StopFlag | None = None
        name = replica_name(number)
        # Shared by the trainer and the search workers, which would read the same files.
        self._knowledge = RunKnowledge(
            name, RunHistory(cluster.paths, replica=name), cluster.digest, cluster.observations
        )

    def seconds_alive(self) -> float:
        return 0.0

    def connect(self, stop: StopFlag) -> None:
        self.stop = stop

    def patience(self, give_up: Callable[[], bool]) -> BackoffRetry:
        """Return a retry that gives up at once: real waits would hold locks in virtual time."""
        return BackoffRetry(lambda: True, clock=self.clock)

    def sync(self, file: int) -> None:
        self._cluster.files.sync(file)

    def machine(self, engine: Engine) -> Machine:
        return Machine(
            host=f"n{self._number}",
            cpu="simulated",
            cores=self.cores,
            memory_bytes=self.available_bytes(1),
            accelerators=(),
            versions=self._cluster.versions | engine.versions,
        )

    def describe(self, folders: Mapping[str, Path]) -> None:
        """Return no description: ``machine`` has all that is simulated."""

    def imported(self, rank: int) -> None:
        """Return no record: all replicas are threads of this process."""

    def peak(self, config: RunConfig, device: int) -> None:
        """Return no peak rates: nothing is computed."""

    def check(self, manifest: RunManifest) -> None:
        """Check nothing: there is only one environment."""

    def dataset(self, manifest: RunManifest) -> tuple[Dataset, LocalCopy]:
        config = manifest.config.dataset
        return load_dataset(config, len(self.cores)), LocalCopy(config)

    def file_clock(self, folder: Path) -> None:
        """Return no file clock: files have timestamps in real time."""

    def clocks(self, folder: Path) -> None:
        """Return no clock comparison: the machine's clocks are not simulated."""

    def primary_digest(self, paths: RunPaths) -> None:
        """Return no journal digest: digests of a simulated run prove nothing."""

    def available_bytes(self, ranks: int) -> int:
        return int((self._cluster.manifest.config.engine.memory_limit_gib or DEFAULT_GIB) * 2**30)

    def usage(self) -> tuple[float, int]:
        """Return zero usage."""
        return 0.0, 0

    @contextmanager
    def every(
        self, seconds: float, action: Callable[[], None], failed: Callable[[str], None]
    ) -> Iterator[None]:
        """Run ``action`` periodically; its exceptions end the simulation."""

        def repeat() -> None:
            while True:
                self.clock.sleep(seconds)
                action()

        task = self._timeline.spawn(repeat)
        try:
            yield
        finally:
            self._timeline.cancel(task)

    def telemetry(
        self, paths: RunPaths, seconds: float, append: Callable[[AnyEvent], object]
    ) -> AbstractContextManager[None]:
        """Record no telemetry: the node does not exist."""
        return nullcontext()

    @contextmanager
    def background(self) -> Iterator[Executor]:
        yield TaskExecutor(self._timeline)

    @contextmanager
    def search(self, paths: RunPaths, who: Identity, count: int) -> Iterator[SimulatedWorkers]:
        workers = SimulatedWorkers(self._cluster, who, self._knowledge, count)
        workers.revive()
        try:
            yield workers
        finally:
            workers.end()

    def knowledge(self, paths: RunPaths, replica: str, retry: Retry) -> RunKnowledge:
        return self._knowledge

    def study(self, path: Path, retry: Retry, warn: Warn) -> BaseStorage:
        """Return a storage in memory, because a file would be synced several times per trial."""
        return InMemoryStorage()


class TaskExecutor(Executor):
    """Executes jobs as tasks of the timeline, in order of submission."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._last: Task | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        before, future = self._last, _TaskFuture[T](self._timeline)

        def work() -> None:
            if before is not None:
                self._timeline.join(before)
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 -- whoever asks for the result gets it
                future.set_exception(error)
            else:
                self._timeline.sleep(0.0)  # Its spent time must elapse before it completes.
                future.set_result(result)

        self._last = future.task = self._timeline.spawn(work)
        return future


class _TaskFuture(Future[T]):
    """The future result of a task. Waiting for it lets the timeline advance."""

    task: Task

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def result(self, timeout: float | None = None) -> T:
        self._timeline.join(self.task)
        return super().result(timeout)


class SimulatedWorkers:
    """A replica's search workers, as tasks."""

    def __init__(
        self, cluster: Cluster, who: Identity, knowledge: RunKnowledge, count: int
    ) -> None:
        self._cluster = cluster
        self._who = who
        self._knowledge = knowledge
        self._count = count
        self._tasks: dict[int, Task] = {}
        self._stops: dict[int, StopFlag] = {}

    def revive(self) -> None:
        """Start the workers that are not running."""
        for number in range(self._count):
            if number not in self._tasks or self._tasks[number].ended:
                self._start(number)

    def end(self) -> None:
        """Request all workers to stop, and wait for them."""
        timeline = self._cluster.timeline
        for number, task in self._tasks.items():
            self._stops[number].ask("SIGTERM")
            timeline.wake(task)
        for task in self._tasks.values():
            timeline.join(task)

    def _start(self, number: int) -> None:
        cluster = self._cluster
        timeline, paths = cluster.timeline, cluster.paths
        stop = StopFlag(math.inf, paths.stop_request, look_every=LOOK_SECONDS, clock=timeline)

        clock = LocalClock(timeline)  # A worker may be woken before the time it has spent elapses.
        retry = BackoffRetry(lambda: True, clock=clock)
        own = paths.search_journal(self._who.replica, number, self._who.incarnation)

        def work() -> None:
            sync = cluster.files.sync
            with JournalWriter(own, clock=clock, retry=retry, sync=sync) as journal:
                context = ReplicaContext(
                    config=cluster.manifest.config,
                    paths=paths,
                    who=self._who,
                    journal=journal,
                    stop=stop,
                    clock=clock,
                    retry=retry,
                    sync=sync,
                )
                serve(context, number, number + 1, self._knowledge, cluster.grown)

        self._stops[number], self._tasks[number] = stop, timeline.spawn(work)


class SimulatedLauncher(Launcher):
    """Starts replicas as tasks."""

    name = "simulated"
    exact = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._hosts: dict[str, SimulatedHost] = {}
        self._tasks: dict[str, Task] = {}
        self._states: dict[str, ReplicaState] = {}
        self._attempts: Counter[str] = Counter()
        self._rng = np.random.default_rng(cluster.manifest.config.seed)

    def start(self) -> dict[str, str]:
        return self.add([replica_name(n) for n in range(self._cluster.manifest.nodes)])

    def check(self, nodes: int) -> None:
        """Check nothing: the number of nodes is unlimited."""

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        each = 1.0 / self._cluster.manifest.config.engine.simulation.dispatches_per_second
        for place, name in enumerate(replicas):
            after = place * each + float(self._rng.uniform(*START_SECONDS))
            self._start(name, after)
        return {name: f"task {replica_number(name)}" for name in replicas}

    def release(self, replicas: Collection[str]) -> None:
        for name in replicas:
            if self._states[name].phase in WAITING:
                self._cluster.timeline.cancel(self._tasks[name])
                detail = "cancelled before it started"
                self._states[name] = ReplicaState(JobPhase.DONE, detail=detail)
            elif (stop := self._hosts[name].stop) is not None:
                stop.interrupt("SIGTERM")

    def end(self, replicas: Collection[str]) -> None:
        for name in replicas:
            if not self._tasks[name].ended:
                self._cluster.timeline.cancel(self._tasks[name])
                self._states[name] = ReplicaState(JobPhase.FAILED, detail="killed", status=-9)

    def _start(self, name: str, after: float) -> None:
        """Start a replica, ``after`` seconds from now."""
        number = replica_number(name)
        who = Identity(name, Incarnation(restart=self._attempts[name]))
        self._attempts[name] += 1
        host = self._hosts[name] = SimulatedHost(self._cluster, number)
        self._states[name] = ReplicaState(JobPhase.PENDING)

        def live() -> None:
            state = self._states[name] = ReplicaState(JobPhase.RUNNING, node=f"n{number}")
            status = self._live(who, host)
            phase = JobPhase.FAILED if status else JobPhase.DONE
            self._states[name] = replace(state, phase=phase, status=status)

        self._tasks[name] = self._cluster.timeline.spawn(live, after)

    def _live(self, who: Identity, host: SimulatedHost) -> int:
        try:
            replica = Replica(
                self._cluster.paths, self._cluster.manifest, who, host, self._cluster.alone
            )
        except AIPerfError as error:
            warn(f"{who.replica}: {error}")
            return error.exit_status
        return replica.run()

    def states(self) -> Mapping[str, ReplicaState]:
        return self._states

    def ask_to_stop(self) -> None:
        self.release([name for name, state in self._states.items() if state.phase in WAITING])
        for host in self._hosts.values():
            if host.stop is not None:
                host.stop.ask("SIGTERM")

    def kill(self) -> None:
        self.end(self._tasks)
