"""One replica: ``python -m aiperf_hpc.replica RUN_DIR --replica r0 [--cores 0,1]``.

Reads ``run.yaml``, appends to its own journal, keeps its search workers running, and trains
until the run's time is over or a stop is asked for.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import psutil

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.digest import Digest
from aiperf_hpc.errors import UNEXPECTED_STATUS, UNSEEN_RUN_STATUS, AIPerfError, RunDirectoryError
from aiperf_hpc.file_clock import read_clock
from aiperf_hpc.history import RunHistory
from aiperf_hpc.journal import JournalWriter
from aiperf_hpc.manifest import RunManifest
from aiperf_hpc.morphism.lineage import initial_graph
from aiperf_hpc.paths import Incarnation, RunPaths
from aiperf_hpc.records import DatasetLoaded, Heartbeat, ReplicaEnded, ReplicaStarted, TimeSpent
from aiperf_hpc.replica.collectives import Collective, load_collective
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Engine
from aiperf_hpc.replica.memory import available_bytes
from aiperf_hpc.replica.parallel import LeadingDataset, LeadingEngine, Ranks, follow
from aiperf_hpc.replica.preflight import check_node, checked_dataset, node_name
from aiperf_hpc.replica.rounds import ReplicaFailedError, Rounds
from aiperf_hpc.replica.stopping import StopFlag
from aiperf_hpc.replica.stopwatch import Stopwatch
from aiperf_hpc.replica.trainer import Trainer
from aiperf_hpc.storage import Patience, Persist
from aiperf_hpc.trial import Machine, TimePhase

STORAGE_GRACE_SECONDS = 30.0
"""How long after its end a replica still waits for storage to take its last records."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one replica; return its exit status."""
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--replica", required=True, help="its name, e.g. r0")
    parser.add_argument("--cores", default="", help="logical CPUs, e.g. 0,1; all when not given")
    parser.add_argument("--launch", type=int, default=0, help="launches of it before this one")
    parser.add_argument(
        "--restart",
        type=int,
        # The scheduler says how often it has requeued this job.
        default=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        help="restarts of it since that launch",
    )
    parser.add_argument("--sharing", type=int, default=1, help="replicas on this machine")
    options = parser.parse_args(arguments)
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    try:
        manifest = RunManifest.load(RunPaths(options.run_dir))
        replica = manifest.config.replica
        collective = load_collective(replica.collective, replica.ranks)
    except RunDirectoryError as error:
        sys.stderr.write(f"aiperf: {options.replica}: node {node_name()}: {error}\n")
        return UNSEEN_RUN_STATUS
    except AIPerfError as error:
        sys.stderr.write(f"aiperf: {options.replica}: {error}\n")
        return error.exit_status
    _share_cores(collective)
    try:
        ranks = Ranks(collective)
        if collective.rank:
            return _follow(manifest, ranks)
        return _lead(options, manifest, ranks)
    except BaseException:
        if collective.size > 1:
            # The other ranks would wait for this one for ever.
            traceback.print_exc()
            collective.abort(UNEXPECTED_STATUS)
        raise
    finally:
        collective.close()


def _share_cores(collective: Collective) -> None:
    """Leave the other ranks of this host their share of the cores that the replica has."""
    cores = sorted(os.sched_getaffinity(0))
    if 1 < collective.local_size <= len(cores):
        os.sched_setaffinity(0, cores[collective.local_rank :: collective.local_size])


def _follow(manifest: RunManifest, ranks: Ranks) -> int:
    """Be one of the ranks that rank 0 leads; what goes wrong is rank 0's to record."""
    config = manifest.config
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # Rank 0 is asked too, and decides.
    cores = len(os.sched_getaffinity(0))
    failure: AIPerfError | None = None
    try:
        check_node(manifest)
        engine = load_engine(
            config.engine.name,
            cores,
            simulation=config.engine.simulation,
            device=ranks.collective.local_rank,
        )
        dataset = checked_dataset(manifest, cores)
    except AIPerfError as error:
        failure = error
    try:
        ranks.muster(failure)
    except AIPerfError as error:
        sys.stderr.write(f"aiperf: rank {ranks.collective.rank}: {error}\n")
        return 0
    follow(engine, dataset, ranks.collective)
    return 0


