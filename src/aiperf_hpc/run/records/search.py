"""The records of search workers and of the search digest, which they read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aiperf_hpc.run.clocks import Time
from aiperf_hpc.run.records.base import Event
from aiperf_hpc.trial import Hyperparameters, Morphisms, Value
from aiperf_hpc.untrusted.bounds import Count, Name


class SearchStarted(Event):
    """A search worker started."""

    replica: Name
    worker: int
    pid: int
    searcher: str


class Seen(Value):
    """The records that a search worker had read, from which a choice can be repeated."""

    version: Count
    """Version of the searchers; equal versions choose alike."""
    digest_lines: Count
    """Number of lines of the search digest."""
    journal_lines: dict[str, Count]
    """Number of lines of each journal of the replica, by its path below the replica's folder."""
    malformed: Count = 0
    """Number of malformed or misplaced lines among them."""
    missing: tuple[str, ...] = ()
    """Trials whose weights were found missing, although no record that was read says so."""


class Proposed(Event):
    """A candidate was stored: its graph, and the weights inherited from its parent."""

    proposal: Name
    graph: Name
    parent: str
    """The trial that it grows from."""
    morphisms: Morphisms
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    """The seed of the random choices of the morphisms and the weights."""
    seconds: Time
    prediction: dict[str, float] = {}
    """The searcher's prediction, e.g. mean, deviation and acquisition."""
    seen: Seen | None = None
    """What the searcher had read; None in runs of earlier versions."""
    learned: Seen | None = None
    """What it had read when it last estimated its parameters; None if that was for this choice."""


class SearchFailed(Event):
    """A candidate could not be made as intended; the worker continues."""

    reason: str
    lost_parent: str | None = None
    """The trial whose trained weights are missing or damaged; it can no longer be a parent."""


class SearchEnded(Event):
    """The search worker shut down cleanly."""

    reason: str


class TrialSummary(Event):
    """A trial as search workers need it; a later summary of the same trial replaces it."""

    trial: str
    replica: Name
    graph: str
    parent: str | None
    morphisms: Morphisms
    ended: bool
    objective: float | None
    """The objective value for the search after the end of the trial: the predicted accuracy or, if
    none was predicted, the best observed quality."""
    checkpoint: bool
    """Whether its trained weights are available."""
    hyperparameters: Hyperparameters | None = None
    """Its hyperparameters; None in digests of earlier versions."""


class ProposalSummary(Event):
    """Another replica's proposal as search workers need it."""

    proposal: str
    replica: Name
    graph: str
    parent: str
    morphisms: Morphisms
