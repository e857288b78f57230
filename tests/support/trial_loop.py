"""A replica and its search worker in one process, on a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import optuna
import pytest
from tests.support.fakes import FakeDataset, FakeEngine, Script
from tests.support.immediate import Immediate
from tests.support.run_writer import MACHINE

from aiperf_hpc.clock import SYSTEM, SystemClock
from aiperf_hpc.config import RunConfig, SearchConfig, validate
from aiperf_hpc.morphism.search import load_searcher
from aiperf_hpc.morphism.search.run_knowledge import RunKnowledge
from aiperf_hpc.ops_counter.memory import MemoryLimit, training_bytes
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.search.worker import SearchWorker
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import BuiltTrial, PlannedTrial, TrialResult
from aiperf_hpc.replica.trials.building import OneRankBuilder
from aiperf_hpc.replica.trials.hpo import StudyLog
from aiperf_hpc.replica.trials.loop import TrialLoop
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.paths import FIRST, Identity, Incarnation, RunPaths
from aiperf_hpc.run.search_digest import Digest
from aiperf_hpc.run.storage import no_retry
from aiperf_hpc.workloads.registry import initial_graph

T = TypeVar("T")

CONFIG = {
    "dataset": {"name": "synthetic"},
    "model": {"stem": "cifar", "base_width": 1},
    "training": {
        "precision": "fp32",
        "batch_size": 16,
        "max_epochs": 2,
        "checkpoint_interval_seconds": 0,
    },
    "rounds": {"warmup_epochs": [1, 5, 2], "predict_at_epoch": 90},
    "hpo": {
        "trials_per_round": 3,
        "startup_trials": 2,
        "space": {"batch_size": {"choices": [8, 16, 32]}},
    },
    "search": {"queue_depth": 2, "keep_checkpoints": 3},
}


@dataclass(frozen=True, slots=True)
class Turns(SystemClock):
    """A clock on which sleeping gives the search worker a turn."""

    worker: SearchWorker

    def sleep(self, seconds: float) -> None:
        self.worker.step()


class _InTurn(OneRankBuilder):
    """Builds a trial at its turn, so that every built trial is trained."""

    def begin(self, trial: PlannedTrial) -> Future[BuiltTrial]:
        begun: Future[BuiltTrial] = Future()
        begun.set_result(BuiltTrial(trial, trial.hyperparameters))
        return begun

    def finish(self, begun: Future[BuiltTrial]) -> BuiltTrial:
        return super().finish(super().begin(begun.result().trial))


class Bench:
    """A replica and its search worker in one process, taking turns."""

    def __init__(
        self,
        folder: Path,
        *scripts: Script,
        attempt: Incarnation = FIRST,
        background: Executor | None = None,
        **changed: object,
    ) -> None:
        self.config: RunConfig = validate(CONFIG | changed, "test")
        self.who = Identity("r0", attempt)
        self.paths = RunPaths(folder)
        self.engine = FakeEngine(*scripts)
        self.dataset = FakeDataset()
        self.journal = JournalWriter(self.paths.replica_journal("r0", attempt))
        started = records.ReplicaStarted(replica="r0", pid=1, engine="fake", machine=MACHINE)
        self.journal.append_all([started, records.DatasetLoaded(dataset=self.dataset.info)])
        self.history = RunHistory(self.paths)
        self.stop = StopFlag(float("inf"), self.paths.stop_request)
        self.initial = initial_graph(self.config, self.dataset.info)
        searching = ReplicaContext(
            config=self.config,
            paths=self.paths,
            who=self.who,
            journal=JournalWriter(self.paths.search_journal("r0", 0, attempt)),
            stop=self.stop,
        )
        own = RunKnowledge("r0", RunHistory(self.paths, replica="r0"), Digest(self.paths))
        # A replica with a fixed network starts no worker; here one runs anyway.
        search = self.config.search if self.config.search.searches else SearchConfig()
        self.worker = SearchWorker(searching, 0, load_searcher(search), own)
        training = replace(searching, journal=self.journal, clock=Turns(self.worker))
        memory = MemoryLimit(self.config, 2**40)
        of_trainer = replace(training, clock=SYSTEM)
        trainer = Trainer(
            of_trainer, self.dataset, self.engine.objective.quality, memory, Immediate()
        )
        kind = OneRankBuilder if background else _InTurn
        log = StudyLog(self.paths.study("r0", attempt), no_retry, lambda _: None)
        self.rounds = TrialLoop(
            training,
            initial=self.initial,
            trainer=trainer,
            knowledge=RunKnowledge("r0", self.history, Digest(self.paths)),
            study=optuna.storages.JournalStorage(log),
            background=background or Immediate(),
            builder=kind(of_trainer, self.engine, self.dataset, trainer, background or Immediate()),
        )

    def run(self, trials: int) -> str:
        """Run until ``trials`` have ended; the search worker has a turn after each."""
        train = Trainer.run
        done = 0

        def counted(
            trainer: Trainer, built: BuiltTrial, meanwhile: Callable[[], None]
        ) -> TrialResult:
            nonlocal done
            result = train(trainer, built, meanwhile)
            done += 1
            if done == trials:
                self.stop.ask("enough trials")
            self.worker.step()
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "run", counted)
            return self.rounds.run()

    def leave_memory_for(self, batch_size: int, *, optimiser_knows: bool = True) -> None:
        """Limit the memory to that of the initial graph with this batch size.

        An optimizer that does not know it suggests larger batch sizes only.
        """
        limit = training_bytes(self.initial, batch_size, "fp32") + 4096
        memory = self.rounds.trainer.memory = MemoryLimit(self.config, limit)
        self.rounds._planner.hpo.fits = (
            memory.fits if optimiser_knows else lambda graph, size: size > batch_size
        )

    def allow_candidates(self, number: int) -> None:
        """Set the depth of the candidate queue."""
        config = validate(CONFIG | {"search": {"queue_depth": number}}, "test")
        self.worker.context = replace(self.worker.context, config=config)

    def search(self, steps: int) -> None:
        for _ in range(steps):
            self.worker.step()

    def study(self) -> optuna.Study:
        """Return the study of this attempt, read from its file."""
        path = self.paths.study("r0", self.who.incarnation)
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        storage = optuna.storages.JournalStorage(backend)
        return optuna.load_study(study_name=self.who.name, storage=storage)

    def trial(self, name: str) -> Trial:
        """Return a trial, read from the journals."""
        self.history.refresh()
        return self.history.trials[name]

    def kept_checkpoints(self) -> set[str]:
        """Return the trials with stored weights, according to the journals."""
        self.history.refresh()
        return {trial.id for trial in self.history.trials.values() if trial.has_checkpoint}

    def kept(self) -> list[str]:
        """Return the files of best epochs."""
        folder = self.paths.replica("r0") / "kept"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def events(self, kind: type[T]) -> list[T]:
        def lines() -> Iterator[object]:
            for path in self.paths.journals():
                yield from (record.event for record in JournalReader(path).read())

        return [event for event in lines() if isinstance(event, kind)]


GREEDY = {"method": "greedy"}
"""A search with small steps, for tight memory limits."""
LATER = Incarnation(0, 1)
"""The second attempt of a replica."""
