"""Having trials trained, one after the other without a pause, and keeping what comes of them."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from functools import partial

from optuna.storages import BaseStorage

from aiperf_hpc.clock import Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError, StorageError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.checkpoint import save_checkpoint
from aiperf_hpc.replica.identity import Identity, name_of, seed_of
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.replica.search.run_knowledge import RunKnowledge
from aiperf_hpc.replica.training.trainer import Trainer, TrialPlan, TrialResult
from aiperf_hpc.replica.trials.building import TrialBuilder
from aiperf_hpc.replica.trials.candidate_queue import CandidateQueue
from aiperf_hpc.replica.trials.hpo import Hpo
from aiperf_hpc.replica.trials.planner import Planned, Planner
from aiperf_hpc.replica.trials.prediction import predicted_value
from aiperf_hpc.replica.trials.prefetch import Prefetch, Ready
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import CheckpointDropped, TimeSpent, TrialEnded
from aiperf_hpc.run.storage import Retry, Sync, to_stable_storage
from aiperf_hpc.trial import RoundPhase, TimePhase, TrialState

MOST_FAILURES = 5
"""Failed trials in a row after which a replica gives up."""


class ReplicaFailedError(AIPerfError):
    """The replica cannot do its work; the run goes on without it."""


class TrialLoop:
    """Has planned trials trained, and keeps what the search needs of them.

    The calling thread trains and does nothing else that can wait. What comes next is planned and
    built, and what came of the last trial is stored, by a background thread, one thing after the
    other; so what they share belongs to that thread alone.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        paths: RunPaths,
        replica: str,
        incarnation: Incarnation,
        initial: Graph,
        trainer: Trainer,
        journal: JournalWriter,
        knowledge: RunKnowledge,
        stopwatch: Stopwatch,
        stop: StopFlag,
        retry: Retry,
        study: BaseStorage,
        background: Executor,
        builder: TrialBuilder,
        sync: Sync = to_stable_storage,
        clock: Clock,
    ) -> None:
        self._config = config
        self._paths = paths
        self._replica = replica
        self._trainer = trainer
        self._journal = journal
        self._history = knowledge.history
        self._watch = stopwatch
        self._stop = stop
        self._retry = retry
        self._sync = sync
        self._graphs = GraphStore(paths, sync)
        name = name_of(replica, incarnation)
        self._planner = Planner(
            config=config,
            paths=paths,
            who=Identity(replica, incarnation),
            initial=initial,
            stock=CandidateQueue(paths, replica, knowledge.history, journal, clock, retry),
            hpo=Hpo(config.hpo, study, name, seed_of(config.seed, name, "hpo", 0), trainer.fits),
            knowledge=knowledge,
            journal=journal,
            retry=retry,
        )
        self._background = background
        self._builder = builder
        self._prefetch = Prefetch(background, self._plan, builder, stop, stopwatch, clock)
        self._concluding: Future[None] | None = None
        self._failures = 0
        self._kept: dict[str, float] = {}

    def run(self) -> str:
        """Work until the run ends; return why it ended.

        Raises:
            ReplicaFailedError: too many trials failed in a row.
        """
        self._recall()
        while (ready := self._prefetch.take()) is not None:
            self._train(ready)
            if self._stop.reason is not None:
                break
        unused = self._prefetch.close()
        if unused is not None:
            self._planner.drop(unused)
        if self._concluding is not None:
            self._concluding.result()
        assert self._stop.reason is not None  # noqa: S101 -- nothing else ends the loop
        return self._stop.reason

    def _recall(self) -> None:
        """Learn which checkpoints earlier lives of this replica have left."""
        self._history.refresh(self._replica)
        for trial in self._history.trials.values():
            ours = trial.replica == self._replica and trial.has_checkpoint
            if ours and trial.objective_value is not None:
                self._kept[trial.id] = trial.objective_value

    def _plan(self) -> Planned | None:
        """Say what to train next, unless the last trial could not be concluded: that is raised."""
        if self._concluding is not None and self._concluding.done():
            self._concluding.result()
        planned = self._planner.next()
        if planned is not None:
            plan = planned.plan
            self._retry(lambda: self._graphs.save(plan.graph), f"the graph of trial {plan.trial}")
        return planned

    def _train(self, ready: Ready) -> None:
        """Train a trial; once more, in batches of half the size, if it did not fit after all."""
        result = self._trainer.run(ready.prepared, self._prefetch.look)
        if self._may_be_halved(ready, result):
            self._conclude(ready, result, tell=False)
            used = ready.prepared.used
            halved = self._background.submit(self._planner.halved, ready.planned, used).result()
            with self._watch.during(TimePhase.BUILD):
                ready = Ready(halved, self._builder.begin(halved.plan)())
            result = self._trainer.run(ready.prepared, self._prefetch.look)
        self._conclude(ready, result, tell=True)
        self._failures = self._failures + 1 if result.state is TrialState.FAILED else 0
        if self._failures >= MOST_FAILURES:
            raise ReplicaFailedError(
                f"{self._failures} trials in a row failed, the last one because: {result.reason}"
            )

    def _may_be_halved(self, ready: Ready, result: TrialResult) -> bool:
        batch_size = ready.prepared.used.batch_size // 2
        allowed = self._config.engine.on_memory == "shrink"
        return result.out_of_memory and allowed and batch_size >= self._config.replica.ranks

    def _conclude(self, ready: Ready, result: TrialResult, *, tell: bool) -> None:
        """Have what came of a trial stored, its end recorded and told of, in the background.

        What the background thread could not do for the trial before is raised here.
        """
        if self._concluding is not None:
            self._concluding.result()
        plan, seconds = ready.prepared.plan, self._watch.take()

        def conclude() -> None:
            if not result.interrupted:  # Else the next life goes on with it.
                self._end(plan, result)
            self._journal.append(TimeSpent(trial=plan.trial, seconds=seconds))
            if tell:
                self._planner.tell(ready.planned, result)

        self._concluding = self._background.submit(conclude)
        times = self._builder.close(ready.prepared)
        if times is not None:
            self._journal.append(times)

    def _end(self, plan: TrialPlan, result: TrialResult) -> None:
        """Keep a trial's weights and record its end."""
        predicted = None
        if plan.phase is RoundPhase.WARMUP and result.values:
            at = max(self._config.rounds.predict_at_epoch, plan.epoch_limit)
            predicted = predicted_value(result.values, at, self._trainer.perfect)
        kept, trouble = self._keep(plan, result, predicted)
        self._journal.append(
            TrialEnded(
                trial=plan.trial,
                state=result.state,
                reason="; ".join(filter(None, (result.reason, trouble))),
                predicted_accuracy=predicted,
                checkpoint=kept,
            )
        )
        self._drop_worst()

    def _keep(
        self, plan: TrialPlan, result: TrialResult, predicted: float | None
    ) -> tuple[bool, str]:
        """Store trained weights for children to inherit; return whether, and why not."""
        weights = result.weights
        if weights is None:
            return False, ""
        path = self._paths.trained(self._replica, plan.trial)
        try:
            self._retry(lambda: save_checkpoint(path, plan.graph, weights, self._sync), str(path))
        except StorageError as error:
            return False, f"its weights are not kept: {error}"
        self._kept[plan.trial] = max(result.values) if predicted is None else predicted
        return True, ""

    def _drop_worst(self) -> None:
        while len(self._kept) > self._config.search.keep_checkpoints:
            worst = min(self._kept, key=lambda trial: self._kept[trial])
            del self._kept[worst]
            # First the record, then the file: a reader that believes the record is never wrong.
            self._journal.append(CheckpointDropped(trial=worst))
            path = self._paths.trained(self._replica, worst)
            self._retry(partial(path.unlink, missing_ok=True), str(path), "delete")
