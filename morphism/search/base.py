"""The interface between search workers and searchers.

A searcher gets all observations and pending graphs of the run, and chooses a trained parent and the
morphisms to grow it by. Its state is only a cache: the searchers of all replicas share one history
and do not communicate otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, Self

import numpy as np

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import Morphism
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.run.records import Seen

VERSION = 1
"""Version of all searchers, to be increased with each change of their choices."""


class SearchSpaceExhaustedError(AIPerfError):
    """No new candidate within the limits was found."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A trained graph and its objective value.

    Raises:
        ValueError: the value is not a finite number.
    """

    trial: str
    graph: str
    """Hash of the graph."""
    value: float
    """Objective value, observed or (in warm-up) predicted; higher is better."""
    can_grow: bool
    """Whether its trained weights are available to children."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"trial {self.trial} has the value {self.value}: it has failed")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a candidate's cost. Every morphism increases all of them."""

    parameters: int
    """Trainable parameters."""
    forward_operations: int
    """Operations of one forward pass of one sample."""
    depth: int
    """Layers with a kernel on the longest path."""
    growth: float
    """Forward operations relative to the trained parent's."""
    fits: Callable[[Graph], bool] = lambda _: True
    """Returns whether training a graph is estimated to fit in memory."""

    @classmethod
    def of(cls, search: SearchConfig, initial: Graph, memory: MemoryLimit | None = None) -> Self:
        """Return the configured limits of a search from the graph ``initial``.

        The memory is that at the initial network's batch size. If the initial network only fits
        with a smaller batch size, that size is used. There is no limit if it does not fit at all,
        because no candidate would.
        """
        operations = int(search.max_operations_ratio * count(initial).forward)
        found = cls(search.max_parameters, operations, search.max_depth, search.max_growth)
        if memory is None:
            return found
        batch = memory.fitting_batch(initial, memory.config.training.batch_size)
        if not batch:
            return found
        return replace(found, fits=lambda graph: memory.needed(graph, batch) <= memory.bytes)

    def broken(self, graph: Graph, parent: Graph) -> str | None:
        """Return the limit that ``graph``, grown from ``parent``, exceeds, or None."""
        if graph.parameter_count > self.parameters:
            return "search.max_parameters"
        if graph.depth > self.depth:
            return "search.max_depth"
        operations = count(graph).forward
        if operations > self.forward_operations:
            return "search.max_operations_ratio"
        if operations > self.growth * _forward(parent):
            return "search.max_growth"
        if not self.fits(graph):
            return "engine.memory_limit_gib"
        return None


@lru_cache(maxsize=256)
def _forward(parent: Graph) -> int:
    return count(parent).forward


@dataclass(frozen=True, slots=True)
class View:
    """Input of a searcher."""

    observations: Sequence[Observation]
    pending: Mapping[str, str]
    """Hashes of pending graphs (proposed or in training), oldest first, with their proposals or
    trials."""
    graph: Callable[[str], Graph]
    """Returns the graph of a trial or proposal; graphs are regrown only on demand."""
    known: Set[str]
    """Hashes of all trained or proposed graphs of the run."""
    kinds: Counter[str]
    """Number of proposals of each kind of morphism."""
    bounds: Bounds
    seen: Seen | None = None
    """The records from which it was made, if it was made from a run's."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A searcher's choice of a candidate."""

    parent: str
    """Trial of the parent."""
    morphisms: tuple[Morphism, ...]
    """The steps from there, in order."""
    graphs: tuple[Graph, ...]
    """The parent's graph and the graph after each morphism, needed to derive the weights."""
    prediction: dict[str, float] = field(default_factory=dict)
    """The searcher's prediction by name, recorded as ``prediction`` in ``Proposed``."""
    learned: Seen | None = None
    """The records from which the searcher last estimated its parameters, if it has any."""

    @property
    def child(self) -> Graph:
        """The graph to train."""
        return self.graphs[-1]


class Searcher(Protocol):
    """Chooses candidates.

    A choice depends only on the view, the random numbers, and the view from which the searcher last
    estimated its parameters.
    """

    def begin_anew(self) -> None:
        """Forget all observations and parameters."""

    def learn(self, view: View) -> None:
        """Learn from the observations; the first time, estimate all parameters."""

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        """Return a candidate within the limits, a new one if possible.

        The prediction of a known graph contains ``repeated``.

        Raises:
            SearchSpaceExhaustedError: none was found; the message names the exceeded limits.
        """


def exhausted(graphs: int, parents: int, obstacles: Counter[str]) -> SearchSpaceExhaustedError:
    """Return the error with the number of evaluated graphs and the exceeded limits.

    Args:
        graphs: number of evaluated graphs.
        parents: number of possible parents; 0 if no weights are stored.
        obstacles: how often each limit was exceeded.
    """
    if not parents:
        return SearchSpaceExhaustedError("no trained graph with kept weights to grow from")
    reasons = ", ".join(f"{reason} ({n})" for reason, n in obstacles.most_common())
    rejected = f"; rejected by: {reasons}; raise these bounds" if reasons else ""
    return SearchSpaceExhaustedError(
        f"no candidate among {graphs} graphs grown from {parents} parents{rejected}"
    )
