"""What a replica trains: the initial graph first, then one grown candidate a round.

Warm-up rounds train their candidate once, with the accuracy extrapolated; the rounds after
them train it several times, with hyperparameters chosen by TPE.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import CheckpointError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.grow import grow_with_weights, resize_inserted
from aiperf_hpc.morphism.operators.registry import from_data
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.replica.identity import Identity, name_of, seed_of
from aiperf_hpc.replica.search.run_knowledge import RunKnowledge
from aiperf_hpc.replica.training.checkpoint import Interrupted, TrialProgress, load_training
from aiperf_hpc.replica.training.trainer import TrialPlan, TrialResult
from aiperf_hpc.replica.trials.candidate_queue import Candidate, CandidateQueue
from aiperf_hpc.replica.trials.hpo import Hpo, Suggestion
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import FileProblem
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TrialState


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial to be trained, and who waits for what comes of it."""

    plan: TrialPlan
    suggestion: Suggestion | None = None
    """Whose outcome the study is to be told."""
    resumed: Hyperparameters | None = None
    """Of an interrupted trial, whose outcome the study is to learn when this goes on with it."""
    spent: Candidate | None = None
    """The candidate that is of no more use after it."""


class Planner:
    """Decides what is trained next."""

    def __init__(
        self,
        *,
        config: RunConfig,
        paths: RunPaths,
        who: Identity,
        initial: Graph,
        stock: CandidateQueue,
        hpo: Hpo,
        knowledge: RunKnowledge,
        journal: JournalWriter,
        retry: Retry,
    ) -> None:
        """Prepare.

        Args:
            config: the run's.
            paths: where it is.
            who: whose trials these are.
            initial: the graph that all others grow from.
            stock: what has been grown for this replica.
            hpo: its study.
            knowledge: what it knows of the run.
            journal: told what is wrong with the checkpoint of a trial under way.
            retry: how to read that.
        """
        self._config = config
        self._paths = paths
        self._who = who
        self._initial = initial
        self._stock = stock
        self._hpo = hpo
        self._knowledge = knowledge
        self._journal = journal
        self._retry = retry
        self._name = name_of(who.replica, who.incarnation)
        self._numbers = count(1)
        self._beginnings = count()
        self._plans = self._all_plans()

    def next(self) -> Planned | None:
        """Return what to train next; None when there is nothing yet."""
        return next(self._plans)

    def halved(self, planned: Planned, used: Hyperparameters) -> Planned:
        """Return the plan of a trial that did not fit, with half the batch size and all else kept.

        The learning rate too: it is what the trial is to show the worth of.

        Args:
            planned: the trial that did not fit.
            used: what it had, its batches perhaps smaller already than planned.
        """
        plan, (trial, _) = planned.plan, self._next_trial()
        half = used.batch_size // 2
        note = (
            f"{plan.trial} did not fit on the accelerator in batches of {used.batch_size}; "
            f"{half} with the same learning rate"
        )
        course = plan.course.model_copy(update={"trial": trial})
        again = replace(plan, trial=trial, batch_size=half, course=course, notes=(note,))
        return replace(planned, plan=again)

    def drop(self, planned: Planned) -> None:
        """Tell the study that what was planned is not tried."""
        if planned.suggestion is not None:
            self._hpo.cut(planned.suggestion, "the run ended before its turn")

    def tell(self, planned: Planned, result: TrialResult) -> None:
        """Tell the study what came of a plan."""
        if planned.suggestion is not None:
            self._tell(planned.suggestion, planned.plan.round, result)
        elif planned.resumed is not None and not result.cut:
            reached = max(result.values) if result.weights is not None else None
            self._hpo.learn(planned.resumed, planned.plan.round, reached)
        if planned.spent is not None:
            self._stock.discard(planned.spent)

    def _tell(self, suggestion: Suggestion, number: int, result: TrialResult) -> None:
        used, failed = result.used, result.state is TrialState.FAILED
        if result.cut:
            self._hpo.cut(suggestion, result.reason)
        elif used.batch_size != suggestion.chosen.batch_size:
            # What was suggested was not tried: the study learns what was.
            wanted = suggestion.chosen.batch_size
            self._hpo.failed(suggestion, f"batch size {wanted} does not fit in memory")
            self._hpo.learn(used, number, None if failed else max(result.values))
        elif failed:
            self._hpo.failed(suggestion, result.reason)
        else:
            self._hpo.completed(suggestion, max(result.values), result.reason)

    def _all_plans(self) -> Iterator[Planned | None]:
        first = yield from self._take_over()
        for number in count(first):
            if not self._config.search.searches:
                yield Planned(self._plan(number, self._beginning()))
                continue
            candidate = self._beginning() if number == 1 else self._candidate()
            while candidate is None:
                yield None
                candidate = self._candidate()
            yield from self._round(number, candidate)

    def _take_over(self) -> Generator[Planned, None, int]:
        """Go on where an earlier life of this replica ended; return the next round's number."""
        history = self._knowledge.history
        history.refresh(self._who.replica)
        own = (t for t in history.trials.values() if t.replica == self._who.replica)
        trials = sorted(own, key=lambda t: t.started_utc)
        if not trials:
            return 1
        for trial in trials:
            if trial.started.phase is RoundPhase.HPO:
                self._learn(trial)
        last = trials[-1]
        if last.ended is not None:
            return last.started.round + 1
        planned = self._going_on_with(last)
        if planned is None:
            return last.started.round
        yield planned
        return last.started.round + 1

    def _learn(self, trial: Trial) -> None:
        """Tell the study of a trial of an earlier life what that told its own.

        Nothing of one that was cut. By the records, since the earlier study may be damaged.
        """
        started, course = trial.started, self._course(trial)
        patient = course.since_lowest < self._config.training.patience
        cut = trial.state is TrialState.STOPPED and patient
        if trial.ended is None or cut:
            return
        used, failed = started.hyperparameters, trial.state is TrialState.FAILED
        if started.planned_batch_size is not None:
            planned = used.model_copy(update={"batch_size": started.planned_batch_size})
            self._hpo.learn(planned, started.round, None)
        if failed or course.values:
            reached = None if failed else max(course.values)
            self._hpo.learn(used, started.round, reached)

    def _course(self, trial: Trial, epochs: float = math.inf) -> TrialProgress:
        """Return what happened in a trial until after ``epochs``, and in those it goes on with."""
        before = self._knowledge.history.trials.get(trial.started.resumes or "")
        course = TrialProgress(trial=trial.id)
        if before is not None:
            course = self._course(before, trial.started.first_epoch - 1)
        for evaluation in trial.evaluations:
            if evaluation.epoch <= epochs:
                course = course.after(evaluation.objective_value, evaluation.validation_loss)
        return course

    def _going_on_with(self, interrupted: Trial) -> Planned | None:
        """Return how to train an interrupted trial to its end, if it has a checkpoint.

        Without one, or with a damaged one, its round is begun anew.
        """
        path = self._paths.under_way(self._who.replica, interrupted.incarnation)
        try:
            saved = self._saved(path, interrupted)
        except CheckpointError as error:
            remedy = f"round {interrupted.started.round} is begun anew without {interrupted.id}"
            self._complain(path, str(error), remedy)
            return None
        if saved is None:
            return None
        started = interrupted.started
        used, (name, _) = started.hyperparameters, self._next_trial()
        plan = TrialPlan(
            trial=name,
            round=started.round,
            phase=started.phase,
            graph=saved.graph,
            weights=saved.weights,
            parent=started.parent,
            proposal=started.proposal,
            morphisms=tuple(from_data(data) for data in started.morphisms),
            batch_size=used.batch_size,
            kernel_size=used.kernel_size,
            learning_rate=used.learning_rate,
            momentum=used.momentum,
            weight_decay=used.weight_decay,
            epoch_limit=started.epoch_limit,
            seed=started.seed,
            course=saved.course.model_copy(update={"trial": name}),
            resumes=interrupted.id,
            optimizer_state=saved.optimizer_state,
        )
        return Planned(plan, resumed=used if started.phase is RoundPhase.HPO else None)

    def _saved(self, path: Path, interrupted: Trial) -> Interrupted | None:
        """Return the checkpoint of a trial; None when it was younger than a checkpoint.

        Raises:
            CheckpointError: it is damaged, or gone although there must have been one.
        """
        if not self._retry(path.exists, str(path), "read"):
            if self._was_stored(interrupted):
                raise CheckpointError(f"the checkpoint {path} is gone")
            return None
        told: list[str] = []
        saved = load_training(path, self._retry, told.append)
        for problem in told:
            self._complain(path, problem, "it is gone on with")
        if saved.course.trial != interrupted.id:
            return None  # Of a trial before it.
        if saved.graph.hash != interrupted.started.graph:
            wanted = interrupted.started.graph
            raise CheckpointError(
                f"the checkpoint {path} holds the graph {saved.graph.hash}, its trial has {wanted}"
            )
        return saved

    def _was_stored(self, trial: Trial) -> bool:
        """Return whether a trial went on after an epoch at whose end a checkpoint was due."""
        if len(trial.evaluations) < 2 or trial.training_utc is None:
            return False
        lasted = trial.evaluations[-2].utc - trial.training_utc
        return lasted >= self._config.training.checkpoint_seconds

    def _complain(self, path: Path, problem: str, remedy: str) -> None:
        file = str(path.relative_to(self._paths.root))
        self._journal.append(FileProblem(file=file, problem=problem, remedy=remedy))

    def _round(self, number: int, candidate: Candidate) -> Iterator[Planned]:
        if number <= len(self._config.rounds.warmup_epochs):
            yield Planned(self._plan(number, candidate), spent=candidate)
            return
        like = self._of_parent(candidate)
        for left in reversed(range(self._config.hpo.trials_per_round)):
            yield self._tuned(number, candidate, like, last=left == 0)
            like = None

    def _of_parent(self, candidate: Candidate) -> Hyperparameters | None:
        """Return the best hyperparameters that are known of the graph a candidate grew from."""
        if candidate.parent is None:
            return None
        if self._knowledge.trial(candidate.parent) is None:
            self._knowledge.refresh()  # Another replica's, since the last look.
        parent = self._knowledge.trial(candidate.parent)
        if parent is None:
            return None
        same = (t for t in self._knowledge.trials() if t.graph == parent.graph)
        best = max(same, key=lambda t: -1.0 if t.merit is None else t.merit)
        return best.hyperparameters

    def _phase(self, number: int) -> tuple[RoundPhase, int]:
        """Return what a round does, and how many epochs its trials have at most."""
        warmup = self._config.rounds.warmup_epochs
        if not self._config.search.searches:
            return RoundPhase.FIXED, self._config.training.max_epochs
        if number <= len(warmup):
            return RoundPhase.WARMUP, warmup[number - 1]
        return RoundPhase.HPO, self._config.training.max_epochs

    def _plan(self, number: int, candidate: Candidate) -> TrialPlan:
        """Return how to train a candidate as it is."""
        trial, seed = self._next_trial()
        phase, epoch_limit = self._phase(number)
        return TrialPlan(
            trial=trial,
            round=number,
            phase=phase,
            graph=candidate.graph,
            weights=candidate.weights,
            parent=candidate.parent,
            proposal=candidate.proposal,
            morphisms=candidate.morphisms,
            batch_size=self._config.training.batch_size,
            kernel_size=None,
            epoch_limit=epoch_limit,
            seed=seed,
            course=TrialProgress(trial=trial),
        )

    def _tuned(
        self, number: int, candidate: Candidate, like: Hyperparameters | None, *, last: bool
    ) -> Planned:
        plan = self._plan(number, candidate)
        suggestion = self._hpo.suggest(candidate.graph, number, like)
        chosen = suggestion.chosen
        if chosen.kernel_size is not None:
            steps = resize_inserted(plan.graph, chosen.kernel_size)
            rng = np.random.default_rng(plan.seed)
            graph, weights = grow_with_weights(plan.graph, plan.weights, steps, rng)
            morphisms = (*plan.morphisms, *steps)
            plan = replace(plan, graph=graph, weights=weights, morphisms=morphisms)
        plan = replace(
            plan,
            batch_size=chosen.batch_size,
            kernel_size=chosen.kernel_size,
            learning_rate=chosen.learning_rate,
            momentum=chosen.momentum,
            weight_decay=chosen.weight_decay,
        )
        return Planned(plan, suggestion, spent=candidate if last else None)

    def _beginning(self) -> Candidate:
        seed = seed_of(self._config.seed, self._name, "initial", next(self._beginnings))
        return Candidate(self._initial, initial_weights(self._initial, np.random.default_rng(seed)))

    def _candidate(self) -> Candidate | None:
        """Return the next candidate; None when there is none yet.

        While nothing in the whole run has been or is being trained that could be grown, the
        initial graph is tried again.
        """
        candidate = self._stock.take()
        if candidate is None:
            self._knowledge.refresh()
            if not self._knowledge.may_be_grown():
                return self._beginning()
        return candidate

    def _next_trial(self) -> tuple[str, int]:
        number = next(self._numbers)
        return (
            f"{self._name}-t{number}",
            seed_of(self._config.seed, self._name, "trial", number),
        )
