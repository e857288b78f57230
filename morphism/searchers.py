"""The searchers by the names that a configuration gives them."""

from __future__ import annotations

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.morphism.greedy import GreedySearcher
from aiperf_hpc.morphism.guided import GuidedSearcher
from aiperf_hpc.morphism.search import Searcher


def load_searcher(search: SearchConfig) -> Searcher:
    """Return the searcher that ``search`` asks for."""
    match search.method:
        case "guided":
            return GuidedSearcher(search.confidence, search.expansions, search.levels)
        case "greedy":
            return GreedySearcher(search.exploration)
