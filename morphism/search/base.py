"""Choosing what to grow next: the interface between search workers and searchers.

A searcher sees what the whole run has observed and what is pending, and chooses a trained parent
and the morphisms that grow it. What it remembers between calls is a cache: searchers of many
replicas work from one history without talking to each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, Self

import numpy as np

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.base import Morphism
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import MemoryLimit


class SearchSpaceExhaustedError(AIPerfError):
    """No new candidate within the bounds was found."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A trained graph and how good it is.

    Raises:
        ValueError: the value is not a finite number; what has none was not observed.
    """

    trial: str
    graph: str
    """The hash of the trained graph."""
    value: float
    """The objective value, of which more is better: reached or, in warm-up, predicted."""
    can_grow: bool
    """Whether its trained weights are there to be inherited."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"trial {self.trial} has the value {self.value}: it has failed")


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The memory available to a training."""

    limit: int
    """Bytes."""
    needed: Callable[[Graph], int]
    """Return the estimated bytes of training a graph."""

    @classmethod
    def of(cls, memory: MemoryLimit, initial: Graph) -> Self | None:
        """Return the bound on candidates: a rank's memory, at the initial network's batch size.

        If the initial network fits only in smaller batches, candidates are bounded at those. None
        if it fits at no batch size, since then no candidate would.
        """
        batch = memory.fitting_batch(initial, memory.config.training.batch_size)
        return cls(memory.bytes, lambda graph: memory.needed(graph, batch)) if batch else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a candidate may cost. All of it grows with every morphism."""

    parameters: int
    """Trainable scalars."""
    forward_operations: int
    """Operations of one forward pass of one sample."""
    depth: int
    """Layers with a kernel on the longest path."""
    growth: float
    """Forward operations over those of the trained parent."""
    memory: MemoryBound | None = None

    @classmethod
    def of(cls, search: SearchConfig, initial: Graph, memory: MemoryBound | None = None) -> Self:
        """Return the configured bounds of a search that begins with ``initial``."""
        operations = int(search.max_operations_ratio * count(initial).forward)
        return cls(search.max_parameters, operations, search.max_depth, search.max_growth, memory)

    def broken(self, graph: Graph, parent: Graph) -> str | None:
        """Return the setting that keeps ``graph``, grown from ``parent``, out; None if none."""
        if graph.parameter_count > self.parameters:
            return "search.max_parameters"
        if graph.depth > self.depth:
            return "search.max_depth"
        operations = count(graph).forward
        if operations > self.forward_operations:
            return "search.max_operations_ratio"
        if operations > self.growth * _forward(parent):
            return "search.max_growth"
        if self.memory is not None and self.memory.needed(graph) > self.memory.limit:
            return "engine.memory_gib"
        return None


@lru_cache(maxsize=256)
def _forward(parent: Graph) -> int:
    return count(parent).forward


@dataclass(frozen=True, slots=True)
class View:
    """What a searcher goes by."""

    observations: Sequence[Observation]
    pending: Mapping[str, str]
    """Hashes of graphs that are proposed or in training and not yet observed, oldest first, and
    the proposal or trial that has them."""
    graph: Callable[[str], Graph]
    """The graph of a trial or proposal; growing it takes time, so not all of them are made."""
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
    morphisms: tuple[Morphism, ...]
    """The steps from there, in order."""
    graphs: tuple[Graph, ...]
    """The parent's, and what each step makes of the one before it: weights need all of them."""
    prediction: dict[str, float] = field(default_factory=dict)
    """What the searcher expects of it and why, by name: ``belief`` in the record ``Proposed``."""

    @property
    def child(self) -> Graph:
        """The graph to train."""
        return self.graphs[-1]


class Searcher(Protocol):
    """Chooses candidates."""

    @property
    def name(self) -> str: ...

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        """Return a candidate within the bounds; a new one, if one is found.

        One that is known already says so: its prediction has ``repeated``.

        Raises:
            SearchSpaceExhaustedError: none was found; the message says where it looked and
                which bounds were in the way.
        """
        ...


def exhausted(graphs: int, parents: int, obstacles: Counter[str]) -> SearchSpaceExhaustedError:
    """Return the error that says what was looked at and what kept candidates out.

    Args:
        graphs: that were made.
        parents: that they could grow from; none where no weights are kept.
        obstacles: how often each was in the way.
    """
    if not parents:
        return SearchSpaceExhaustedError("no trained graph with kept weights to grow from")
    reasons = ", ".join(f"{reason} ({n})" for reason, n in obstacles.most_common())
    return SearchSpaceExhaustedError(
        f"no candidate among {graphs} graphs grown from {parents} parents; in the way: "
        f"{reasons or 'nothing'}; raise the bounds named here"
    )
