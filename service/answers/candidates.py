"""Candidates of the search, and the tree of trained networks."""

from __future__ import annotations

import heapq
from enum import StrEnum
from typing import Literal

from pydantic import Field

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import Proposal, RunHistory, Trial
from aiperf_hpc.service.answers.base import Answer, Limit, Page, PageQuestion, Question
from aiperf_hpc.trial import MorphismData


class CandidateState(StrEnum):
    """The state of a candidate."""

    WAITING = "waiting"
    """The candidate is queued for training."""
    TRAINED = "trained"
    """A trial trains or has trained the candidate."""
    REJECTED = "rejected"
    """The candidate could not be loaded."""


class CandidateStatus(Answer):
    """A network that the search generated."""

    id: str
    """Name of the candidate."""
    replica: str
    """Replica whose search worker generated the candidate."""
    state: CandidateState
    """State of the candidate."""
    reason: str
    """Reason for the rejection; empty if it was not rejected."""
    trial: str | None
    """First trial that trained the candidate."""
    graph: str
    """Hash of the candidate's graph."""
    parent: str
    """Trial of the parent network."""
    morphisms: tuple[MorphismData, ...]
    """Morphisms applied to the parent network, in order."""
    elapsed_seconds: float
    """Seconds from the run's start until the candidate was ready."""
    search_seconds: float
    """Seconds spent on generating the candidate."""
    prediction: dict[str, float]
    """Predictions of the searcher, such as mean, deviation and acquisition."""


class Candidates(Page):
    """A page of candidates, latest first."""

    candidates: tuple[CandidateStatus, ...]
    """Candidates, latest first."""


class CandidatesQuestion(PageQuestion):
    """Return a page of the networks that the search generated, latest first."""

    state: CandidateState | None = None
    """Only candidates in this state."""
    replica: str | None = Field(None, examples=["r0"])
    """Only candidates of this replica."""

    def __call__(self, view: RunView) -> Candidates:
        history = view.history
        trials = _trials_by_proposal(history)
        found = [
            proposal
            for proposal in history.proposals.values()
            if self.replica in (None, proposal.replica)
            and self.state in (None, _state(history, proposal, trials))
        ]
        found.sort(key=lambda p: (p.utc, p.id), reverse=True)
        page = found[self.offset : self.offset + self.limit]
        return Candidates(
            total=len(found),
            offset=self.offset,
            limit=self.limit,
            candidates=tuple(_status(history, proposal, trials) for proposal in page),
        )


def _trials_by_proposal(history: RunHistory) -> dict[str, str]:
    trials = reversed(history.trials.values())  # Keep the first trial of each proposal.
    return {t.started.proposal: t.id for t in trials if t.started.proposal is not None}


def _state(history: RunHistory, proposal: Proposal, trials: dict[str, str]) -> CandidateState:
    if proposal.id in history.rejected:
        return CandidateState.REJECTED
    return CandidateState.TRAINED if proposal.id in trials else CandidateState.WAITING


def _status(history: RunHistory, proposal: Proposal, trials: dict[str, str]) -> CandidateStatus:
    proposed = proposal.proposed
    return CandidateStatus(
        **CandidateStatus.fields_from(proposal),
        **CandidateStatus.fields_from(proposed),
        state=_state(history, proposal, trials),
        reason=history.rejected.get(proposal.id, ""),
        trial=trials.get(proposal.id),
        elapsed_seconds=proposal.utc - (history.origin_utc or proposal.utc),
        search_seconds=proposed.seconds,
    )


class TreeNode(Answer):
    """A trial in the tree of networks."""

    id: str
    """Name of the trial."""
    parent: str | None
    """Trial of the parent network; null for the initial network."""
    replica: str
    """Replica that executed the trial."""
    round: int
    """Round of the replica."""
    state: str
    """State of the trial."""
    started_seconds: float
    """Seconds from the run's start to the start of the trial."""
    quality: float | None
    """Best quality of the trial's evaluations, in the run's metric."""
    parameters: int
    """Number of trainable parameters of the network."""
    morphism_kinds: tuple[str, ...]
    """Kinds of the morphisms from the parent network, in order."""


class Tree(Answer):
    """Tree of the trained networks: the latest trials and all their ancestors."""

    metric: str
    """Name of the run's quality metric."""
    goal: Literal["maximize", "minimize"]
    """Whether a higher or a lower quality is better."""
    total: int
    """Total number of trials."""
    nodes: tuple[TreeNode, ...]
    """Trials in order of their start; each one's parent is included if the run has it."""


class TreeQuestion(Question):
    """Return the tree of networks: the latest trials and all their ancestors."""

    limit: Limit = 2000
    """Number of latest trials in the tree."""
    trial: str | None = Field(None, examples=["r0-t001"])
    """Trial that is also in the tree, with its ancestors."""

    def __call__(self, view: RunView) -> Tree:
        trials = view.history.trials
        latest = heapq.nlargest(self.limit, trials.values(), key=lambda t: t.started_utc)
        if self.trial in trials:
            latest.append(trials[self.trial])
        found = {trial.id: trial for trial in latest}
        for trial in latest:
            while (parent := trials.get(trial.started.parent or "")) and parent.id not in found:
                found[parent.id] = trial = parent
        start = view.history.origin_utc
        nodes = sorted(found.values(), key=lambda t: (t.started_utc, t.id))
        return Tree(
            metric=view.quality_metric.name,
            goal=view.quality_metric.goal,
            total=len(trials),
            nodes=tuple(_node(trial, start or trial.started_utc) for trial in nodes),
        )


def _node(trial: Trial, start: float) -> TreeNode:
    started = trial.started
    return TreeNode(
        id=trial.id,
        parent=started.parent,
        replica=trial.replica,
        round=started.round,
        state=str(trial.state),
        started_seconds=trial.started_utc - start,
        quality=None if trial.best is None else trial.best.quality,
        parameters=started.parameters,
        morphism_kinds=tuple(str(morphism.get("kind", "")) for morphism in started.morphisms),
    )
