"""Candidates that the search has grown, and the tree of the networks that were trained."""

from __future__ import annotations

import heapq
from enum import StrEnum

from pydantic import Field

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import Proposal, RunHistory, Trial
from aiperf_hpc.service.answers.base import Answer, Limit, Page, PageQuestion, Question
from aiperf_hpc.trial import MorphismData


class CandidateState(StrEnum):
    """The state of a candidate."""

    WAITING = "waiting"
    """It waits for the trainer."""
    TRAINED = "trained"
    """A trial took it."""
    REJECTED = "rejected"
    """It could not be loaded."""


class CandidateStatus(Answer):
    """A network that the search has grown."""

    id: str
    """The candidate's name."""
    replica: str
    """The replica whose search worker grew it."""
    state: CandidateState
    """Its state."""
    reason: str
    """Why it was rejected; else empty."""
    trial: str | None
    """The first trial that trained it."""
    graph: str
    """The hash of its graph."""
    parent: str
    """The trial whose network it grew from."""
    morphisms: tuple[MorphismData, ...]
    """What was done to the parent's network, in order."""
    elapsed_seconds: float
    """Seconds from the run's start until it was there."""
    search_seconds: float
    """Seconds that growing it took."""
    belief: dict[str, float]
    """What the searcher predicted of it, such as mean, deviation and acquisition."""


class Candidates(Page):
    """Some of the candidates, the latest first."""

    candidates: tuple[CandidateStatus, ...]
    """The candidates, the latest first."""


class CandidatesQuestion(PageQuestion):
    """Return some of the networks that the search has grown, the latest first."""

    state: CandidateState | None = None
    """Those in a state."""
    replica: str | None = Field(None, examples=["r0"])
    """Those of one replica alone."""

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
    trials = reversed(history.trials.values())  # So that the first one of a proposal stays.
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
    """The trial."""
    parent: str | None
    """The trial whose network it grew from; null for the initial network."""
    replica: str
    """The replica that trained it."""
    round: int
    """The round of its replica."""
    state: str
    """The state of the trial."""
    started_seconds: float
    """Seconds from the run's start to the trial's."""
    quality: float | None
    """The best quality that an evaluation of it observed, by the run's measure."""
    parameters: int
    """How many numbers of its network are trained."""
    changes: tuple[str, ...]
    """The kinds of the morphisms that made it of its parent, in order."""


class Tree(Answer):
    """The tree of the networks that were trained: the latest trials and all they grew from."""

    measure: str
    """The name of the run's measure of quality."""
    total: int
    """How many trials there are in all."""
    nodes: tuple[TreeNode, ...]
    """Trials in order of their start; the parent of each is among them if the run has it."""


class TreeQuestion(Question):
    """Return the tree of networks: the latest trials and all that they grew from."""

    limit: Limit = 2000
    """How many of the latest trials it has."""

    def __call__(self, view: RunView) -> Tree:
        trials = view.history.trials
        latest = heapq.nlargest(self.limit, trials.values(), key=lambda t: t.started_utc)
        found = {trial.id: trial for trial in latest}
        for trial in latest:
            while (parent := trials.get(trial.started.parent or "")) and parent.id not in found:
                found[parent.id] = trial = parent
        start = view.history.origin_utc
        nodes = sorted(found.values(), key=lambda t: (t.started_utc, t.id))
        return Tree(
            measure=view.measure.name,
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
        changes=tuple(str(morphism.get("kind", "")) for morphism in started.morphisms),
    )
