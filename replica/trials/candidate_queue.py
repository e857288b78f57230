"""The candidate queue: candidates of this replica's search workers on the shared directory."""

from __future__ import annotations

from aiperf_hpc.errors import CheckpointError
from aiperf_hpc.morphism.operators.morphisms import from_data
from aiperf_hpc.morphism.weights.weight_file import load_checkpoint
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.training.trial import Candidate
from aiperf_hpc.run.history import Proposal, RunHistory
from aiperf_hpc.run.liveness import LISTING_SECONDS
from aiperf_hpc.run.records import ProposalRejected


class CandidateQueue:
    """Candidate queue of a replica, first in, first out."""

    def __init__(self, context: ReplicaContext, history: RunHistory) -> None:
        self._context = context
        self._history = history

    def take(self) -> Candidate | None:
        """Return the oldest candidate that can be loaded, or None if the queue is empty.

        A candidate whose file is damaged, or missing for longer than the file system's listing
        may lag, is rejected in the journal.
        """
        self._history.refresh(self._context.replica)
        for proposal in self._history.pending(self._context.replica):
            path = self._context.paths.candidate(proposal.id)
            there = self._context.exists(path)
            if not there and self._context.clock.utc() - proposal.utc < LISTING_SECONDS:
                continue
            try:
                return self._load(proposal)
            except CheckpointError as error:
                self._context.journal.append(
                    ProposalRejected(proposal=proposal.id, reason=str(error))
                )
        return None

    def _load(self, proposal: Proposal) -> Candidate:
        proposed = proposal.proposed
        path = self._context.paths.candidate(proposal.id)
        warnings: list[str] = []
        graph, weights = load_checkpoint(path, self._context.retry, warnings.append)
        if graph.hash != proposed.graph:
            raise CheckpointError(
                f"the candidate {proposal.id} holds the graph {graph.hash}, not {proposed.graph}"
            )
        for problem in warnings:
            self._context.report(path, problem, remedy="the candidate is used")
        steps = tuple(from_data(data) for data in proposed.morphisms)
        return Candidate(graph, weights, proposed.parent, proposal.id, steps)

    def discard(self, candidate: Candidate) -> None:
        """Delete the stored weights of a trained candidate; its graph is kept."""
        if candidate.proposal is not None:
            self._context.delete(self._context.paths.candidate(candidate.proposal))
