"""The planner: the initial graph first, then one candidate of the candidate queue per round.

Warm-up rounds train their candidate once and extrapolate its accuracy. Later rounds train their
candidate several times, with hyperparameters chosen by TPE.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import count, repeat
from pathlib import Path

import numpy as np

from aiperf_hpc.errors import CheckpointError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import from_data, grow_with_weights, resize_inserted
from aiperf_hpc.morphism.search.run_knowledge import RunKnowledge
from aiperf_hpc.morphism.weights.weight_file import initial_weights, load_checkpoint
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.training.checkpoint import load_training
from aiperf_hpc.replica.training.trial import (
    Candidate,
    PlannedTrial,
    Suggestion,
    TrainingState,
    TrialProgress,
    TrialResult,
    configured_hyperparameters,
)
from aiperf_hpc.replica.trials.hpo import Hpo
from aiperf_hpc.run.history import Proposal, RunHistory, Trial
from aiperf_hpc.run.liveness import LISTING_SECONDS
from aiperf_hpc.run.paths import seed_of
from aiperf_hpc.run.records import ProposalRejected
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TrialState


@dataclass(eq=False)
class Planner:
    """Plans the next trial of a replica."""

    context: ReplicaContext
    """The replica's context; its journal records problems with a checkpoint."""
    initial: Graph
    """The initial graph of the search."""
    hpo: Hpo
    """The replica's study."""
    knowledge: RunKnowledge
    """The replica's view of the run."""

    def __post_init__(self) -> None:
        """Continue where this replica's previous attempt ended."""
        self._name = self.context.who.name
        self._queue = CandidateQueue(self.context, self.knowledge.history)
        self._numbers = count(1)
        self._beginnings = count()
        self._lost: tuple[int, ...] = ()
        """Rounds trained by a previous attempt that exited before it recorded their ends."""
        self._plans = self._all_plans()
        self.done = False
        """Whether all requested trials are planned."""

    def next(self) -> PlannedTrial | None:
        """Return the next trial, or None if there is no candidate yet."""
        return next(self._plans)

    def halved(self, trial: PlannedTrial, used: Hyperparameters) -> PlannedTrial:
        """Return the plan of a trial that ran out of memory, with half its batch size.

        All other hyperparameters stay, including the learning rate.

        Args:
            trial: the trial that did not fit.
            used: its hyperparameters; the batch size may already be smaller than planned.
        """
        name, _ = self._next_trial()
        half = used.batch_size // 2
        note = (
            f"{trial.name} did not fit on the accelerator in batches of {used.batch_size}; "
            f"{half} with the same learning rate"
        )
        return replace(
            trial,
            name=name,
            hyperparameters=used.model_copy(update={"batch_size": half}),
            progress=trial.progress.model_copy(update={"trial": name}),
            notes=(note,),
        )

    def drop(self, trial: PlannedTrial) -> None:
        """Record in the study that a planned trial was not trained."""
        if trial.suggestion is not None:
            self.hpo.cut(trial.suggestion, "the run ended before its turn")

    def tell(self, trial: PlannedTrial, result: TrialResult) -> None:
        """Report a trial's result to the study."""
        if trial.suggestion is not None:
            self._tell(trial.suggestion, trial.round, result)
        elif trial.phase is RoundPhase.HPO and not result.cut:
            # The study of a previous attempt suggested it.
            reached = None if result.state is TrialState.FAILED else max(result.values)
            self.hpo.learn(result.used, trial.round, reached)
        if trial.discard_candidate:
            self._queue.discard(trial.candidate)

    def _tell(self, suggestion: Suggestion, number: int, result: TrialResult) -> None:
        used, failed = result.used, result.state is TrialState.FAILED
        if result.cut:
            self.hpo.cut(suggestion, result.reason)
        elif used.batch_size != (wanted := suggestion.hyperparameters.batch_size):
            # The trial used another batch size than suggested: record both.
            self.hpo.failed(suggestion, f"batch size {wanted} does not fit in memory")
            self.hpo.learn(used, number, None if failed else max(result.values))
        elif failed:
            self.hpo.failed(suggestion, result.reason)
        else:
            self.hpo.completed(suggestion, max(result.values), result.reason)

    def _all_plans(self) -> Iterator[PlannedTrial | None]:
        first = yield from self._resume()
        if not self.context.config.search.searches:
            yield from self._trainings(first)
        for number in count(first):
            candidate = self._initial_candidate() if number == 1 else self._candidate()
            while candidate is None:
                yield None
                candidate = self._candidate()
            yield from self._round(number, candidate)

    def _trainings(self, first: int) -> Iterator[PlannedTrial | None]:
        """Yield the initial network as often as requested, then None."""
        most = self.context.config.search.max_trainings
        for number in count(first) if most is None else (*self._lost, *range(first, most + 1)):
            yield self._plan(number, self._initial_candidate())
        self.done = True
        yield from repeat(None)

    def _resume(self) -> Generator[PlannedTrial, None, int]:
        """Resume the replica's previous attempt; return the number of the next round."""
        history = self.knowledge.history
        history.refresh(self.context.replica)
        own = (t for t in history.trials.values() if t.replica == self.context.replica)
        trials = sorted(own, key=lambda t: t.started_utc)
        if not trials:
            return 1
        for trial in trials:
            if trial.started.phase is RoundPhase.HPO:
                self._learn(trial)
        last = trials[-1]
        ended = {t.started.round for t in trials if t.ended is not None}
        self._lost = tuple(n for n in range(1, last.started.round) if n not in ended)
        if last.ended is not None:
            return last.started.round + 1
        planned = self._resumed(last)
        if planned is None:
            return last.started.round
        yield planned
        return last.started.round + 1

    def _learn(self, trial: Trial) -> None:
        """Add a trial of a previous attempt to the study; interrupted trials are ignored.

        It is read from the records, because the previous study's file may be damaged.
        """
        started, progress = trial.started, self._progress(trial)
        patient = progress.since_lowest < self.context.config.training.patience
        cut = trial.state is TrialState.STOPPED and patient
        if trial.ended is None or cut:
            return
        used, failed = started.hyperparameters, trial.state is TrialState.FAILED
        if started.planned_batch_size is not None:
            planned = used.model_copy(update={"batch_size": started.planned_batch_size})
            self.hpo.learn(planned, started.round, None)
        if failed or progress.values:
            reached = None if failed else max(progress.values)
            self.hpo.learn(used, started.round, reached)

    def _progress(self, trial: Trial, epochs: float = math.inf) -> TrialProgress:
        """Return a trial's progress up to ``epochs``, including the trials that it resumed."""
        before = self.knowledge.history.trials.get(trial.started.resumes or "")
        progress = TrialProgress(trial=trial.id)
        if before is not None:
            progress = self._progress(before, trial.started.first_epoch - 1)
        for evaluation in trial.evaluations:
            if evaluation.epoch <= epochs:
                progress = progress.after(evaluation.objective_value, evaluation.validation_loss)
        return progress

    def _resumed(self, interrupted: Trial) -> PlannedTrial | None:
        """Return the plan to resume an interrupted trial from its checkpoint.

        Without a readable checkpoint the result is None, and its round is started again.
        """
        path = self.context.paths.under_way(self.context.replica, interrupted.incarnation)
        try:
            saved = self._saved(path, interrupted)
        except CheckpointError as error:
            remedy = f"round {interrupted.started.round} is restarted without {interrupted.id}"
            self.context.report(path, str(error), remedy)
            return None
        if saved is None:
            return None
        started = interrupted.started
        name, _ = self._next_trial()
        return PlannedTrial(
            name=name,
            round=started.round,
            phase=started.phase,
            candidate=Candidate(
                saved.graph,
                saved.weights,
                started.parent,
                started.proposal,
                tuple(from_data(data) for data in started.morphisms),
            ),
            hyperparameters=started.hyperparameters,
            epoch_limit=started.epoch_limit,
            seed=started.seed,
            progress=saved.progress.model_copy(update={"trial": name}),
            resumes=interrupted.id,
            optimizer_state=saved.optimizer_state,
        )

    def _saved(self, path: Path, interrupted: Trial) -> TrainingState | None:
        """Return the checkpoint of a trial; None if it ended before its first checkpoint.

        Raises:
            CheckpointError: the checkpoint is damaged or missing.
        """
        if not self.context.exists(path):
            if self._was_stored(interrupted):
                raise CheckpointError(f"the checkpoint {path} is missing")
            return None
        saved = load_training(path, self.context.retry)
        if saved.progress.trial != interrupted.id:
            return None  # The checkpoint of an earlier trial.
        if saved.graph.hash != interrupted.started.graph:
            wanted = interrupted.started.graph
            raise CheckpointError(
                f"the checkpoint {path} holds the graph {saved.graph.hash}, its trial has {wanted}"
            )
        return saved

    def _was_stored(self, trial: Trial) -> bool:
        """Return whether a trial continued past an epoch at which a checkpoint was due."""
        if len(trial.evaluations) < 2 or trial.training_utc is None:
            return False
        lasted = trial.evaluations[-2].utc - trial.training_utc
        return lasted >= self.context.config.training.checkpoint_interval_seconds

    def _round(self, number: int, candidate: Candidate) -> Iterator[PlannedTrial]:
        if number <= len(self.context.config.rounds.warmup_epochs):
            yield replace(self._plan(number, candidate), discard_candidate=True)
            return
        like = self._parent_hyperparameters(candidate)
        for left in reversed(range(self.context.config.hpo.trials_per_round)):
            tuned = self._tuned(number, candidate, like)
            yield replace(tuned, discard_candidate=left == 0)
            like = None

    def _parent_hyperparameters(self, candidate: Candidate) -> Hyperparameters | None:
        """Return the best known hyperparameters of the parent's graph."""
        if candidate.parent is None:
            return None
        if self.knowledge.trial(candidate.parent) is None:
            self.knowledge.refresh()  # Another replica may have trained it since.
        parent = self.knowledge.trial(candidate.parent)
        if parent is None:
            return None
        same = (t for t in self.knowledge.trials() if t.graph == parent.graph)
        best = max(same, key=lambda t: -math.inf if t.objective is None else t.objective)
        return best.hyperparameters

    def _phase(self, number: int) -> tuple[RoundPhase, int]:
        """Return the phase of a round and the epoch limit of its trials."""
        warmup = self.context.config.rounds.warmup_epochs
        if not self.context.config.search.searches:
            return RoundPhase.FIXED, self.context.config.training.max_epochs
        if number <= len(warmup):
            return RoundPhase.WARMUP, warmup[number - 1]
        return RoundPhase.HPO, self.context.config.training.max_epochs

    def _plan(self, number: int, candidate: Candidate) -> PlannedTrial:
        """Return a plan to train a candidate with the configured hyperparameters."""
        name, seed = self._next_trial()
        phase, epoch_limit = self._phase(number)
        return PlannedTrial(
            name=name,
            round=number,
            phase=phase,
            candidate=candidate,
            hyperparameters=configured_hyperparameters(self.context.config.training),
            epoch_limit=epoch_limit,
            seed=seed,
            progress=TrialProgress(trial=name),
        )

    def _tuned(
        self, number: int, candidate: Candidate, like: Hyperparameters | None
    ) -> PlannedTrial:
        """Return a plan to train a candidate with hyperparameters from the study."""
        trial = self._plan(number, candidate)
        suggestion = self.hpo.suggest(candidate.graph, number, like)
        size = suggestion.hyperparameters.kernel_size
        if size is not None:
            steps = resize_inserted(candidate.graph, size)
            rng = np.random.default_rng(trial.seed)
            graph, weights = grow_with_weights(candidate.graph, candidate.weights, steps, rng)
            morphisms = (*candidate.morphisms, *steps)
            candidate = replace(candidate, graph=graph, weights=weights, morphisms=morphisms)
        return replace(
            trial,
            candidate=candidate,
            hyperparameters=suggestion.hyperparameters,
            suggestion=suggestion,
        )

    def _initial_candidate(self) -> Candidate:
        seed = seed_of(self.context.config.seed, self._name, "initial", next(self._beginnings))
        return Candidate(self.initial, initial_weights(self.initial, np.random.default_rng(seed)))

    def _candidate(self) -> Candidate | None:
        """Return the next candidate, or None if there is none yet.

        The initial graph is trained again as long as no trial of the run, ended or running, can
        become a parent.
        """
        candidate = self._queue.take()
        if candidate is None:
            self.knowledge.refresh()
            if not self.knowledge.may_be_grown():
                return self._initial_candidate()
        return candidate

    def _next_trial(self) -> tuple[str, int]:
        number = next(self._numbers)
        return (
            f"{self._name}-t{number}",
            seed_of(self.context.config.seed, self._name, "trial", number),
        )


