"""The rounds of a replica: the initial graph first, then one grown candidate a round.

Warm-up rounds train their candidate once, with the accuracy extrapolated; the rounds after
them train it several times, with hyperparameters chosen by TPE.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

import numpy as np
from optuna.storages import BaseStorage

from aiperf_hpc.clock import Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError, StorageError
from aiperf_hpc.graph import Graph
from aiperf_hpc.graph_store import GraphStore
from aiperf_hpc.history import Trial
from aiperf_hpc.journal import JournalWriter
from aiperf_hpc.morphism.morphs import (
    KernelSize,
    from_data,
    grow_with_weights,
    resize_inserted,
)
from aiperf_hpc.morphism.weights import initial_weights, save_checkpoint
from aiperf_hpc.paths import Incarnation, RunPaths
from aiperf_hpc.records import CheckpointDropped, TimeSpent, TrialEnded
from aiperf_hpc.replica.hpo import Hpo, Suggestion
from aiperf_hpc.replica.knowledge import Knowledge
from aiperf_hpc.replica.names import name_of, seed_of
from aiperf_hpc.replica.prediction import predicted_accuracy
from aiperf_hpc.replica.resume import Course, load_course
from aiperf_hpc.replica.stock import Candidate, Stock
from aiperf_hpc.replica.stopping import StopFlag
from aiperf_hpc.replica.stopwatch import Stopwatch
from aiperf_hpc.replica.trainer import Trainer, TrialPlan, TrialResult
from aiperf_hpc.storage import Persist, Sync, to_stable_storage
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TimePhase, TrialState

MOST_FAILURES = 5
"""Failed trials in a row after which a replica gives up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class ReplicaFailedError(AIPerfError):
    """The replica cannot do its work; the run goes on without it."""


