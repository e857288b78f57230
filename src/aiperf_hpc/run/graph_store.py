"""The graphs of a run: files named by the hash of what is in them."""

from __future__ import annotations

from aiperf_hpc.errors import GraphError, reason_of
from aiperf_hpc.graph import Graph
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import Sync, to_stable_storage
from aiperf_hpc.untrusted.files import bytes_inside

MOST_GRAPH_BYTES = 8 * 2**20
"""The largest graph: a node takes 150 bytes, and a graph has 20,000 at most."""


class GraphStore:
    """Reads and writes ``candidates/<hash>.json``. Keeps none: a run may have 100,000 of them."""

    def __init__(self, paths: RunPaths, sync: Sync = to_stable_storage) -> None:
        self._paths = paths
        self._sync = sync

    def save(self, graph: Graph) -> str:
        """Store a graph and return its hash. Equal graphs share one file.

        One that has gone since it was stored is stored again.
        """
        path = self._paths.graph(graph.hash)
        if not path.exists():
            write_whole(path, graph.to_json(), self._sync)
        return graph.hash

    def load(self, graph_hash: str) -> Graph:
        """Return a stored graph.

        Raises:
            GraphError: there is none, it is not valid, or its content has another hash.
        """
        path = self._paths.graph(graph_hash)
        try:
            content = bytes_inside(self._paths.root, path, MOST_GRAPH_BYTES)
            graph = Graph.from_json(content.decode())
        except (OSError, UnicodeDecodeError) as error:
            raise GraphError(f"cannot read the graph {path}: {reason_of(error)}") from None
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from None
        if graph.hash != graph_hash:
            raise GraphError(f"{path}: its content has the hash {graph.hash}")
        return graph