class CandidateQueue:
    """Candidate queue of a replica, first in, first out."""

    def __init__(self, context: ReplicaContext, history: RunHistory) -> None:
        self._context = context
        self._history = history

    def take(self) -> Candidate | None:
        """Return the oldest candidate that can be loaded, or None if the queue is empty.

        A candidate whose file is damaged, or missing for longer than the file system's listing
        may lag, is rejected in the journal.
        """
        self._history.refresh(self._context.replica)
        for proposal in self._history.pending(self._context.replica):
            path = self._context.paths.candidate(proposal.id)
            there = self._context.exists(path)
            if not there and self._context.clock.utc() - proposal.utc < LISTING_SECONDS:
                continue
            try:
                return self._load(proposal)
            except CheckpointError as error:
                self._context.journal.append(
                    ProposalRejected(proposal=proposal.id, reason=str(error))
                )
        return None

    def _load(self, proposal: Proposal) -> Candidate:
        proposed = proposal.proposed
        path = self._context.paths.candidate(proposal.id)
        graph, weights = load_checkpoint(path, self._context.retry)
        if graph.hash != proposed.graph:
            raise CheckpointError(
                f"the candidate {proposal.id} holds the graph {graph.hash}, not {proposed.graph}"
            )
        steps = tuple(from_data(data) for data in proposed.morphisms)
        return Candidate(graph, weights, proposed.parent, proposal.id, steps)

    def discard(self, candidate: Candidate) -> None:
        """Delete the stored weights of a trained candidate; its graph is kept."""
        if candidate.proposal is not None:
            self._context.delete(self._context.paths.candidate(candidate.proposal))