class Rounds:
    """Plans trials, has them trained, and keeps what the search needs of them."""

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
        knowledge: Knowledge,
        stopwatch: Stopwatch,
        stop: StopFlag,
        persist: Persist,
        study: BaseStorage,
        sync: Sync = to_stable_storage,
        clock: Clock,
    ) -> None:
        self._config, self._paths, self._replica, self._initial = config, paths, replica, initial
        self._incarnation = incarnation
        self._name = name_of(replica, incarnation)
        self._trainer, self._journal, self._history = trainer, journal, knowledge.history
        self._knowledge, self._sync = knowledge, sync
        self._watch, self._stop, self._persist = stopwatch, stop, persist
        self._clock = clock
        self._graphs = GraphStore(paths, sync)
        self._stock = Stock(paths, replica, knowledge.history, journal, clock, persist)
        self._hpo = Hpo(config.hpo, study, self._name, self._seed("hpo", 0), trainer.fits)
        self._numbers = count(1)
        self._failures = 0
        self._kept: dict[str, float] = {}

    def run(self) -> str:
        """Work until the run ends; return why it ended.

        Raises:
            ReplicaFailedError: too many trials failed in a row.
        """
        for number in count(self._take_over()):
            candidate = self._initial_candidate() if number == 1 else self._wait_for_candidate()
            if candidate is not None:
                self._round(number, candidate)
                self._stock.discard(candidate)
            if self._stop.reason is not None:
                return self._stop.reason
        raise AssertionError("unreachable")

    def _take_over(self) -> int:
        """Go on where an earlier life of this replica ended; return the next round's number."""
        self._history.refresh(self._replica)
        trials = [t for t in self._history.trials.values() if t.replica == self._replica]
        if not trials:
            return 1
        for trial in trials:
            if trial.has_checkpoint and trial.merit is not None:
                self._kept[trial.id] = trial.merit
            if trial.started.phase is RoundPhase.HPO:
                self._learn(trial)
        last = max(trials, key=lambda t: t.started_utc)
        if last.ended is None and not self._go_on_with(last):
            return last.started.round
        return last.started.round + 1

    def _learn(self, trial: Trial) -> None:
        """Tell the study of a trial of an earlier life, unless it was cut."""
        used, round_ = trial.started.hyperparameters, trial.started.round
        if trial.ended is None:
            return
        if trial.state is TrialState.FAILED:
            self._hpo.learn(used, round_, None)
        elif trial.ended.checkpoint and trial.best:
            self._hpo.learn(used, round_, trial.best.accuracy)

    def _go_on_with(self, interrupted: Trial) -> bool:
        """Train an interrupted trial to its end, if it has a checkpoint."""
        path = self._paths.under_way(self._replica, interrupted.incarnation)
        if not self._persist(path.exists, str(path), "read"):
            return False  # It was younger than a checkpoint.
        saved = load_course(path, self._persist)
        started = interrupted.started
        if saved.course.trial != interrupted.id:
            return False  # Of a trial before it.
        name, _ = self._next_trial()
        plan = TrialPlan(
            trial=name,
            round=started.round,
            phase=started.phase,
            graph=saved.graph,
            weights=saved.weights,
            parent=started.parent,
            proposal=started.proposal,
            morphisms=tuple(from_data(data) for data in started.morphisms),
            batch_size=started.hyperparameters.batch_size,
            kernel_size=started.hyperparameters.kernel_size,
            learning_rate=started.hyperparameters.learning_rate,
            momentum=started.hyperparameters.momentum,
            weight_decay=started.hyperparameters.weight_decay,
            epoch_limit=started.epoch_limit,
            seed=started.seed,
            course=saved.course.model_copy(update={"trial": name}),
            resumes=interrupted.id,
            momenta=saved.momenta,
        )
        result = self._train(plan)
        if plan.phase is RoundPhase.HPO and not _cut(result):
            reached = max(result.accuracies) if result.weights is not None else None
            self._hpo.learn(started.hyperparameters, started.round, reached)
        return True

    def _round(self, number: int, candidate: Candidate) -> None:
        warmup = self._config.rounds.warmup_epochs
        if number <= len(warmup):
            self._warmup_trial(number, candidate, warmup[number - 1])
            return
        like = self._of_parent(candidate)
        for _ in range(self._config.hpo.trials_per_round):
            self._hpo_trial(number, candidate, like)
            like = None
            if self._stop.reason is not None:
                return

    def _of_parent(self, candidate: Candidate) -> Hyperparameters | None:
        """Return the best hyperparameters that are known of the graph a candidate grew from."""
        if candidate.parent is None:
            return None
        if self._knowledge.trial(candidate.parent) is None:
            with self._watch.during(TimePhase.SEARCH_WAIT):
                self._knowledge.refresh()  # Another replica's, since the last look.
        parent = self._knowledge.trial(candidate.parent)
        if parent is None:
            return None
        same = (t for t in self._knowledge.trials() if t.graph == parent.graph)
        best = max(same, key=lambda t: -1.0 if t.merit is None else t.merit)
        return best.hyperparameters

    def _warmup_trial(self, number: int, candidate: Candidate, epochs: int) -> None:
        trial, seed = self._next_trial()
        plan = TrialPlan(
            trial=trial,
            round=number,
            phase=RoundPhase.WARMUP,
            graph=candidate.graph,
            weights=candidate.weights,
            parent=candidate.parent,
            proposal=candidate.proposal,
            morphisms=candidate.morphisms,
            batch_size=self._config.training.batch_size,
            kernel_size=None,
            epoch_limit=epochs,
            seed=seed,
            course=Course(trial=trial),
        )
        self._train(plan)

    def _hpo_trial(self, number: int, candidate: Candidate, like: Hyperparameters | None) -> None:
        trial, seed = self._next_trial()
        suggestion = self._hpo.suggest(candidate.graph, number, like)
        chosen = suggestion.chosen
        steps: tuple[KernelSize, ...] = ()
        graph, weights = candidate.graph, candidate.weights
        if chosen.kernel_size is not None:
            steps = resize_inserted(graph, chosen.kernel_size)
            graph, weights = grow_with_weights(graph, weights, steps, np.random.default_rng(seed))
        plan = TrialPlan(
            trial=trial,
            round=number,
            phase=RoundPhase.HPO,
            graph=graph,
            weights=weights,
            parent=candidate.parent,
            proposal=candidate.proposal,
            morphisms=(*candidate.morphisms, *steps),
            batch_size=chosen.batch_size,
            kernel_size=chosen.kernel_size,
            learning_rate=chosen.learning_rate,
            momentum=chosen.momentum,
            weight_decay=chosen.weight_decay,
            epoch_limit=self._config.training.max_epochs,
            seed=seed,
            course=Course(trial=trial),
        )
        self._tell(suggestion, number, self._train(plan))

    def _tell(self, suggestion: Suggestion, number: int, result: TrialResult) -> None:
        """Tell the study what came of a suggestion."""
        used = result.used
        if result.state is TrialState.FAILED or used is None:
            self._hpo.failed(suggestion, result.reason)
        elif _cut(result):
            self._hpo.cut(suggestion, result.reason)
        elif used.batch_size != suggestion.chosen.batch_size:
            # What was suggested was not tried: the study learns what was.
            wanted = suggestion.chosen.batch_size
            self._hpo.failed(suggestion, f"batch size {wanted} does not fit in memory")
            self._hpo.learn(used, number, max(result.accuracies))
        else:
            self._hpo.completed(suggestion, max(result.accuracies), result.reason)

    def _train(self, plan: TrialPlan) -> TrialResult:
        """Train a plan, keep its weights, record its end."""
        with self._watch.during(TimePhase.STORE):
            self._persist(lambda: self._graphs.save(plan.graph), f"the graph of trial {plan.trial}")
        result = self._trainer.run(plan)
        if result.interrupted:
            return result  # Without an end, so that the next life goes on with it.
        predicted = None
        if plan.phase is RoundPhase.WARMUP and result.accuracies:
            at = self._config.rounds.predict_at_epoch
            predicted = predicted_accuracy(result.accuracies, max(at, plan.epoch_limit))
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
        self._journal.append(TimeSpent(trial=plan.trial, seconds=self._watch.take()))
        self._give_up_if_hopeless(result)
        return result

    def _keep(
        self, plan: TrialPlan, result: TrialResult, predicted: float | None
    ) -> tuple[bool, str]:
        """Store trained weights for children to inherit; return whether, and why not."""
        weights = result.weights
        if weights is None:
            return False, ""
        with self._watch.during(TimePhase.STORE):
            path = self._paths.trained(self._replica, plan.trial)
            try:
                self._persist(
                    lambda: save_checkpoint(path, plan.graph, weights, self._sync), str(path)
                )
            except StorageError as error:
                return False, f"its weights are not kept: {error}"
        self._kept[plan.trial] = max(result.accuracies) if predicted is None else predicted
        return True, ""

    def _drop_worst(self) -> None:
        while len(self._kept) > self._config.search.keep_checkpoints:
            worst = min(self._kept, key=lambda trial: self._kept[trial])
            del self._kept[worst]
            # First the record, then the file: a reader that believes the record is never wrong.
            self._journal.append(CheckpointDropped(trial=worst))
            path = self._paths.trained(self._replica, worst)
            self._persist(partial(path.unlink, missing_ok=True), str(path), "delete")

    def _give_up_if_hopeless(self, result: TrialResult) -> None:
        self._failures = self._failures + 1 if result.state is TrialState.FAILED else 0
        if self._failures >= MOST_FAILURES:
            raise ReplicaFailedError(
                f"{self._failures} trials in a row failed, the last one because: {result.reason}"
            )

    def _initial_candidate(self) -> Candidate:
        rng = np.random.default_rng(self._seed("initial", self._failures))
        return Candidate(self._initial, initial_weights(self._initial, rng))

    def _wait_for_candidate(self) -> Candidate | None:
        """Return the next candidate; None when the run ends first.

        While nothing in the whole run has been trained that could be grown, the initial graph
        is tried again.
        """
        with self._watch.during(TimePhase.SEARCH_WAIT):
            for candidate in self._looks():
                if candidate is not None:
                    return candidate
                self._knowledge.refresh()
                if not self._knowledge.may_be_grown():
                    return self._initial_candidate()
        return None

    def _looks(self) -> Iterator[Candidate | None]:
        pause = FIRST_PAUSE
        while self._stop.reason is None:
            yield self._stock.take()
            self._clock.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)

    def _next_trial(self) -> tuple[str, int]:
        number = next(self._numbers)
        return f"{self._name}-t{number}", self._seed("trial", number)

    def _seed(self, purpose: str, number: int) -> int:
        return seed_of(self._config.seed, self._name, purpose, number)


def _cut(result: TrialResult) -> bool:
    """Return whether the end of the run, or an interruption, cut a trial."""
    return result.state is not TrialState.FAILED and result.weights is None
