"""A search worker: keeps the replica's stock of candidates full while the trainer trains.

    python -m aiperf_hpc.replica.search_worker RUN_DIR --replica r0 --worker 0

It works at low priority, reads the journals of all replicas, and writes one journal of its own.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import AIPerfError, CheckpointError
from aiperf_hpc.graph_store import GraphStore
from aiperf_hpc.history import RunHistory
from aiperf_hpc.journal import JournalWriter
from aiperf_hpc.manifest import RunManifest
from aiperf_hpc.morphism.lineage import Lineage, initial_graph
from aiperf_hpc.morphism.search import (
    Bounds,
    Choice,
    GreedySearcher,
    Observation,
    Searcher,
    SearchSpaceExhaustedError,
    View,
)
from aiperf_hpc.morphism.weights import load_checkpoint, save_checkpoint
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.paths import Incarnation, RunPaths
from aiperf_hpc.records import Proposed, SearchEnded, SearchFailed, SearchStarted
from aiperf_hpc.replica.names import name_of, seed_of
from aiperf_hpc.replica.stopping import StopFlag
from aiperf_hpc.storage import Patience, Persist

POLL_SECONDS = 0.2
RETRY_SECONDS = 5.0
NICENESS = 10


class _ParentGoneError(AIPerfError):
    """The weights of a trial are not there."""

    def __init__(self, parent: str) -> None:
        super().__init__(f"the weights of trial {parent} are not there")
        self.parent = parent


class SearchWorker:
    """Proposes candidates whenever fewer than ``stock`` of them wait."""

    def __init__(
        self,
        *,
        manifest: RunManifest,
        paths: RunPaths,
        replica: str,
        incarnation: Incarnation,
        worker: int,
        searcher: Searcher,
        journal: JournalWriter,
        persist: Persist,
        clock: Clock,
    ) -> None:
        self._config, self._paths = manifest.config, paths
        name = name_of(replica, incarnation)
        self._seed_parts = (manifest.config.seed, name, "search", worker)
        self._replica, self._name = replica, f"{name}-w{worker}"
        self._searcher, self._journal, self._persist = searcher, journal, persist
        self._clock = clock
        self._history = RunHistory(paths)
        self._graphs = GraphStore(paths)
        self._lineage: Lineage | None = None
        self._gone: set[str] = set()
        """Trials whose weights are no longer there, whatever their records say."""
        self._made = self._made_before()

    def _made_before(self) -> int:
        """Return how many candidates a worker of this name made before it was replaced."""
        self._history.refresh()
        made = [
            int(proposal.rpartition("-")[2])
            for proposal in self._history.proposals
            if proposal.rpartition("-")[0] == self._name
        ]
        return max(made, default=0)

    def work(self, stop: StopFlag) -> str:
        """Propose until asked to stop; return why."""
        while stop.reason is None:
            self._clock.sleep(self.step())
        return stop.reason

    def step(self) -> float:
        """Propose one candidate if one is needed; return how many seconds to rest."""
        # As long as the stock is full, only this replica's own journals are of interest.
        self._history.refresh(self._replica)
        if len(self._history.pending(self._replica)) >= self._config.search.stock:
            return POLL_SECONDS
        self._history.refresh()
        view = self._view()
        if not any(observation.can_grow for observation in view.observations):
            return POLL_SECONDS
        try:
            self._propose(view)
        except _ParentGoneError as error:
            # Dropped since its record was read, and on NFS that is seen a minute later.
            self._gone.add(error.parent)
        except (SearchSpaceExhaustedError, CheckpointError) as error:
            self._journal.append(SearchFailed(reason=str(error)))
            return RETRY_SECONDS
        return 0.0

    def _propose(self, view: View) -> None:
        began = self._clock.monotonic()
        self._made += 1
        seed = seed_of(*self._seed_parts, self._made)
        rng = np.random.default_rng(seed)
        choice = self._searcher.choose(view, rng)
        proposal = f"{self._name}-{self._made}"
        graph_hash = self._store(choice, proposal, rng)
        self._journal.append(
            Proposed(
                proposal=proposal,
                graph=graph_hash,
                parent=choice.parent,
                morphism=choice.morphism.to_data(),
                seed=seed,
                seconds=self._clock.monotonic() - began,
                belief=choice.belief,
            )
        )

    def _store(self, choice: Choice, proposal: str, rng: np.random.Generator) -> str:
        """Write the candidate's graph and weights; what is recorded later is there already."""
        parent = self._history.trials[choice.parent]
        path = self._paths.trained(parent.replica, parent.id)
        if not path.exists():
            raise _ParentGoneError(parent.id)
        graph, weights = load_checkpoint(path)
        child = choice.morphism.child(graph)
        inherited = choice.morphism.weights(graph, weights, rng)
        to = self._paths.candidate(proposal)
        self._persist(lambda: save_checkpoint(to, child, inherited), str(to))
        return self._persist(lambda: self._graphs.save(child), f"the graph of {proposal}")

    def _view(self) -> View:
        history, search = self._history, self._config.search
        lineage = self._lineage_once()
        if lineage is None:
            return View([], frozenset(), Counter(), Bounds(0, 0))
        observations = [
            Observation(
                trial.id,
                lineage.graph(trial.id),
                trial.merit,
                trial.has_checkpoint and trial.id not in self._gone,
            )
            for trial in history.trials.values()
            if trial.state.ended and trial.merit is not None
        ]
        proposals = [p.proposed for p in history.proposals.values()]
        most = search.max_operations_ratio * count(lineage.initial).forward
        return View(
            observations,
            frozenset(history.graphs | {p.graph for p in proposals}),
            Counter(p.morphism["kind"] for p in proposals),
            Bounds(search.max_parameters, int(most)),
        )

    def _lineage_once(self) -> Lineage | None:
        """Return the lineage once this replica has said what its dataset is."""
        replica = self._history.replicas.get(self._replica)
        if self._lineage is None and replica is not None and replica.dataset is not None:
            initial = initial_graph(self._config.model, replica.dataset)
            self._lineage = Lineage(self._history, initial)
        return self._lineage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one search worker until its replica ends or asks it to stop."""
    parser = argparse.ArgumentParser(prog="aiperf_hpc.replica.search_worker")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--replica", required=True)
    parser.add_argument("--incarnation", type=Incarnation.parse, required=True)
    parser.add_argument("--worker", type=int, required=True)
    options = parser.parse_args(arguments)
    os.nice(NICENESS)
    paths = RunPaths(options.run_dir)
    manifest = RunManifest.load(paths)
    replica_pid = os.getppid()
    stop = StopFlag(
        float("inf"),
        paths.stop_request,
        also=lambda: None if os.getppid() == replica_pid else "the replica is gone",
    )
    stop.install()
    searcher = GreedySearcher(manifest.config.search.exploration)
    own = paths.search_journal(options.replica, options.worker, options.incarnation)
    persist = Patience(lambda: stop.reason is not None)
    with JournalWriter(own, persist=persist) as journal:
        journal.append(
            SearchStarted(
                replica=options.replica,
                worker=options.worker,
                pid=os.getpid(),
                searcher=searcher.name,
            )
        )
        worker = SearchWorker(
            manifest=manifest,
            paths=paths,
            replica=options.replica,
            incarnation=options.incarnation,
            worker=options.worker,
            searcher=searcher,
            journal=journal,
            persist=persist,
            clock=SYSTEM,
        )
        try:
            reason = worker.work(stop)
        except AIPerfError as error:
            journal.append(SearchEnded(reason=f"failed: {error}"))
            return error.exit_status
        except Exception as error:
            journal.append(
                SearchEnded(reason=f"failed: unexpected {type(error).__name__}: {error}")
            )
            raise  # The traceback goes to the replica's log.
        journal.append(SearchEnded(reason=reason))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
