"""Ask-and-tell interface of the search, for training outside a run.

It has no run and no replicas. Its own journal records all proposals and results, and is sufficient
to resume the search.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.lineage import Lineage
from aiperf_hpc.morphism.search import load_searcher
from aiperf_hpc.morphism.search.base import (
    Bounds,
    Choice,
    Observation,
    SearchSpaceExhaustedError,
    View,
)
from aiperf_hpc.morphism.search.greedy import GreedySearcher
from aiperf_hpc.morphism.surrogate.covariance import SurrogateError
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.search_digest import kinds_of
from aiperf_hpc.trial import MorphismData, TrialState


class UnknownTrialError(AIPerfError):
    """A result was reported for a trial that was never requested."""


class AskTellSearch:
    """Proposes graphs and learns from their results; any number of trials may be pending.

    It is the only writer of its journal. A session lasts from opening the journal to ``close``, and
    names of trials are unique over all sessions.
    """

    def __init__(
        self,
        path: Path,
        initial: Graph,
        search: SearchConfig,
        seed: int = 0,
        *,
        front_end: str,
    ) -> None:
        """Open the journal and resume its search.

        Args:
            path: journal; created if it does not exist.
            initial: initial graph.
            search: search settings; those of workers, queue and checkpoints are ignored.
            seed: random seed.
            front_end: name of the front end, for the record.

        Raises:
            JournalError: the journal cannot be read or written.
            UsageError: the journal belongs to a search from another initial graph.
        """
        self._initial = initial
        self._seed = seed
        self._trials: dict[str, records.TrialSummary] = {}
        self._begun = False
        """Whether this session has proposed the initial graph."""
        reader = JournalReader(path)
        sessions = 0
        for record in reader.read():
            sessions += isinstance(record.event, records.SearchStarted)
            if isinstance(record.event, records.TrialSummary):
                self._trials[record.event.trial] = record.event
        others = {t.graph for t in self._trials.values() if t.parent is None} - {initial.hash}
        if others:
            raise UsageError(
                f"the journal {path} belongs to a search from the initial graph {others.pop()}, "
                f"not {initial.hash}; use a new journal, or that initial graph"
            )
        self._lineage = Lineage(self._trials.get, initial)
        self.session = f"{front_end}{sessions}"
        """Name of this session, the prefix of its trials' names."""
        self.configure(search)
        self._journal = JournalWriter(path)
        self._journal.append_all(
            [
                records.SearchStarted(
                    replica=self.session, worker=0, pid=os.getpid(), searcher=search.method
                ),
                *(records.SearchFailed(reason=str(problem)) for problem in reader.problems),
            ]
        )

    def configure(self, search: SearchConfig) -> None:
        """Change the search settings for the following proposals."""
        self._searcher = load_searcher(search)
        self._bounds = Bounds.of(search, self._initial)

    def name(self, number: int) -> str:
        """Return the name of this session's trial with the front end's number."""
        return f"{self.session}-{number}"

    def __contains__(self, trial: str) -> bool:
        """Return whether a trial was proposed in any session."""
        return trial in self._trials

    @property
    def pending(self) -> list[str]:
        """Proposed trials without a result, oldest first."""
        return [t.trial for t in self._trials.values() if not t.ended]

    def graph(self, trial: str) -> Graph:
        """Return the graph of a proposed trial."""
        return self._lineage.graph(trial)

    def ask(self, trial: str) -> records.TrialSummary:
        """Propose the graph for ``trial`` and record it as pending.

        The first is the initial graph, followed by children of it until there is a result, then by
        the searcher's choices.

        Raises:
            SearchSpaceExhaustedError: there is no new graph within the limits; recorded.
            SurrogateError: the surrogate could not be computed; recorded.
            ValueError: the trial was already requested.
            JournalError: the journal cannot be written.
        """
        if trial in self._trials:
            raise ValueError(f"trial {trial} was requested already")
        if self._is_first():
            self._begun = True
            return self._propose(trial, self._initial, None, ())
        try:
            return self._grow(trial)
        except (SearchSpaceExhaustedError, SurrogateError) as error:
            self._journal.append(records.SearchFailed(reason=str(error)))
            raise

    def tell(self, trial: str, value: float) -> None:
        """Record a trial's objective value; a later value replaces it.

        Raises:
            ValueError: the value is not a finite number.
            UnknownTrialError: the trial was never requested.
            JournalError: the journal cannot be written.
        """
        if not math.isfinite(value):
            raise ValueError(f"trial {trial} has the value {value}: it has failed")
        self._record(self._ended(trial, value))

    def tell_failed(self, trial: str, reason: str) -> None:
        """Record that a trial ended without a value. Raises as ``tell``."""
        failed = records.TrialEnded(
            trial=trial,
            state=TrialState.FAILED,
            reason=reason,
            predicted_accuracy=None,
            checkpoint=False,
        )
        self._record(self._ended(trial, None), failed)

    def close(self, reason: str) -> None:
        """Record the end of this session and close the journal."""
        self._journal.append(records.SearchEnded(reason=reason))
        self._journal.close()

    def _is_first(self) -> bool:
        """Return whether to propose the initial graph: once per session, until it has a result."""
        roots = (t for t in self._trials.values() if t.parent is None)
        return not self._begun and all(t.ended and t.objective is None for t in roots)

    def _grow(self, trial: str) -> records.TrialSummary:
        began = time.monotonic()
        # The number of trials makes the seed unique, also in later sessions.
        entropy = np.random.SeedSequence((self._seed, len(self._trials)))
        seed = int(entropy.generate_state(1)[0])
        choice = self._choose(np.random.default_rng(seed))
        steps = tuple(step.to_data() for step in choice.morphisms)
        proposed = records.Proposed(
            proposal=trial,
            graph=choice.child.hash,
            parent=choice.parent,
            morphisms=steps,
            seed=seed,
            seconds=time.monotonic() - began,
            prediction=choice.prediction,
        )
        return self._propose(trial, choice.child, choice.parent, steps, proposed)

    def _choose(self, rng: np.random.Generator) -> Choice:
        view = self._view()
        if view.observations:
            return self._searcher.choose(view, rng)
        # Front ends request several graphs before the first result. All grow from the initial
        # graph, whose value is still unknown.
        root = next(t.trial for t in self._trials.values() if t.parent is None)
        stand_in = Observation(root, self._initial.hash, 0.0, can_grow=True)
        choice = GreedySearcher(random_parent_probability=0.0).choose(
            replace(view, observations=[stand_in]), rng
        )
        prediction = {k: v for k, v in choice.prediction.items() if k != "parent_accuracy"}
        return replace(choice, prediction=prediction)

    def _view(self) -> View:
        trials = self._trials.values()
        # Trials manage their own weights, so every graph can be a parent.
        observations = [
            Observation(t.trial, t.graph, t.objective, can_grow=True)
            for t in trials
            if t.objective is not None
        ]
        observed = {observation.graph for observation in observations}
        return View(
            observations,
            {t.graph: t.trial for t in trials if not t.ended and t.graph not in observed},
            self.graph,
            {t.graph for t in trials},
            Counter(kind for t in trials for kind in kinds_of(t.morphisms)),
            self._bounds,
        )

    def _propose(
        self,
        trial: str,
        graph: Graph,
        parent: str | None,
        steps: tuple[MorphismData, ...],
        *also: records.AnyEvent,
    ) -> records.TrialSummary:
        pending = records.TrialSummary(
            trial=trial,
            replica=self.session,
            graph=graph.hash,
            parent=parent,
            morphisms=steps,
            ended=False,
            objective=None,
            checkpoint=False,
        )
        self._record(pending, *also)
        self._lineage.keep(trial, pending, graph)
        return pending

    def _ended(self, trial: str, objective_value: float | None) -> records.TrialSummary:
        known = self._trials.get(trial)
        if known is None:
            raise UnknownTrialError(f"trial {trial} was never requested")
        return known.model_copy(update={"ended": True, "objective": objective_value})

    def _record(self, summary: records.TrialSummary, *also: records.AnyEvent) -> None:
        self._journal.append_all([*also, summary])
        self._trials[summary.trial] = summary
