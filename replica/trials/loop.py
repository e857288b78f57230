"""The training loop of a replica: trains one built trial while it plans and builds the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
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


FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two polls for a trial: the first and the longest interval."""


@dataclass(eq=False)
class Prefetch:
    """Keeps at most one trial planned or built ahead."""

    context: ReplicaContext
    """The replica's context; its stop signal ends every wait."""
    background: Executor
    """Executor that plans."""
    plan: Callable[[], PlannedTrial | None]
    """Returns the next trial, or None if there is none yet."""
    builder: TrialBuilder
    """Builds the trial."""
    done: Callable[[], bool]
    """Returns True once no trial will follow."""

    def __post_init__(self) -> None:
        self._watch = self.context.stopwatch
        self._clock = self.context.clock
        self._planning: Future[PlannedTrial | None] | None = None
        self._making: tuple[PlannedTrial, Future[BuiltTrial]] | None = None
        self._look_at = 0.0
        self._pause = FIRST_PAUSE

    def look(self) -> None:
        """Advance planning and building of the next trial. Cheap enough for every step."""
        if self._making is not None:
            return
        if self._planning is None and self._clock.monotonic() >= self._look_at:
            self._planning = self.background.submit(self.plan)
        if self._planning is not None and self._planning.done():
            self._make(self._planning)

    def take(self) -> BuiltTrial | None:
        """Wait for the next trial and return it, or None if the run ends or no trial follows."""
        self._look_at = 0.0
        self._pause = FIRST_PAUSE
        with self._watch.during(TimePhase.SEARCH_WAIT):
            while self._making is None:
                if self.context.stop.reason is not None or self.done():
                    return None
                self.look()
                if self._making is None:
                    self._wait()
        with self._watch.during(TimePhase.BUILD):
            _, begun = self._making
            self._making = None
            return self.builder.finish(begun)

    def close(self) -> PlannedTrial | None:
        """Free the trial that was built ahead; return the trial that was planned."""
        if self._making is not None:
            planned, begun = self._making
            self.builder.close(self.builder.finish(begun))
            return planned
        return None if self._planning is None else self._planning.result()

    def _wait(self) -> None:
        """Wait for planning to finish, or until the next poll is due."""
        if self._planning is not None:
            self._make(self._planning)
        else:
            self._clock.sleep(max(0.0, self._look_at - self._clock.monotonic()))

    def _make(self, planning: Future[PlannedTrial | None]) -> None:
        """Build the planned trial; if there was none, poll again later."""
        planned = planning.result()
        self._planning = None
        if planned is None:
            self._look_at = self._clock.monotonic() + self._pause
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)
        else:
            self._making = planned, self.builder.begin(planned)


LEAST_POINTS = 4
_SHIFTS = np.concatenate([[0.0], np.geomspace(0.1, 3.0, 31)])[:, None]


def predicted_value(values: Sequence[float], epoch: int, perfect: float = 1.0) -> float:
    """Return the value predicted for ``epoch`` by a curve a log2(x + b) + c with damped gains.

    The curve is fitted to the observed epochs by least squares weighted by the epoch's number.
    ``b`` is searched on a grid from 0 to 3; for each ``b``, ``a`` and ``c`` have a closed form.
    A logarithm grows without bound, but quality does not. Of the gain ``a`` per doubling of x + b,
    the first doubling after the last observed epoch therefore contributes half, the next one a
    quarter and so on, in total at most ``a``.

    The result is at least the best observed value and at most ``perfect``. It is the best observed
    value if there are fewer than four points, the curve does not rise, or the epoch was observed.
    docs/decisions/search.md reports the error on real curves.

    Args:
        values: the objective values, such as accuracies, observed after epochs 1, 2, ...
        epoch: number of the epoch to predict, from 1.
        perfect: the highest possible objective value.

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    observed = np.asarray(values, np.float64)
    if observed.size == 0 or not np.isfinite(observed).all():
        raise ValueError("a prediction needs finite values")
    best = float(observed.max())
    last = observed.size
    if last < LEAST_POINTS:
        return best
    weights = np.arange(1.0, last + 1)
    weights /= weights.sum()
    x = np.log2(np.arange(1.0, last + 1) + _SHIFTS)  # (shifts, epochs)
    off_x, off_y = x - (x @ weights)[:, None], observed - observed @ weights
    gain = (off_x * off_y) @ weights / (np.square(off_x) @ weights)
    i = int((np.square(gain[:, None] * off_x - off_y) @ weights).argmin())
    if gain[i] <= 0.0:
        return best
    reached = float(observed @ weights + gain[i] * off_x[i, -1])
    shift = float(_SHIFTS[i, 0])
    # The halves, quarters, ... of log2((epoch + b) / (last + b)) doublings.
    to_come = gain[i] * (1.0 - (last + shift) / (epoch + shift))
    return float(min(perfect, max(best, reached + to_come)))
