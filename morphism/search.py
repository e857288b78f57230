"""Choosing what to grow next: the interface, and the simplest honest searcher.

A searcher sees what the whole run has observed and what is pending, and chooses a parent and a
morphism. It keeps no state, so that searchers of many replicas can work from one history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from aiperf_hpc.errors import AIPerfError, MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.morphs import MORPHISMS, Morphism
from aiperf_hpc.ops_counter.count import count


class SearchSpaceExhaustedError(AIPerfError):
    """No new candidate within the bounds was found."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A trained graph and how good it is."""

    trial: str
    accuracy: float
    """Reached or, in warm-up, predicted."""
    can_grow: bool
    """Whether its trained weights are there to be inherited."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a candidate may cost."""

    parameters: int
    """Trainable scalars."""
    forward_operations: int
    """Operations of one forward pass of one sample."""

    def allow(self, graph: Graph) -> bool:
        """Return whether ``graph`` is within the bounds."""
        return (
            graph.parameter_count <= self.parameters
            and count(graph).forward <= self.forward_operations
        )


@dataclass(frozen=True, slots=True)
class View:
    """What a searcher goes by."""

    observations: Sequence[Observation]
    graph: Callable[[str], Graph]
    """The graph of a trial; growing it again costs time, so not all of them are made."""
    known: Set[str]
    """Hashes of all graphs that were trained or proposed, here or elsewhere."""
    kinds: Counter[str]
    """How often each kind of morphism was proposed so far."""
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate."""

    parent: str
    """The trial that it grows from."""
    morphism: Morphism
    child: Graph
    belief: dict[str, float] = field(default_factory=dict)
    """What the searcher expected of it, for the record."""


class Searcher(Protocol):
    """Chooses candidates."""

    @property
    def name(self) -> str: ...

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        """Return a candidate within the bounds; a new one, if one is found.

        Raises:
            SearchSpaceExhaustedError: none was found; the message says where it looked.
        """
        ...


NEAR_ATTEMPTS = 6
"""At the best graph, and at any; each tries every kind of morphism."""


@dataclass(frozen=True, slots=True)
class GreedySearcher:
    """Grows the best graph, or with probability ``exploration`` any trained one.

    The kind of morphism is the one proposed least often so far, so that all kinds are used.

    A graph has some hundreds of neighbours. A thousand replicas that all begin with the same
    graph use them up before any of them is trained. Then one is proposed again: a replica that
    trains what another one trains, from other weights, is better than one that does nothing.
    """

    exploration: float
    attempts: int = 64
    name: str = "greedy"

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        """Return the first draw that is new and within the bounds; else one that is known.

        A known one says so: its belief has ``repeated``.
        """
        parents = [o for o in view.observations if o.can_grow]
        if not parents:
            raise SearchSpaceExhaustedError("no trained graph with kept weights to grow from")
        best = max(parents, key=lambda o: o.accuracy)
        tried: Counter[str] = Counter()
        spare: Choice | None = None
        for attempt in range(self.attempts):
            # Later attempts look at all parents: the best one's neighbours may be used up.
            explore = attempt >= NEAR_ATTEMPTS or rng.random() < self.exploration
            parent = parents[int(rng.integers(len(parents)))] if explore else best
            graph = view.graph(parent.trial)
            tried[graph.hash] += 1
            if tried[graph.hash] > NEAR_ATTEMPTS:
                continue  # Many trials may have trained one graph.
            for kind in _rarest_first(view.kinds, rng):
                choice = _try(parent, graph, kind, rng)
                if choice is None:
                    continue
                new = choice.child.hash not in view.known
                if (new or spare is None) and view.bounds.allow(choice.child):
                    if new:
                        return choice
                    spare = choice
        if spare is not None:
            return replace(spare, belief={**spare.belief, "repeated": 1.0})
        raise SearchSpaceExhaustedError(
            f"no candidate in {self.attempts} attempts from {len(parents)} parents within "
            f"{view.bounds.parameters:,} parameters and "
            f"{view.bounds.forward_operations:,} operations a sample; raise "
            "search.max_parameters or search.max_operations_ratio"
        )


def _rarest_first(kinds: Counter[str], rng: np.random.Generator) -> Iterable[str]:
    order = rng.permutation(sorted(MORPHISMS))
    return sorted((str(kind) for kind in order), key=lambda kind: kinds[kind])


def _try(parent: Observation, graph: Graph, kind: str, rng: np.random.Generator) -> Choice | None:
    try:
        morphism = MORPHISMS[kind].sample(graph, rng)
    except MorphismError:
        return None  # This graph has no place for this kind; the caller tries the next one.
    child = _child(graph, morphism)
    return Choice(parent.trial, morphism, child, {"parent_accuracy": parent.accuracy})


@lru_cache(maxsize=256)
def _child(graph: Graph, morphism: Morphism) -> Graph:
    """Return the child; drawn again and again where nearly all of a graph's are known."""
    return morphism.child(graph)