def _lead(options: argparse.Namespace, manifest: RunManifest, ranks: Ranks) -> int:
    """Be the replica, or its rank 0."""
    try:
        return _replica(options, manifest, ranks)
    finally:
        ranks.dismiss()


def _replica(options: argparse.Namespace, manifest: RunManifest, ranks: Ranks) -> int:
    clock = SYSTEM
    watch = Stopwatch(clock)
    watch.add(TimePhase.START, _seconds_alive())
    paths = RunPaths(options.run_dir)
    try:
        history = RunHistory(paths, replica=options.replica)
        stop = StopFlag(_deadline(history, manifest), paths.stop_request, clock=clock)
    except AIPerfError as error:
        sys.stderr.write(f"aiperf: {options.replica}: {error}\n")
        return error.exit_status
    stop.install()
    patience = Patience(lambda: stop.overdue(STORAGE_GRACE_SECONDS), clock=clock)
    life = claim_life(
        paths, options.replica, Incarnation(options.launch, options.restart), patience
    )
    who = _Identity(options.replica, life)
    own = paths.replica_journal(who.replica, who.incarnation)
    with JournalWriter(own, clock=clock, persist=patience) as journal:
        site = _Site(paths, manifest, who, history, journal, watch, stop, patience, clock, ranks)
        reason, status = "", 0
        try:
            reason = _work(site, options.sharing)
        except AIPerfError as error:
            reason, status = f"failed: {error}", error.exit_status
            sys.stderr.write(f"aiperf: {options.replica}: {error}\n")
        except Exception as error:
            # Recorded for whoever reads the run; the traceback goes to the replica's log.
            reason = f"failed: unexpected {type(error).__name__}: {error}"
            raise
        finally:
            if reason:
                journal.append(TimeSpent(trial=None, seconds=watch.take()))
                journal.append(ReplicaEnded(reason=reason))
    return status


def claim_life(
    paths: RunPaths, replica: str, counted: Incarnation, persist: Persist
) -> Incarnation:
    """Make the folder of this life of a replica, which no other process has; return its number.

    Args:
        paths: the run.
        replica: its name.
        counted: the life by its scheduler's count, which is not enough: a controller that is killed
            and comes back has forgotten its last seconds, and counts a restart in them again while
            the one that it has forgotten runs on.
        persist: how to write.

    Raises:
        StorageError: the folder cannot be made.
    """
    known = _lives(paths.replica(replica))
    later = (life.restart + 1 for life in known if life.launch == counted.launch)
    for restart in itertools.count(max(counted.restart, *later, 0)):
        life = Incarnation(counted.launch, restart)
        folder = paths.incarnation(replica, life)
        if persist(partial(_make_new, folder), str(folder)):
            return life
    raise AssertionError("unreachable")


def _lives(folder: Path) -> list[Incarnation]:
    """Return the lives that have a folder, as far as that is visible here."""
    found = []
    for path in folder.glob("*.*"):
        with suppress(ValueError):  # Not a folder of ours.
            found.append(Incarnation.parse(path.name))
    return found


