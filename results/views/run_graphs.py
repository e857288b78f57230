"""Graphs of a run's trials: the stored ones, or regrown ones if a stored one is lost."""

from __future__ import annotations

import os
import time

from aiperf_hpc.errors import GraphError, MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.lineage import Lineage
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.liveness import LISTING_SECONDS
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.storage import no_retry
from aiperf_hpc.workloads.registry import initial_graph

LOOK_SECONDS = 60.0
"""Seconds between two listings of the stored graphs, of which there may be 100,000."""


class RunGraphs:
    """Loader of trained graphs, which regrows those whose files are lost."""

    def __init__(self, history: RunHistory, manifest: RunManifest, stored: GraphStore) -> None:
        self._history = history
        self._manifest = manifest
        self._stored = stored
        self._lineage: Lineage | None = None
        self._trials: dict[str, str] = {}
        """One trial of each graph, by the graph's hash."""
        self._listed: tuple[float, set[str]] | None = None
        self.regrown: dict[str, str] = {}
        """Defects of the stored graphs that were regrown, by hash."""

    def load(self, graph_hash: str) -> Graph:
        """Return a graph.

        Raises:
            GraphError: the stored graph is lost and cannot be regrown from the records.
        """
        try:
            return self._stored.load(graph_hash)
        except GraphError as error:
            graph = self._grown(graph_hash, error)
            self.regrown[graph_hash] = str(error)
            return graph

    @property
    def problems(self) -> list[str]:
        """Problems of stored graphs, and their handling."""
        paths = {graph: self._history.paths.graph(graph) for graph in self._history.graphs}
        found = {
            graph: f"{what}; it was grown again from the recorded morphisms"
            for graph, what in self.regrown.items()
        }
        for graph, path in paths.items():
            if graph not in found and not path.exists():
                found[graph] = f"the graph {path} is missing; no sample of it was executed"
        return [line for _, line in sorted(found.items())]

    def missing(self) -> list[str]:
        """Return one line if stored graphs are missing, from a listing that may be a minute old.

        Raises:
            StorageError: the graphs cannot be listed.
        """
        known = self._names()
        before = time.time() - LISTING_SECONDS
        trials = self._history.trials.values()
        gone = sorted({t.started.graph for t in trials if t.started_utc < before} - known)
        if not gone:
            return []
        path = self._history.paths.graph(gone[0])
        more = f" and {len(gone) - 1} more are" if len(gone) > 1 else " is"
        return [f"the stored graph {path}{more} gone; the report derives missing graphs again"]

    def _names(self) -> set[str]:
        now = time.monotonic()
        if self._listed is None or now - self._listed[0] >= LOOK_SECONDS:
            folder = str(self._history.paths.candidates)
            self._listed = now, no_retry(lambda: _graphs_in(folder), folder, "list")
        return self._listed[1]

    def _grown(self, graph_hash: str, error: GraphError) -> Graph:
        if graph_hash not in self._trials:
            self._trials = {t.started.graph: t.id for t in self._history.trials.values()}
        lineage, trial = self._lineage_once(), self._trials.get(graph_hash)
        if lineage is None or trial is None:
            raise error
        try:
            return lineage.graph(trial)
        except MorphismError as why:
            raise GraphError(f"{error}; it cannot be grown again either: {why}") from None

    def _lineage_once(self) -> Lineage | None:
        """Return the source of graphs, or None until a replica has recorded its dataset."""
        if self._lineage is None:
            replicas = self._history.replicas.values()
            found = (r.dataset for r in replicas if r.dataset is not None)
            dataset = next(found, self._manifest.dataset)
            if dataset is not None:
                initial = initial_graph(self._manifest.config, dataset)
                self._lineage = Lineage(self._history.descent, initial)
        return self._lineage


def _graphs_in(folder: str) -> set[str]:
    """Return the names of the graphs in a folder; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return {e.name.removesuffix(".json") for e in entries if e.name.endswith(".json")}
    except FileNotFoundError:
        return set()
