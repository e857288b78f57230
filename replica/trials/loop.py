"""The training loop of a replica: trains one built trial while it plans and builds the next one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from optuna.storages import BaseStorage

from aiperf_hpc.errors import AIPerfError, JournalError, StorageError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.search.run_knowledge import RunKnowledge
from aiperf_hpc.morphism.weights.weight_file import save_checkpoint, save_predictions
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.training.checkpoint import BestEpochStore
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import (
    BuiltTrial,
    PlannedTrial,
    TrialResult,
    configured_hyperparameters,
)
from aiperf_hpc.replica.trials.building import TrialBuilder
from aiperf_hpc.replica.trials.hpo import Hpo
from aiperf_hpc.replica.trials.planner import Planner
from aiperf_hpc.replica.trials.prediction import predicted_value
from aiperf_hpc.replica.trials.prefetch import Prefetch
from aiperf_hpc.run import records
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.paths import seed_of
from aiperf_hpc.trial import RoundPhase, TimePhase, TrialState

MOST_FAILURES = 5
"""The number of failed trials in a row after which a replica gives up."""


class ReplicaFailedError(AIPerfError):
    """The replica cannot continue; the run continues without it."""


@dataclass(eq=False)
class TrialLoop:
    """Trains planned trials and stores the results that the search needs.

    The calling thread only trains. One background thread plans and builds the next trial and
    stores the results of the last one, so the state shared by these tasks needs no lock.
    """

    context: ReplicaContext
    """The replica's context."""
    initial: Graph
    """The initial graph of the search."""
    trainer: Trainer
    """Trains in the calling thread."""
    knowledge: RunKnowledge
    """The replica's view of the run."""
    study: BaseStorage
    """Storage of the Optuna study."""
    background: Executor
    """Executor with one thread, for everything but training."""
    builder: TrialBuilder
    """Builds the networks of trials."""

    def __post_init__(self) -> None:
        """Create the planner and the prefetch."""
        context, knowledge, name = self.context, self.knowledge, self.context.who.name
        self._history = knowledge.history
        self._graphs = GraphStore(context.paths, context.sync)
        hpo = Hpo(
            context.config.hpo,
            configured_hyperparameters(context.config.training),
            self.study,
            name,
            seed_of(context.config.seed, name, "hpo", 0),
            self.trainer.memory.fits,
        )
        self._planner = Planner(context, self.initial, hpo, knowledge)
        self._prefetch = Prefetch(
            context, self.background, self._plan, self.builder, lambda: self._planner.done
        )
        self._concluding: Future[None] | None = None
        self._failures = 0
        self._kept: dict[str, float] = {}
        """Objective values of this replica's trials with stored weights."""
        self._best_epochs = BestEpochStore(context)

    def run(self) -> str:
        """Train until the run ends or all requested trials are done; return the reason.

        Raises:
            ReplicaFailedError: too many trials failed in a row.
        """
        self._recall()
        while (built := self._prefetch.take()) is not None:
            self._train(built)
            if self.context.stop.reason is not None:
                break
        unused = self._prefetch.close()
        if unused is not None:
            self._planner.drop(unused)
        if self._concluding is not None:
            self._concluding.result()
        return self.context.stop.reason or records.TRAININGS_DONE

    def _recall(self) -> None:
        """Find the checkpoints of this replica's previous attempts."""
        self._history.refresh(self.context.replica)
        for trial in self._history.trials.values():
            if trial.replica != self.context.replica:
                continue
            self._best_epochs.recall(trial)
            if trial.has_checkpoint and trial.objective_value is not None:
                self._kept[trial.id] = trial.objective_value

    def _plan(self) -> PlannedTrial | None:
        """Return the next trial, or raise what went wrong while the last one was stored."""
        if self._concluding is not None and self._concluding.done():
            self._concluding.result()
        trial = self._planner.next()
        if trial is not None:
            graph = trial.candidate.graph
            self.context.retry(lambda: self._graphs.save(graph), f"the graph of trial {trial.name}")
        return trial

    def _train(self, built: BuiltTrial) -> None:
        """Train a trial, and retry with half the batch size if it ran out of memory."""
        result = self.trainer.run(built, self._prefetch.look)
        if self._may_be_halved(result):
            self._conclude(built, result, tell=False)
            halving = self.background.submit(self._planner.halved, built.trial, result.used)
            halved = halving.result()
            with self.context.stopwatch.during(TimePhase.BUILD):
                built = self.builder.finish(self.builder.begin(halved))
            result = self.trainer.run(built, self._prefetch.look)
        self._conclude(built, result, tell=True)
        self._failures = self._failures + 1 if result.state is TrialState.FAILED else 0
        if self._failures >= MOST_FAILURES:
            raise ReplicaFailedError(
                f"{self._failures} trials in a row failed, the last one because: {result.reason}"
            )

    def _may_be_halved(self, result: TrialResult) -> bool:
        batch_size = result.used.batch_size // 2
        allowed = self.context.config.engine.on_out_of_memory == "reduce_batch"
        return result.out_of_memory and allowed and batch_size >= self.context.config.replica.ranks

    def _conclude(self, built: BuiltTrial, result: TrialResult, *, tell: bool) -> None:
        """Store and record a trial's result in the background, and report it to TPE if ``tell``.

        Errors of the previous trial's storage are raised here.
        """
        if self._concluding is not None:
            self._concluding.result()
        trial, seconds = built.trial, self.context.stopwatch.take()

        def conclude() -> None:
            if not result.interrupted:  # An interrupted trial is resumed by the next attempt.
                self._end(trial, result)
            self.context.journal.append(records.TimeSpent(trial=trial.name, seconds=seconds))
            if tell:
                self._planner.tell(trial, result)

        self._concluding = self.background.submit(conclude)
        times = self.builder.close(built)
        if times is not None:
            self.context.journal.append(times)

    def _end(self, trial: PlannedTrial, result: TrialResult) -> None:
        """Store a trial's weights and record its end."""
        predicted = None
        if trial.phase is RoundPhase.WARMUP and result.values:
            at = max(self.context.config.rounds.predict_at_epoch, trial.epoch_limit)
            predicted = predicted_value(result.values, at, self.trainer.perfect)
        unkept = (
            _reason_not_stored("its weights are", lambda: self._keep(trial, result, predicted)),
            _reason_not_stored("its predictions are", lambda: self._keep_predictions(result)),
            _reason_not_stored(
                "its best epoch is", lambda: self._best_epochs.keep(trial.name, result.best_epoch)
            ),
        )
        self.context.journal.append(
            records.TrialEnded(
                trial=trial.name,
                state=result.state,
                reason="; ".join(filter(None, (result.reason, *unkept))),
                predicted_accuracy=predicted,
                checkpoint=trial.name in self._kept,
            )
        )
        self._drop_worst()

    def _keep(self, trial: PlannedTrial, result: TrialResult, predicted: float | None) -> None:
        """Store trained weights, if there are any, for children to inherit."""
        graph, weights = trial.candidate.graph, result.weights
        if weights is None:
            return
        path = self.context.paths.trained(self.context.replica, trial.name)
        self.context.retry(
            lambda: save_checkpoint(path, graph, weights, self.context.sync), str(path)
        )
        self._kept[trial.name] = max(result.values) if predicted is None else predicted

    def _keep_predictions(self, result: TrialResult) -> None:
        """Store a trial's predictions, if it has any."""
        found = result.predictions
        if found is None:
            return
        path = self.context.paths.predictions(self.context.replica, found.trial)
        digest = self.context.retry(
            lambda: save_predictions(path, found, self.context.sync), str(path)
        )
        self.context.journal.append(
            records.PredictionsSaved(
                trial=found.trial, epoch=found.epoch, samples=len(found.classes), sha256=digest
            )
        )

    def _drop_worst(self) -> None:
        while len(self._kept) > self.context.config.search.keep_checkpoints:
            worst = min(self._kept, key=lambda trial: self._kept[trial])
            del self._kept[worst]
            # Record first, delete second: a recorded checkpoint always exists.
            self.context.journal.append(records.CheckpointDeleted(trial=worst))
            self.context.delete(self.context.paths.trained(self.context.replica, worst))


def _reason_not_stored(what: str, store: Callable[[], None]) -> str:
    """Store a part of a trial's result; return the reason if that fails."""
    try:
        store()
    except JournalError:
        raise  # A run that cannot be recorded must stop.
    except StorageError as error:
        return f"{what} not stored: {error}"
    return ""
