"""The records of files that no process continues: journal digests and the search digest."""

from __future__ import annotations

from typing import Literal

from aiperf_hpc.run.records.base import Event
from aiperf_hpc.trial import Hyperparameters, Morphisms
from aiperf_hpc.untrusted.bounds import Name


class JournalDigestsRecord(Event):
    """The length and the SHA-256 of each journal, as far as it had been read.

    Journals are identified by numbers, in the order in which they were first named. The primary's
    own is not among them, since it holds the record of this digest.
    """

    type: Literal["journal_digests"] = "journal_digests"
    new_primary: bool
    """Whether a new primary begins here, so that numbers and bytes count from zero."""
    new_journals: tuple[str, ...]
    """The paths of journals that are new in this record, below the run directory."""
    appended_bytes: tuple[int, ...]
    """Bytes appended to each journal since the previous record."""
    digest_prefixes: str
    """The first ``PREFIX_DIGITS`` digits of the digest of each journal that has grown,
    concatenated: they identify a journal that was changed."""
    sha256: str
    """SHA-256 over the digests of the journals that have grown (``run/journal_digest.py``)."""


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
