"""Searchers, which choose the next candidate."""

from __future__ import annotations

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.morphism.search.base import Searcher
from aiperf_hpc.morphism.search.greedy import GreedySearcher


def load_searcher(search: SearchConfig) -> Searcher:
    """Return the configured searcher. Raises ConfigError if the configuration has no search."""
    match search.method:
        case "guided":
            # Imports SciPy, which trainers do not need.
            from aiperf_hpc.morphism.search.guided import GuidedSearcher

            return GuidedSearcher(
                search.kappa, search.acquisition_evaluations, search.max_morphisms
            )
        case "greedy":
            return GreedySearcher(search.random_parent_probability)
        case "fixed":
            raise ConfigError("search.method=fixed generates no candidates; use guided or greedy")