def _make_new(folder: Path) -> bool:
    """Return whether it was this process that made the folder: of two one fails, on NFS too."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _seconds_alive() -> float:
    """Return for how long this process has existed, to a hundredth of a second (proc(5))."""
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


@dataclass(frozen=True, slots=True)
class _Identity:
    """Which replica this is, and which of its lives."""

    replica: str
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class _Site:
    """What all parts of this replica share."""

    paths: RunPaths
    manifest: RunManifest
    who: _Identity
    history: RunHistory
    journal: JournalWriter
    watch: Stopwatch
    stop: StopFlag
    patience: Patience
    clock: Clock
    ranks: Ranks


def _work(site: _Site, sharing: int) -> str:
    """Train until it is over; return why it is."""
    config, paths, who = site.manifest.config, site.paths, site.who
    journal, watch = site.journal, site.watch
    cores = tuple(sorted(os.sched_getaffinity(0)))
    ranks = site.ranks
    check_node(site.manifest)
    engine = load_engine(
        config.engine.name,
        len(cores),
        simulation=config.engine.simulation,
        clock=site.clock,
        device=ranks.collective.local_rank,
    )
    own = paths.incarnation(who.replica, who.incarnation)
    clock = site.patience(lambda: read_clock(own, site.clock.utc), f"a file in {own}")
    journal.append(
        ReplicaStarted(
            replica=who.replica,
            pid=os.getpid(),
            engine=engine.name,
            machine=_machine(engine, cores),
            job=os.environ.get("SLURM_JOB_ID"),
            hosts=ranks.hosts if ranks.several else (),
            clock=clock,
        )
    )
    workers = _SearchWorkers(paths, who, config.search.workers)
    with (
        workers,
        _every(config.journal.heartbeat_seconds, _Pulse(site, workers).beat, site.stop.ask),
    ):
        dataset = checked_dataset(site.manifest, len(cores))
        ranks.muster()
        journal.append(DatasetLoaded(dataset=dataset.info))
        limit = config.engine.memory_gib
        share = sharing * ranks.collective.local_size
        memory = available_bytes(share) if limit is None else int(limit * 2**30)
        rounds = Rounds(
            config=config,
            paths=paths,
            replica=who.replica,
            incarnation=who.incarnation,
            initial=initial_graph(config.model, dataset.info),
            trainer=Trainer(
                LeadingEngine(engine, ranks.collective) if ranks.several else engine,
                LeadingDataset(dataset, ranks.collective) if ranks.several else dataset,
                config,
                journal,
                watch,
                site.stop,
                memory,
                paths.under_way(who.replica, who.incarnation),
                site.patience,
                site.clock,
            ),
            journal=journal,
            history=site.history,
            stopwatch=watch,
            stop=site.stop,
            persist=site.patience,
            digest=Digest(paths),
            clock=site.clock,
        )
        watch.enter(TimePhase.OTHER)
        return rounds.run()


def _deadline(history: RunHistory, manifest: RunManifest) -> float:
    """Return when the run's time is over: its start is in the primary's journal."""
    history.refresh()
    if history.start_utc is None:
        raise ReplicaFailedError("the primary's journal does not say that the run has started")
    return history.start_utc + manifest.hours * 3600.0


def _machine(engine: Engine, cores: tuple[int, ...]) -> Machine:
    packages = ("aiperf-hpc", "numpy", "optuna")
    versions = {name: metadata.version(name) for name in packages}
    versions |= {"python": platform.python_version()} | engine.versions
    return Machine(
        host=socket.gethostname(),
        cpu=_cpu_model(),
        cores=cores,
        memory_bytes=psutil.virtual_memory().total,
        accelerators=engine.accelerators,
        versions=versions,
    )


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


class _SearchWorkers:
    """The replica's search workers, as a context: started with it, ended with it."""

    def __init__(self, paths: RunPaths, who: _Identity, count: int) -> None:
        base = [sys.executable, "-m", "aiperf_hpc.replica.search_worker", str(paths.root)]
        base += ["--replica", who.replica, "--incarnation", str(who.incarnation)]
        base += ["--parent", str(os.getpid())]
        self._commands = [[*base, "--worker", str(number)] for number in range(count)]
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> None:
        self._workers = [subprocess.Popen(command) for command in self._commands]

    def revive(self) -> None:
        """Start those again that have died; their journals say what they died of."""
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self._workers[number] = subprocess.Popen(self._commands[number])

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()
        end = time.monotonic() + 5.0
        for worker in self._workers:
            try:
                worker.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()


class _Pulse:
    """What a replica does now and then, whatever its trainer is doing."""

    def __init__(self, site: _Site, workers: _SearchWorkers) -> None:
        self._site, self._workers = site, workers
        self._process = psutil.Process()
        self._process.cpu_percent()  # The first call only starts the measurement.

    def beat(self) -> None:
        """Record that the replica is alive, and see that its search workers are."""
        self._workers.revive()
        memory = 0
        for member in (self._process, *self._process.children(recursive=True)):
            try:
                memory += member.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # It ended between being listed and being asked.
        self._site.journal.append(
            Heartbeat(
                phase=self._site.watch.phase,
                cpu_percent=self._process.cpu_percent(),
                memory_bytes=memory,
                storage_wait_seconds=self._site.patience.waited,
            )
        )


@contextmanager
def _every(
    seconds: float, action: Callable[[], None], failed: Callable[[str], None]
) -> Iterator[None]:
    """Do ``action`` every so often, from a thread of its own, while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            try:
                action()
            except Exception as error:
                # A replica without a pulse would look dead, and its search workers would be.
                failed(f"its pulse failed: {type(error).__name__}: {error}")
                raise

    thread = threading.Thread(target=repeat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
