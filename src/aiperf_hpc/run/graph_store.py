"""The graphs of a run, in files named by the hash of their content."""

from __future__ import annotations

from aiperf_hpc.errors import GraphError, restated
from aiperf_hpc.graph import Graph
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import Sync, to_stable_storage
from aiperf_hpc.untrusted.files import bytes_inside

MOST_GRAPH_BYTES = 8 * 2**20
"""Maximum size of a graph file: a graph has at most 20,000 nodes of 150 bytes each."""


class GraphStore:
    """Reads and writes ``candidates/<hash>.json``. Caches none: a run may have 100,000 graphs."""

    def __init__(self, paths: RunPaths, sync: Sync = to_stable_storage) -> None:
        self._paths = paths
        self._sync = sync

    def save(self, graph: Graph) -> str:
        """Store a graph and return its hash. Equal graphs share one file.

        A missing file of an already stored graph is written again.
        """
        path = self._paths.graph(graph.hash)
        if not path.exists():
            write_whole(path, graph.to_json(), self._sync)
        return graph.hash

    def load(self, graph_hash: str, expected: Graph | None = None) -> Graph:
        """Return a stored graph.

        Args:
            graph_hash: hash of the graph.
            expected: graph that is returned if the content is its JSON, without parsing it.

        Raises:
            GraphError: the file is missing or invalid, or its content has another hash.
        """
        path = self._paths.graph(graph_hash)
        with restated(f"cannot read the graph {path}", GraphError):
            text = bytes_inside(self._paths.root, path, MOST_GRAPH_BYTES).decode()
        if expected is not None and text == expected.to_json():
            graph = expected
        else:
            with restated(f"{path}", GraphError, caught=GraphError):
                graph = Graph.from_json(text)
        if graph.hash != graph_hash:
            raise GraphError(f"{path}: its content has the hash {graph.hash}")
        return graph
