"""A search worker: keeps the replica's candidate queue full during training.

    python -m aiperf_hpc.replica.search.worker RUN_DIR --replica r0 --incarnation 0.0 \\
        --worker 0 --parent PID

It runs at low priority, reads its replica's journals and the primary's digest of the others,
and writes its own journal.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aiperf_hpc.errors import AIPerfError, CheckpointError
from aiperf_hpc.morphism.lineage import Grown, Lineage
from aiperf_hpc.morphism.operators.morphisms import inherit
from aiperf_hpc.morphism.search import load_searcher
from aiperf_hpc.morphism.search.base import Choice, Searcher, SearchSpaceExhaustedError, View
from aiperf_hpc.morphism.search.run_knowledge import RunKnowledge
from aiperf_hpc.morphism.surrogate.covariance import SurrogateError
from aiperf_hpc.morphism.weights.weight_file import damaged, load_checkpoint, save_checkpoint
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.runtime.background import NICENESS
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import Identity, Incarnation, RunPaths, seed_of
from aiperf_hpc.run.records import Proposed, SearchEnded, SearchFailed, SearchStarted
from aiperf_hpc.run.search_digest import Digest
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.streams import print_in_any_locale
from aiperf_hpc.workloads.registry import initial_graph

FIRST_PAUSE, EAGER_PAUSE, LONGEST_PAUSE = 0.2, 5.0, 30.0
"""Seconds between polls: initially, at most while the queue is short, and at most overall."""
RETRY_SECONDS = 5.0
LOST_SECONDS = 90.0
"""Seconds that trained weights may be missing before the record of their deletion arrives."""
MOST_GRAPHS = 8192
"""Number of cached graphs, about 40 kB each; others are grown again when needed."""


class _ParentLostError(AIPerfError):
    """The weights of a trial are missing or damaged."""

    def __init__(self, parent: str, damage: str | None = None) -> None:
        super().__init__(damage or f"the weights of trial {parent} are missing")
        self.parent = parent
        self.damage = damage


@dataclass(eq=False)
class SearchWorker:
    """Proposes candidates whenever fewer than ``search.queue_depth`` are queued."""

    context: ReplicaContext
    """The worker's context."""
    worker: int
    """Number of the worker within the replica."""
    searcher: Searcher
    """Chooses parents and morphisms."""
    knowledge: RunKnowledge
    """The replica's view of the run."""
    grown: Grown | None = None
    """Cache of graphs of trials, by trial."""

    def __post_init__(self) -> None:
        """Continue after the proposals of a previous worker of this name."""
        name = self.context.who.name
        self._seed_parts = (self.context.config.seed, name, "search", self.worker)
        self._name = f"{name}-w{self.worker}"
        self._graphs = GraphStore(self.context.paths, self.context.sync)
        self._lineage: Lineage | None = None
        """Lineage of graphs, once the dataset is known."""
        self._gone: dict[str, float] = {}
        """Trials whose weights are missing or damaged despite their records, with the monotonic
        time of the discovery; infinite once it was recorded."""
        self._replacements = self.knowledge.replacements
        """Number of the digest's replacements when the searcher last began anew."""
        self._recorded_problems = 0
        """Number of the digest's problems that are already recorded."""
        self._pause = FIRST_PAUSE
        self._made = self._previous_proposals()

    def _previous_proposals(self) -> int:
        """Return the number of proposals of previous workers of this name."""
        self.knowledge.refresh_own()
        made = [
            int(proposal.rpartition("-")[2])
            for proposal in self.knowledge.history.proposals
            if proposal.rpartition("-")[0] == self._name
        ]
        return max(made, default=0)

    def work(self) -> str:
        """Propose candidates until stopped; return the reason."""
        while self.context.stop.reason is None:
            self.context.clock.wait(self.step(), lambda: self.context.stop.reason is not None)
        return self.context.stop.reason

    def step(self) -> float:
        """Propose one candidate if the queue is short; return the seconds until the next step."""
        # While the queue is full, only this replica's own journals matter.
        self.knowledge.refresh_own()
        if len(self.knowledge.pending) >= self.context.config.search.queue_depth:
            return self._rest()
        self.knowledge.refresh()
        self._forget_replaced_digest()
        self._record_problems()
        self._drop_lost_parents()
        lineage = self._find_lineage()
        if lineage is None:
            return min(self._rest(), EAGER_PAUSE)
        bounds = self.knowledge.bounds(self.context.config, lineage.initial)
        view = self.knowledge.view(lineage.graph, bounds, self._gone.keys())
        if not any(observation.can_grow for observation in view.observations):
            return min(self._rest(), EAGER_PAUSE)
        self._pause = FIRST_PAUSE
        try:
            self._propose(view, lineage)
        except _ParentLostError as error:
            # Deleted since its record was read (visible on NFS a minute later), or damaged: grow
            # others.
            self._gone[error.parent] = self.context.clock.monotonic()
            if error.damage is not None:
                self._lose(error.parent, error.damage)
        except (SearchSpaceExhaustedError, SurrogateError) as error:
            self.context.journal.append(SearchFailed(reason=str(error)))
            return RETRY_SECONDS
        return 0.0

    def _rest(self) -> float:
        """Return the next polling interval, which grows while there is nothing to do.

        This keeps the delay a fraction of a trial and the load of thousands of workers on the file
        server low.
        """
        pause, self._pause = self._pause, min(1.5 * self._pause, LONGEST_PAUSE)
        return pause

    def _forget_replaced_digest(self) -> None:
        """Let the searcher begin anew if the digest was replaced.

        A proposal records how many of its lines the searcher had learned from. In another digest
        these are other trials, from which the choice could not be repeated.
        """
        if self._replacements != self.knowledge.replacements:
            self._replacements = self.knowledge.replacements
            self.searcher.begin_anew()

    def _record_problems(self) -> None:
        """Record new problems of the digest; its readable part is still used."""
        for problem in self.knowledge.problems[self._recorded_problems :]:
            self.context.journal.append(SearchFailed(reason=problem))
            self._recorded_problems += 1

    def _drop_lost_parents(self) -> None:
        """Record the trials whose weights are lost, so that nobody waits for their children."""
        now = self.context.clock.monotonic()
        for name, since in list(self._gone.items()):
            if now - since < LOST_SECONDS:
                continue
            trial = self.knowledge.trial(name)
            if trial is not None and trial.checkpoint:
                self._lose(name, str(_ParentLostError(name)))
            self._gone[name] = math.inf

    def _lose(self, parent: str, why: str) -> None:
        self.context.journal.append(SearchFailed(reason=why, lost_parent=parent))
        self._gone[parent] = math.inf

    def _propose(self, view: View, lineage: Lineage) -> None:
        began = self.context.clock.monotonic()
        self._made += 1
        seed = seed_of(*self._seed_parts, self._made)
        rng = np.random.default_rng(seed)
        choice = self.searcher.choose(view, rng)
        proposal = f"{self._name}-{self._made}"
        graph_hash = self._store(choice, proposal, rng)
        proposed = Proposed(
            proposal=proposal,
            graph=graph_hash,
            parent=choice.parent,
            morphisms=tuple(step.to_data() for step in choice.morphisms),
            seed=seed,
            seconds=self.context.clock.monotonic() - began,
            prediction=choice.prediction,
            seen=view.seen,
            learned=choice.learned if choice.learned != view.seen else None,
        )
        lineage.keep(proposal, proposed, choice.child)
        self.context.journal.append(proposed)

    def _store(self, choice: Choice, proposal: str, rng: np.random.Generator) -> str:
        """Write the candidate's graph and weights before its proposal is recorded."""
        parent = self.knowledge.trial(choice.parent)
        path = None if parent is None else self.context.paths.trained(parent.replica, parent.trial)
        if path is None or not self.context.exists(path):
            raise _ParentLostError(choice.parent)
        try:
            graph, weights = load_checkpoint(path, self.context.retry)
            if graph != choice.graphs[0]:  # Weights are keyed by the names of the graph's nodes.
                raise damaged(path, f"its graph is not that of trial {choice.parent}")
        except CheckpointError as error:
            raise _ParentLostError(choice.parent, str(error)) from None
        noise = self.context.config.search.weight_noise
        inherited = inherit(choice.graphs, weights, choice.morphisms, rng, noise)
        to = self.context.paths.candidate(proposal)
        self.context.retry(
            lambda: save_checkpoint(to, choice.child, inherited, self.context.sync), str(to)
        )
        return self.context.retry(
            lambda: self._graphs.save(choice.child), f"the graph of {proposal}"
        )

    def _find_lineage(self) -> Lineage | None:
        """Return the lineage once this replica has recorded its dataset."""
        dataset = self.knowledge.dataset
        if self._lineage is None and dataset is not None:
            initial = initial_graph(self.context.config, dataset)
            most = MOST_GRAPHS if self.grown is None else None  # Other replicas handle their own.
            grown = self.grown or Grown()
            self._lineage = Lineage(self.knowledge.descent, initial, grown, most)
        return self._lineage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one search worker until its replica ends or asks it to stop."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica.search.worker")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--replica", required=True)
    parser.add_argument("--incarnation", type=Incarnation.parse, required=True)
    parser.add_argument("--worker", type=int, required=True)
    # Passed as an option: the replica may exit before this process can query its parent.
    parser.add_argument("--parent", type=int, required=True, help="the replica's process")
    options = parser.parse_args(arguments)
    os.nice(NICENESS)
    paths = RunPaths(options.run_dir)
    manifest = RunManifest.load(paths)
    stop = StopFlag(
        float("inf"),
        paths.stop_request,
        also=lambda: None if os.getppid() == options.parent else "the replica has exited",
    )
    stop.install()
    retry = BackoffRetry(lambda: stop.reason is not None)
    who = Identity(options.replica, options.incarnation)
    own = paths.search_journal(who.replica, options.worker, who.incarnation)
    with JournalWriter(own, retry=retry) as journal:
        context = ReplicaContext(
            config=manifest.config, paths=paths, who=who, journal=journal, stop=stop, retry=retry
        )
        history = RunHistory(paths, replica=who.replica, retry=retry)
        knowledge = RunKnowledge(who.replica, history, Digest(paths, retry))
        return serve(context, options.worker, os.getpid(), knowledge)


def serve(
    context: ReplicaContext,
    worker: int,
    pid: int,
    knowledge: RunKnowledge,
    grown: Grown | None = None,
) -> int:
    """Search until stopped, writing the first and last records; return the exit status."""
    search, journal, replica = context.config.search, context.journal, context.who.replica
    searcher = load_searcher(search)
    journal.append(SearchStarted(replica=replica, worker=worker, pid=pid, searcher=search.method))
    try:
        reason = SearchWorker(context, worker, searcher, knowledge, grown).work()
    except AIPerfError as error:
        journal.append(SearchEnded(reason=f"failed: {error}"))
        return error.exit_status
    except Exception as error:
        journal.append(SearchEnded(reason=f"failed: unexpected {type(error).__name__}: {error}"))
        raise  # The traceback goes to the replica's log.
    journal.append(SearchEnded(reason=reason))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
