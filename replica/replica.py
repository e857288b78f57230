"""One attempt of a replica, from its first record to its last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from optuna.storages import BaseStorage

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError, DeviceLostError
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.replica.context import ReplicaContext, Stopwatch
from aiperf_hpc.replica.data.base import Dataset
from aiperf_hpc.replica.data.baseline import Tally, has_baseline
from aiperf_hpc.replica.engines.base import Engine, RankEngine
from aiperf_hpc.replica.host import Host, Workers
from aiperf_hpc.replica.node_check import checked_engine
from aiperf_hpc.replica.parallel.collectives import RankLostError
from aiperf_hpc.replica.parallel.handshake import Ranks, facts_of
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine, LeadingTally
from aiperf_hpc.replica.runtime.stopping import RunClock, StopFlag
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.trials.building import OneRankBuilder, SeveralRanksBuilder, TrialBuilder
from aiperf_hpc.replica.trials.loop import ReplicaFailedError, TrialLoop
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.liveness import Timekeeping
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import Identity, RunPaths
from aiperf_hpc.streams import warn
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import DevicePeak, Machine, TimePhase
from aiperf_hpc.workloads.registry import initial_graph

Report = TypeVar("Report", RankDescription, DevicePeak, records.ModulesImported)

STORAGE_GRACE_SECONDS = 180.0
"""Seconds after its end in which a replica retries to write its last records. A restarted NFS
server refuses to open files during its grace period, usually 90 s."""


class Replica:
    """An attempt of a replica."""

    def __init__(
        self, paths: RunPaths, manifest: RunManifest, who: Identity, host: Host, ranks: Ranks
    ) -> None:
        """Install the stop signal and find the end of the run.

        Args:
            paths: paths of the run.
            manifest: manifest of the run.
            who: the replica and its attempt.
            host: the replica's host.
            ranks: the replica's ranks, of which this process is the first.

        Raises:
            ReplicaFailedError: the run has not started yet.
        """
        self._paths = paths
        self._manifest = manifest
        self._who = who
        self._host = host
        self._ranks = ranks
        self._primary_digest: JournalDigest | None = None
        self._next_digest = 0.0
        self._watch = Stopwatch(host.clock)
        self._alive_seconds = host.seconds_alive()
        self._watch.add(TimePhase.START, self._alive_seconds)
        began = host.clock.utc() - self._alive_seconds
        self._stop = StopFlag(
            math.inf, paths.stop_request, look_every=host.look_seconds, clock=host.clock
        )
        host.connect(self._stop)
        self._patience = host.patience(lambda: self._stop.overdue(STORAGE_GRACE_SECONDS))
        own = paths.incarnation(who.replica, who.incarnation)
        self._timekeeping = Timekeeping(
            lambda: self._patience(lambda: host.clocks(own), f"a file in {own}"), host.clock
        )
        self._clock = RunClock(paths, manifest.hours, began, self._patience)
        if self._clock.starts is None:
            raise ReplicaFailedError("the primary's journal has no record of the run's start")
        self._stop.deadline = self._clock.deadline

    def run(self) -> int:
        """Train until the run ends; return the exit status."""
        who, host = self._who, self._host
        own = self._paths.replica_journal(who.replica, who.incarnation)
        with JournalWriter(own, clock=host.clock, retry=self._patience, sync=host.sync) as journal:
            context = ReplicaContext(
                config=self._manifest.config,
                paths=self._paths,
                who=who,
                journal=journal,
                stop=self._stop,
                clock=host.clock,
                retry=self._patience,
                sync=host.sync,
                stopwatch=self._watch,
            )
            reason, status = "", 0
            try:
                reason = self._work(context)
            except AIPerfError as error:
                reason, status = f"failed: {error}", error.exit_status
                warn(f"{who.replica}: {error}")
            except DeviceLostError as error:
                reason = f"failed: {error}"
                raise  # Ends the other ranks too, which wait for this one.
            except Exception as error:
                # The traceback goes to the replica's log.
                reason = f"failed: unexpected {type(error).__name__}: {error}"
                raise
            finally:
                if reason:
                    journal.append(records.TimeSpent(trial=None, seconds=self._watch.take()))
                    clocks = self._timekeeping.at_end()
                    journal.append_all(
                        [*self._waits(), *clocks, records.ReplicaEnded(reason=reason)]
                    )
        return status

    def _work(self, context: ReplicaContext) -> str:
        """Train until the run ends; return the reason."""
        config, journal, host, ranks = context.config, context.journal, self._host, self._ranks
        host.check(self._manifest)
        local_rank = ranks.collective.local_rank
        engine = checked_engine(self._manifest, len(host.cores), host.clock, local_rank)
        machine = host.machine(engine)
        self._record_start(journal, engine.name, machine)
        beat = config.journal.heartbeat_interval_seconds
        # Workers and heartbeats start before the dataset, which may take minutes to load.
        with (
            host.search(self._paths, self._who, config.search.processes) as workers,
            host.every(beat, lambda: self._beat(journal, workers), self._stop.ask),
            host.telemetry(self._paths, config.telemetry.interval_seconds, journal.append),
            host.background() as background,
            host.background() as checkpoints,
        ):
            self._measure_peak(journal, local_rank)
            # Concurrently with loading the dataset: vendor tools may need seconds.
            described = background.submit(self._describe, journal)
            dataset, copy = host.dataset(self._manifest)
            facts = facts_of(machine.versions, dataset.info, config.seed)
            ranks.handshake(facts, str(self._who.incarnation), probe=engine.probe())
            imported = self._record_modules(journal)
            self._record_other_ranks(journal)
            described.result()
            available = partial(host.available_bytes, ranks.collective.local_size)
            memory = memory_limit(config, engine.memory_bytes, available)
            journal.append(
                records.DatasetLoaded(
                    dataset=dataset.info,
                    memory_limit_bytes=memory.bytes,
                    memory_holds_copies=memory.holds_copies,
                    staged_seconds=copy.seconds,
                    staged_bytes=copy.bytes,
                )
            )
            trainer, builder = self._trainer_and_builder(
                context, engine, dataset, memory, background, checkpoints
            )
            loop = TrialLoop(
                context,
                initial=initial_graph(config, dataset.info),
                trainer=trainer,
                knowledge=host.knowledge(self._paths, self._who.replica, self._patience),
                study=self._study(context),
                background=background,
                builder=builder,
            )
            self._watch.enter(TimePhase.OTHER)
            self._wait_for_the_clock(journal)
            try:
                reason = loop.run()
            except RankLostError as error:
                ranks.lost(error)
            # Frameworks import further modules during training.
            self._record_modules(journal, imported)
            return reason

    def _record_start(self, journal: JournalWriter, engine: str, machine: Machine) -> None:
        host, ranks = self._host, self._ranks
        own = self._paths.incarnation(self._who.replica, self._who.incarnation)
        started = records.ReplicaStarted(
            replica=self._who.replica,
            pid=host.pid,
            engine=engine,
            machine=machine,
            job=host.job,
            hosts=ranks.hosts if ranks.several else (),
            clock=self._patience(lambda: host.file_clock(own), f"a file in {own}"),
            manifest_sha256=self._patience(self._paths.manifest_digest, "run.yaml", "read"),
            alive_seconds=self._alive_seconds,
        )
        seen = [] if self._clock.starts == "now" else self._clock_seen()
        journal.append_all([started, *self._timekeeping.at_start(), *seen])

    def _clock_seen(self) -> list[records.ClockSeen]:
        """Return the record of the start of the run's clock, once it is known."""
        start = self._clock.start_utc
        return [] if start is None else [records.ClockSeen(start_utc=start)]

    def _look_at_the_clock(self) -> list[records.ClockSeen]:
        """Find the end of the run if it is unknown; return the records of it."""
        if not self._clock.look():
            return []
        self._stop.deadline = self._clock.deadline
        return self._clock_seen()

    def _wait_for_the_clock(self, journal: JournalWriter) -> None:
        """Wait until all replicas are ready or a stop is requested, if the run waits for all."""
        if self._clock.starts != "all" or self._clock.start_utc is not None:
            return
        journal.append(records.ReplicaReady())
        while not (seen := self._look_at_the_clock()) and self._stop.reason is None:
            self._host.clock.sleep(self._host.look_seconds)
        # Time before the start of the clock is not charged; the delay until it is noticed is.
        spent = self._watch.take()
        start = self._clock.start_utc
        late = 0.0 if start is None else max(0.0, self._host.clock.utc() - start)
        waited = spent.get(TimePhase.OTHER, 0.0)
        late = min(late, waited)
        spent[TimePhase.OTHER] = waited - late
        self._watch.add(TimePhase.OTHER, late)
        journal.append_all([records.TimeSpent(trial=None, seconds=spent), *seen])

    def _describe(self, journal: JournalWriter) -> None:
        """Record the description of this process and its node."""
        description = self._host.describe(self._manifest.folders(self._paths))
        if description is not None:
            journal.append(records.SystemDescribed(rank=0, description=description))

    def _record_modules(
        self, journal: JournalWriter, before: records.ModulesImported | None = None
    ) -> records.ModulesImported | None:
        """Record the imported modules of this process, if they changed; return the record."""
        imported = self._host.imported(0)
        if imported is not None and imported != before:
            journal.append(imported)
        return imported

    def _record_other_ranks(self, journal: JournalWriter) -> None:
        """Record the modules and descriptions of the other ranks, and their devices' peaks."""
        if self._ranks.several:
            journal.append_all([modules for _, modules in self._exchanged(records.ModulesImported)])
            described = self._exchanged(RankDescription)
            journal.append_all(
                [records.SystemDescribed(rank=r, description=d) for r, d in described]
            )
            if self._manifest.config.peak_seconds:
                peaks = self._exchanged(DevicePeak)
                journal.append_all(
                    [records.PeakMeasured(rank=rank, peak=peak) for rank, peak in peaks]
                )

    def _exchanged(self, kind: type[Report]) -> list[tuple[int, Report]]:
        """Return the reports of the other ranks, by rank."""
        texts = enumerate(self._ranks.exchange(""))
        return [(rank, kind.model_validate_json(text)) for rank, text in texts if text]

    def _measure_peak(self, journal: JournalWriter, device: int) -> None:
        """Measure and record the peak of this rank's device while it is idle."""
        peak = self._host.peak(self._manifest.config, device)
        if peak is not None:
            journal.append(records.PeakMeasured(rank=0, peak=peak))

    def _trainer_and_builder(
        self,
        context: ReplicaContext,
        engine: RankEngine,
        dataset: Dataset,
        memory: MemoryLimit,
        background: Executor,
        checkpoints: Executor,
    ) -> tuple[Trainer, TrialBuilder]:
        """Return the engine, for this rank or leading all ranks, and the builder for it."""
        objective, measured = engine.objective, _measures_baseline(context.config, engine)
        if not self._ranks.several:
            tally = Tally(objective, dataset.info) if measured else None
            trainer = Trainer(context, dataset, objective.quality, memory, checkpoints, tally)
            return trainer, OneRankBuilder(context, engine, dataset, trainer, background)
        own = self._paths.incarnation(self._who.replica, self._who.incarnation)
        seconds = context.config.replica.rank_timeout_seconds
        together = self._ranks.watched(own, seconds, context.journal)
        leading = LeadingEngine(
            engine,
            together,
            lambda problem: context.journal.append(records.CompilerFailed(problem=problem)),
        )
        together_data = LeadingDataset(dataset, together)
        baseline = LeadingTally(objective, dataset.info, together) if measured else None
        trainer = Trainer(context, together_data, objective.quality, memory, checkpoints, baseline)
        return trainer, SeveralRanksBuilder(context, leading, together_data, trainer)

    def _study(self, context: ReplicaContext) -> BaseStorage:
        """Return the storage of this attempt's study; its problems are recorded."""
        path = self._paths.study(self._who.replica, self._who.incarnation)
        remedy = "it was rewritten with all trials"
        return self._host.study(path, self._patience, partial(context.report, path, remedy=remedy))

    def _beat(self, journal: JournalWriter, workers: Workers) -> None:
        """Record a heartbeat and restart search workers that have exited."""
        workers.revive()
        cpu_percent, memory_bytes = self._host.usage()
        waiting = self._patience.waiting
        beat = records.Heartbeat(
            phase=self._watch.phase,
            cpu_percent=cpu_percent,
            memory_bytes=memory_bytes,
            storage_wait_seconds=self._patience.waited,
            storage_waiting=waiting.reason if waiting is not None else "",
        )
        events: list[records.AnyEvent] = [
            *self._waits(),
            *self._timekeeping.if_due(),
            *self._seen_digests(),
        ]
        if self._clock.starts == "first":
            events += self._look_at_the_clock()
        journal.append_all([*events, beat])

    def _seen_digests(self) -> Iterator[records.PrimaryDigestSeen]:
        """Yield a new digest of the primary's journal, if it is time to read it."""
        now = self._host.clock.monotonic()
        if now >= self._next_digest:
            self._next_digest = now + self._manifest.config.journal.digest_interval_seconds
            digest = self._host.primary_digest(self._paths)
            if digest is not None and digest != self._primary_digest:
                self._primary_digest = digest
                yield records.PrimaryDigestSeen(digest=digest)

    def _waits(self) -> list[records.StorageWaited]:
        """Return the records of waits for the storage."""
        return [records.StorageWaited(**wait._asdict()) for wait in self._patience.take()]


def memory_limit(
    config: RunConfig, device_bytes: int | None, available_bytes: Callable[[], int]
) -> MemoryLimit:
    """Return the memory of a rank that a trial may use: the configured size, or all of it.

    Args:
        config: configuration of the run.
        device_bytes: memory of the accelerator; None if trials use the host's.
        available_bytes: returns a rank's part of the host's memory, including decoded images.
    """
    # The host's memory also holds copies of best epochs.
    copies = device_bytes is None and config.keeps_best_epochs
    if config.engine.memory_limit_gib is not None:
        limit = int(config.engine.memory_limit_gib * 2**30)
    elif device_bytes is not None:
        limit = device_bytes
    else:
        limit = available_bytes() - int(config.dataset.decoded_cache_gib * 2**30)
    return MemoryLimit(config, limit, copies)


def _measures_baseline(config: RunConfig, engine: Engine) -> bool:
    """Return whether to record the quality of a trivial predictor as a baseline.

    It is not recorded for searches and simulated runs.
    """
    made_up = config.engine.name == "simulated"
    return not config.search.searches and not made_up and has_baseline(engine.objective)
