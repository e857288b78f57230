"""The search for those who train elsewhere: ask for a graph, then tell what it reached.

It has neither run nor replicas, and keeps a journal of its own, which is the record of what was
asked for and told, and all that a later life of the search needs to go on.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aiperf_hpc.clock import SYSTEM, Clock
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
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.records import (
    AnyEvent,
    Proposed,
    SearchEnded,
    SearchFailed,
    SearchStarted,
    TrialEnded,
    TrialSummary,
)
from aiperf_hpc.run.search_digest import kinds_of
from aiperf_hpc.trial import MorphismData, TrialState


class UnknownTrialError(AIPerfError):
    """Something was told of a trial that was never asked for."""


@dataclass(frozen=True, slots=True)
class ProposedGraph:
    """A graph to train."""

    trial: str
    graph: Graph
    parent: str | None
    """The trial whose graph it grows from; None for the initial graph."""
    morphisms: tuple[MorphismData, ...]
    """The steps from there, in order."""


class AskTellSearch:
    """Proposes graphs one at a time, as many at once as are asked for, and learns from results.

    The one writer of its journal. A life of it is the time between opening the journal and
    ``close``; trials have names that no other life gives.
    """

    def __init__(
        self,
        path: Path,
        initial: Graph,
        search: SearchConfig,
        seed: int = 0,
        *,
        front_end: str,
        clock: Clock = SYSTEM,
    ) -> None:
        """Open the journal, and go on from what it says.

        Args:
            path: the journal; made if it is not there.
            initial: what everything grows from.
            search: how; what it says of workers, stock and checkpoints means nothing here.
            seed: of all random choices.
            front_end: whose trials they are, for the record.
            clock: what records are stamped by.

        Raises:
            JournalError: the journal cannot be read or written.
            UsageError: the journal is of a search from another initial graph.
        """
        self._initial = initial
        self._seed = seed
        self._clock = clock
        self._trials: dict[str, TrialSummary] = {}
        self._begun = False
        """Whether this life has asked for the initial graph."""
        reader = JournalReader(path)
        lives = 0
        for record in reader.read():
            lives += isinstance(record.event, SearchStarted)
            if isinstance(record.event, TrialSummary):
                self._trials[record.event.trial] = record.event
        others = {t.graph for t in self._trials.values() if t.parent is None} - {initial.hash}
        if others:
            raise UsageError(
                f"the journal {path} is of a search from the initial graph {others.pop()}, not "
                f"{initial.hash}; give a new journal, or the network that it began with"
            )
        self._lineage = Lineage(self._trials.get, initial)
        self.life = f"{front_end}{lives}"
        """The name of this life, with which the names of its trials begin."""
        self.configure(search)
        self._journal = JournalWriter(path, clock=clock)
        self._journal.append_all(
            [
                SearchStarted(replica=self.life, worker=0, pid=os.getpid(), searcher=search.method),
                *(SearchFailed(reason=str(problem)) for problem in reader.problems),
            ]
        )

    def configure(self, search: SearchConfig) -> None:
        """Search by other settings from now on."""
        self._searcher = load_searcher(search)
        self._bounds = Bounds.of(search, self._initial)

    def name(self, number: int) -> str:
        """Return the name of a trial that the front end of this life numbers so."""
        return f"{self.life}-{number}"

    def __contains__(self, trial: str) -> bool:
        """Return whether a trial was asked for, in any life."""
        return trial in self._trials

    @property
    def pending(self) -> list[str]:
        """The trials that were asked for and of which nothing was told, oldest first."""
        return [t.trial for t in self._trials.values() if not t.ended]

    def ask(self, trial: str) -> ProposedGraph:
        """Return what ``trial`` should train, recorded as pending.

        The initial graph first; then its children, as long as nothing has been told; then what
        the searcher chooses.

        Raises:
            SearchSpaceExhaustedError: there is nothing new within the bounds; recorded.
            SurrogateError: the searcher's process could not be computed; recorded.
            ValueError: it was asked for already.
            JournalError: it cannot be recorded.
        """
        if trial in self._trials:
            raise ValueError(f"trial {trial} was asked for already")
        if self._is_first():
            self._begun = True
            return self._propose(trial, self._initial, None, ())
        try:
            return self._grow(trial)
        except (SearchSpaceExhaustedError, SurrogateError) as error:
            self._journal.append(SearchFailed(reason=str(error)))
            raise

    def tell(self, trial: str, value: float) -> None:
        """Record a trial's objective value; if more is told of it later, that counts.

        Raises:
            ValueError: the value is not a finite number.
            UnknownTrialError: it was never asked for.
            JournalError: it cannot be recorded.
        """
        if not math.isfinite(value):
            raise ValueError(f"trial {trial} has the value {value}: it has failed")
        self._record(self._ended(trial, value))

    def tell_failed(self, trial: str, reason: str) -> None:
        """Record that a trial ended without a value. Raises as ``tell``."""
        failed = TrialEnded(
            trial=trial,
            state=TrialState.FAILED,
            reason=reason,
            predicted_accuracy=None,
            checkpoint=False,
        )
        self._record(self._ended(trial, None), failed)

    def close(self, reason: str) -> None:
        """Record the end of this life, and write no more."""
        self._journal.append(SearchEnded(reason=reason))
        self._journal.close()

    def _is_first(self) -> bool:
        """Return whether the initial graph is due: once a life, until it has been trained."""
        roots = (t for t in self._trials.values() if t.parent is None)
        return not self._begun and all(t.ended and t.merit is None for t in roots)

    def _grow(self, trial: str) -> ProposedGraph:
        began = self._clock.monotonic()
        # The number of trials makes it another one each time, in later lives too.
        entropy = np.random.SeedSequence((self._seed, len(self._trials)))
        seed = int(entropy.generate_state(1)[0])
        choice = self._choose(np.random.default_rng(seed))
        steps = tuple(step.to_data() for step in choice.morphisms)
        proposed = Proposed(
            proposal=trial,
            graph=choice.child.hash,
            parent=choice.parent,
            morphisms=steps,
            seed=seed,
            seconds=self._clock.monotonic() - began,
            belief=choice.prediction,
        )
        return self._propose(trial, choice.child, choice.parent, steps, proposed)

    def _choose(self, rng: np.random.Generator) -> Choice:
        view = self._view()
        if view.observations:
            return self._searcher.choose(view, rng)
        # Front ends ask for several before the first result. All have one parent to grow from,
        # of whose value nothing is known and nothing recorded.
        root = next(t.trial for t in self._trials.values() if t.parent is None)
        stand_in = Observation(root, self._initial.hash, 0.0, can_grow=True)
        choice = GreedySearcher(exploration=0.0).choose(replace(view, observations=[stand_in]), rng)
        prediction = {k: v for k, v in choice.prediction.items() if k != "parent_accuracy"}
        return replace(choice, prediction=prediction)

    def _view(self) -> View:
        trials = self._trials.values()
        # Weights are the trials' own: any graph can be grown, whatever was kept of it.
        observations = [
            Observation(t.trial, t.graph, t.merit, can_grow=True)
            for t in trials
            if t.merit is not None
        ]
        observed = {observation.graph for observation in observations}
        return View(
            observations,
            {t.graph: t.trial for t in trials if not t.ended and t.graph not in observed},
            self._lineage.graph,
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
        *also: AnyEvent,
    ) -> ProposedGraph:
        pending = TrialSummary(
            trial=trial,
            replica=self.life,
            graph=graph.hash,
            parent=parent,
            morphisms=steps,
            ended=False,
            merit=None,
            checkpoint=False,
        )
        self._record(pending, *also)
        self._lineage.keep(trial, pending, graph)
        return ProposedGraph(trial, graph, parent, steps)

    def _ended(self, trial: str, objective_value: float | None) -> TrialSummary:
        known = self._trials.get(trial)
        if known is None:
            raise UnknownTrialError(f"trial {trial} was never asked for")
        return known.model_copy(update={"ended": True, "merit": objective_value})

    def _record(self, summary: TrialSummary, *also: AnyEvent) -> None:
        self._journal.append_all([*also, summary])
        self._trials[summary.trial] = summary
