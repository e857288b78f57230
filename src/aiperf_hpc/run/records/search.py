"""The records of search workers: their starts and ends, and the candidates that they propose."""

from __future__ import annotations

from aiperf_hpc.run.clocks import Time
from aiperf_hpc.run.records.base import Event
from aiperf_hpc.trial import Morphisms
from aiperf_hpc.untrusted.bounds import Name


class SearchStarted(Event):
    """A search worker started."""

    replica: Name
    worker: int
    pid: int
    searcher: str


class Proposed(Event):
    """A candidate was stored: its graph, and the weights inherited from its parent."""

    proposal: Name
    graph: Name
    parent: str
    """The trial that it grows from."""
    morphisms: Morphisms
    seed: int
    """The seed of the random choices of the morphisms and the weights."""
    seconds: Time
    prediction: dict[str, float] = {}
    """The searcher's prediction, e.g. mean, deviation and acquisition."""


class SearchFailed(Event):
    """A candidate could not be made as intended; the worker continues."""

    reason: str
    lost_parent: str | None = None
    """The trial whose trained weights are missing or damaged; it can no longer be a parent."""


class SearchEnded(Event):
    """The search worker shut down cleanly."""

    reason: str
