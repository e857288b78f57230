"""Greedy searcher: grows the best graph, or sometimes a random one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Morphism
from aiperf_hpc.morphism.search.base import Choice, Observation, View, exhausted

NEAR_ATTEMPTS = 6
"""Attempts with the best graph and with any graph; each tries every kind of morphism."""


@dataclass(frozen=True, slots=True)
class GreedySearcher:
    """Grows the best graph, or with probability ``random_parent_probability`` any trained one.

    The kind of morphism is the one proposed least often so far, so that all kinds are used.

    A graph has a few hundred neighbors. A thousand replicas that start from the same graph exhaust
    them before any is trained. Known graphs are then proposed again, because training one from
    other weights is better than an idle replica.
    """

    random_parent_probability: float
    attempts: int = 64

    def begin_anew(self) -> None:
        """Forget nothing: it has no parameters."""

    def learn(self, view: View) -> None:
        """Learn nothing: it has no parameters."""

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        """Return the first sample that is new and within the limits, or else a known one.

        The prediction of a known graph contains ``repeated``.
        """
        parents = [o for o in view.observations if o.can_grow]
        obstacles: Counter[str] = Counter()
        if not parents:
            raise exhausted(0, 0, obstacles)
        best = max(parents, key=lambda o: o.value)
        tried: Counter[str] = Counter()
        made = 0
        spare: Choice | None = None
        for attempt in range(self.attempts):
            # Later attempts use all parents, because the best one's neighbors may be exhausted.
            explore = attempt >= NEAR_ATTEMPTS or rng.random() < self.random_parent_probability
            parent = parents[int(rng.integers(len(parents)))] if explore else best
            tried[parent.graph] += 1
            if tried[parent.graph] > NEAR_ATTEMPTS:
                continue  # Many trials may have trained one graph.
            graph = view.graph(parent.trial)
            for kind in _rarest_first(view.kinds, rng):
                choice = _try(parent, graph, kind, rng)
                if choice is None:
                    obstacles[f"no place for {kind}"] += 1
                    continue
                made += 1
                new = choice.child.hash not in view.known
                if not new and spare is not None:
                    continue
                broken = view.bounds.broken(choice.child, graph)
                if broken is not None:
                    obstacles[broken] += 1
                elif new:
                    return choice
                else:
                    spare = choice
        if spare is not None:
            return replace(spare, prediction={**spare.prediction, "repeated": 1.0})
        raise exhausted(made, len(tried), obstacles)


def _rarest_first(kinds: Counter[str], rng: np.random.Generator) -> Iterable[str]:
    order = rng.permutation(sorted(MORPHISMS))
    return sorted((str(kind) for kind in order), key=lambda kind: kinds[kind])


def _try(parent: Observation, graph: Graph, kind: str, rng: np.random.Generator) -> Choice | None:
    try:
        morphism = MORPHISMS[kind].sample(graph, rng)
    except MorphismError:
        return None  # No morphism of this kind applies; the caller tries the next kind.
    graphs = graph, _child(graph, morphism)
    return Choice(parent.trial, (morphism,), graphs, {"parent_accuracy": parent.value})


@lru_cache(maxsize=256)
def _child(graph: Graph, morphism: Morphism) -> Graph:
    """Return a child, resampled while the sampled graphs are known."""
    return morphism.child(graph)
