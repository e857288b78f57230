"""The searchers and their bounds as a configuration asks for them."""

from __future__ import annotations

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.search.base import Bounds, MemoryBound, Searcher
from aiperf_hpc.morphism.search.greedy import GreedySearcher
from aiperf_hpc.morphism.search.guided import GuidedSearcher
from aiperf_hpc.ops_counter.count import count


def load_searcher(search: SearchConfig) -> Searcher:
    """Return the searcher that ``search`` asks for. Raises ConfigError when it asks for none."""
    match search.method:
        case "guided":
            return GuidedSearcher(search.confidence, search.expansions, search.levels)
        case "greedy":
            return GreedySearcher(search.exploration)
        case "fixed":
            raise ConfigError("search.method=fixed grows nothing; write guided or greedy")


def bounds_of(search: SearchConfig, initial: Graph, memory: MemoryBound | None = None) -> Bounds:
    """Return what candidates may cost that grow from ``initial``."""
    return Bounds(
        search.max_parameters,
        int(search.max_operations_ratio * count(initial).forward),
        search.max_depth,
        search.max_growth,
        memory,
    )
