"""Comparison of a trial's graph with the search's proposal of it, for both kinds of rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiperf_hpc.run.history import Proposal
from aiperf_hpc.run.records import TrialStarted

RESIZED: Final = "kernel"
"""Kind of the morphism that applies the kernel size chosen for a trial."""


def unlike_proposal(started: TrialStarted, proposal: Proposal) -> Iterator[str]:
    """Yield the differences of a trial's graph from its proposal, except for kernel sizes."""
    proposed, kernel = proposal.proposed, started.hyperparameters.kernel_size
    if started.parent != proposed.parent:
        yield f"it grew from {started.parent}, its proposal from {proposed.parent}"
    own = started.morphisms[: len(proposed.morphisms)]
    more = started.morphisms[len(proposed.morphisms) :]
    resized = all(
        step.get("kind") == RESIZED and step.get("kernel") == kernel is not None for step in more
    )
    if own != proposed.morphisms or not resized:
        yield f"its morphisms are not those of {proposal.id}"
    elif not more and started.graph != proposed.graph:
        yield f"its graph is not that of {proposal.id}"
