"""One life of a replica: from its first record to its last, wherever it runs."""

from __future__ import annotations

import math
import sys

from optuna.storages import BaseStorage

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.replica.host import Host, Workers
from aiperf_hpc.replica.identity import Identity
from aiperf_hpc.replica.node_check import checked_engine
from aiperf_hpc.replica.parallel.collectives.base import RankLostError
from aiperf_hpc.replica.parallel.handshake import Ranks, facts_of
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.trials.building import OneRankBuilder, SeveralRanksBuilder
from aiperf_hpc.replica.trials.loop import ReplicaFailedError, TrialLoop
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import (
    DatasetLoaded,
    FileProblem,
    Heartbeat,
    ReplicaEnded,
    ReplicaStarted,
    RunStarted,
    StorageWaited,
    TimeSpent,
)
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.trial import TimePhase
from aiperf_hpc.workloads.registry import initial_graph

STORAGE_GRACE_SECONDS = 180.0
"""How long after its end a replica still waits for storage to take its last records: a file
server that was away for a minute refuses to open files for its grace time, usually 90 s."""


class Replica:
    """A replica at work."""

    def __init__(
        self, paths: RunPaths, manifest: RunManifest, who: Identity, host: Host, ranks: Ranks
    ) -> None:
        """Prepare.

        Args:
            paths: the run.
            manifest: what it is.
            who: which replica this is.
            host: where it runs.
            ranks: of which this is the first.

        Raises:
            ReplicaFailedError: the run has not started.
        """
        self._paths = paths
        self._manifest = manifest
        self._who = who
        self._host = host
        self._ranks = ranks
        self._watch = Stopwatch(host.clock)
        self._watch.add(TimePhase.START, host.seconds_alive())
        self._stop = StopFlag(
            math.inf, paths.stop_request, look_every=host.look_seconds, clock=host.clock
        )
        host.connect(self._stop)
        self._patience = host.patience(lambda: self._stop.overdue(STORAGE_GRACE_SECONDS))
        self._stop.deadline = _deadline(paths, manifest, self._patience)

    def run(self) -> int:
        """Train until it is over; return the exit status."""
        who = self._who
        own = self._paths.replica_journal(who.replica, who.incarnation)
        clock, sync = self._host.clock, self._host.sync
        with JournalWriter(own, clock=clock, retry=self._patience, sync=sync) as journal:
            reason, status = "", 0
            try:
                reason = self._work(journal)
            except AIPerfError as error:
                reason, status = f"failed: {error}", error.exit_status
                sys.stderr.write(f"aiperf: {who.replica}: {error}\n")
            except Exception as error:
                # Recorded for whoever reads the run; the traceback goes to the replica's log.
                reason = f"failed: unexpected {type(error).__name__}: {error}"
                raise
            finally:
                if reason:
                    journal.append(TimeSpent(trial=None, seconds=self._watch.take()))
                    journal.append_all([*self._waits(), ReplicaEnded(reason=reason)])
        return status

    def _work(self, journal: JournalWriter) -> str:
        """Train until it is over; return why it is."""
        config, host, who, ranks = self._manifest.config, self._host, self._who, self._ranks
        host.check(self._manifest)
        local_rank = ranks.collective.local_rank
        engine = checked_engine(self._manifest, len(host.cores), host.clock, local_rank)
        own = self._paths.incarnation(who.replica, who.incarnation)
        clock = self._patience(lambda: host.file_clock(own), f"a file in {own}")
        machine = host.machine(engine)
        journal.append(
            ReplicaStarted(
                replica=who.replica,
                pid=host.pid,
                engine=engine.name,
                machine=machine,
                job=host.job,
                hosts=ranks.hosts if ranks.several else (),
                clock=clock,
            )
        )
        beat = config.journal.heartbeat_seconds
        with (
            host.search(self._paths, who, config.search.processes) as workers,
            host.every(beat, lambda: self._beat(journal, workers), self._stop.ask),
            host.background() as background,
        ):
            loaded = host.dataset(self._manifest)
            dataset = loaded.dataset
            ranks.handshake(
                facts_of(machine.versions, dataset.info, config.seed), str(who.incarnation)
            )
            given = config.engine.memory_gib
            available = engine.memory_bytes or host.available_bytes(ranks.collective.local_size)
            limit = available if given is None else int(given * 2**30)
            journal.append(
                DatasetLoaded(
                    dataset=dataset.info,
                    memory_limit_bytes=limit,
                    staged_seconds=loaded.staged_seconds,
                    staged_bytes=loaded.staged_bytes,
                )
            )
            leading: LeadingEngine | None = None
            leading_dataset = dataset
            if ranks.several:
                limit_seconds = config.replica.rank_timeout_seconds
                together = ranks.watched(own, limit_seconds, journal)
                leading = LeadingEngine(engine, together)
                leading_dataset = LeadingDataset(dataset, together)
            trainer = Trainer(
                engine if leading is None else leading,
                leading_dataset,
                config,
                journal,
                self._watch,
                self._stop,
                limit,
                self._paths.under_way(who.replica, who.incarnation),
                self._patience,
                host.clock,
            )
            loop = TrialLoop(
                config=config,
                paths=self._paths,
                replica=who.replica,
                incarnation=who.incarnation,
                initial=initial_graph(config, dataset.info),
                trainer=trainer,
                journal=journal,
                knowledge=host.knowledge(self._paths, who.replica, self._patience),
                stopwatch=self._watch,
                stop=self._stop,
                retry=self._patience,
                clock=host.clock,
                sync=host.sync,
                study=self._study(journal),
                background=background,
                builder=OneRankBuilder(trainer, background)
                if leading is None
                else SeveralRanksBuilder(trainer, leading),
            )
            self._watch.enter(TimePhase.OTHER)
            try:
                return loop.run()
            except RankLostError as error:
                ranks.lost(error)

    def _study(self, journal: JournalWriter) -> BaseStorage:
        """Return where this life's study is kept; what is wrong with it is recorded."""
        path = self._paths.study(self._who.replica, self._who.incarnation)
        file = str(path.relative_to(self._paths.root))

        def tell(problem: str) -> None:
            remedy = "it was written anew, with all that was tried"
            journal.append(FileProblem(file=file, problem=problem, remedy=remedy))

        return self._host.study(path, self._patience, tell)

    def _beat(self, journal: JournalWriter, workers: Workers) -> None:
        """Record that the replica is alive, and see that its search workers are."""
        workers.revive()
        usage = self._host.usage()
        waiting = self._patience.waiting
        beat = Heartbeat(
            phase=self._watch.phase,
            cpu_percent=usage.cpu_percent,
            memory_bytes=usage.memory_bytes,
            storage_wait_seconds=self._patience.waited,
            storage_waiting=waiting.why if waiting is not None else "",
        )
        journal.append_all([*self._waits(), beat])

    def _waits(self) -> list[StorageWaited]:
        """Return what is to be recorded of the times in which storage was waited for."""
        return [StorageWaited.of(wait) for wait in self._patience.take()]


def _deadline(paths: RunPaths, manifest: RunManifest, retry: Retry) -> float:
    """Return when the run's time is over: its start is in the primary's journal, at the top."""
    for record in JournalReader(paths.primary_journal, retry=retry).read():
        if isinstance(record.event, RunStarted):
            return record.utc + manifest.hours * 3600.0
    raise ReplicaFailedError("the primary's journal does not say that the run has started")
