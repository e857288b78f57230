"""What one replica knows of the whole run.

Of itself everything, at once, by its own journals; of the others what the primary's digest
says, a few seconds later, and on NFS up to a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import NamedTuple

from aiperf_hpc.config import RunConfig
from aiperf_hpc.morphism.lineage import Descent
from aiperf_hpc.morphism.search.base import Observation
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.run.history import Proposal, RunHistory
from aiperf_hpc.run.records import TrialSummary
from aiperf_hpc.run.search_digest import Digest, kinds_of, summarize
from aiperf_hpc.trial import DatasetInfo


class Observed(NamedTuple):
    """The graphs of a digest as searchers need them. The caller must not change them."""

    known: dict[str, Observation]
    """All trained graphs, by trial."""
    ended: Set[str]
    """The graphs of which a trial has ended, successfully or not."""
    unobserved: dict[str, str]
    """The graphs of which no trial has ended, oldest first, with the proposal or trial of each."""


class Observations:
    """The observations of a digest, computed again only when it has grown."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._version = -1
        self._observed = Observed({}, set(), {})

    def now(self) -> Observed:
        if self._version != self._digest.version:
            self._version = self._digest.version
            trials = self._digest.trials.values()
            ended = {trial.graph for trial in trials if trial.ended}
            found = {p.graph: p.proposal for p in self._digest.proposals.values()}
            found.update((trial.graph, trial.trial) for trial in trials)
            unobserved = {g: name for g, name in found.items() if g not in ended}
            self._observed = Observed(observe(trials), ended, unobserved)
        return self._observed


def observe(trials: Iterable[TrialSummary]) -> dict[str, Observation]:
    """Return what there is to learn from trials that have ended."""
    return {
        t.trial: Observation(t.trial, t.graph, t.merit, t.checkpoint)
        for t in trials
        if t.merit is not None
    }


class RunKnowledge:
    """One replica's own history, and the digest of all."""

    def __init__(
        self,
        replica: str,
        history: RunHistory,
        digest: Digest,
        observations: Observations | None = None,
    ) -> None:
        """Join the two.

        Args:
            replica: whose journals ``history`` reads.
            history: of this replica.
            digest: of all replicas.
            observations: of the same digest, where several share it.
        """
        self._replica = replica
        self.history = history
        self._digest = digest
        self._observations = Observations(digest) if observations is None else observations

    @property
    def dataset(self) -> DatasetInfo | None:
        """What this replica trains on, once it has said so."""
        replica = self.history.replicas.get(self._replica)
        return replica.dataset if replica is not None else None

    def memory_limit(self, config: RunConfig) -> MemoryLimit | None:
        """Return what a training may take on each rank of this replica, if that was recorded."""
        replica = self.history.replicas.get(self._replica)
        if replica is None or replica.memory_limit is None:
            return None
        return MemoryLimit(config, replica.memory_limit, replica.memory_holds_copies)

    @property
    def pending(self) -> list[Proposal]:
        """This replica's proposals that wait for a trial, oldest first."""
        return self.history.pending(self._replica)

    @property
    def problems(self) -> list[str]:
        """What is wrong with the digest."""
        return [str(problem) for problem in self._digest.problems]

    def refresh(self) -> None:
        """See what is new, here and elsewhere. Raises JournalError if something is unreadable."""
        self.refresh_own()
        self._digest.refresh()

    def refresh_own(self) -> None:
        """See what is new on this replica. Raises JournalError if something is unreadable."""
        self.history.refresh(self._replica)

    def trials(self) -> Iterator[TrialSummary]:
        """Yield all trials that are known, this replica's last."""
        yield from (t for t in self._digest.trials.values() if t.replica != self._replica)
        yield from map(summarize, self.history.trials.values())

    def observations(self, gone: Set[str]) -> list[Observation]:
        """Return all trained graphs; those in ``gone`` cannot be grown."""
        found = dict(self._observations.now().known)
        found.update(observe(map(summarize, self.history.trials.values())))
        for trial in gone & found.keys():
            found[trial] = replace(found[trial], can_grow=False)
        return list(found.values())

    def trial(self, name: str) -> TrialSummary | None:
        """Return a trial, or None when it is unknown."""
        own = self.history.trials.get(name)
        return self._digest.trials.get(name) if own is None else summarize(own)

    def descent(self, trial: str) -> Descent | None:
        """Return where a trial's or proposal's graph comes from; None when it is unknown."""
        trials, proposals = self.history.trials, self.history.proposals
        if trial in trials:
            return trials[trial].started
        if trial in proposals:
            return proposals[trial].proposed
        return self._digest.trials.get(trial) or self._digest.proposals.get(trial)

    def graphs(self) -> set[str]:
        """Return the hashes of all graphs that were trained or proposed."""
        own = (proposal.proposed.graph for proposal in self.history.proposals.values())
        return self._digest.graphs.union(self.history.graphs, own)

    def unobserved(self) -> dict[str, str]:
        """Return the graphs that are proposed or in training and that no trial has observed.

        By hash, oldest first as far as it is known, with the proposal or trial that has it. A
        graph whose trials failed is none of them: it is known, and nothing is expected of it.
        """
        observed = self._observations.now()
        found, ended = dict(observed.unobserved), observed.ended
        for proposal in self.history.proposals.values():
            if proposal.proposed.graph not in ended:
                found.setdefault(proposal.proposed.graph, proposal.id)
        for trial in self.history.trials.values():
            graph = trial.started.graph
            if trial.state.ended:
                found.pop(graph, None)
            elif graph not in ended:
                found[graph] = trial.id
        return found

    def kinds(self) -> Counter[str]:
        """Return how often each kind of morphism was proposed."""
        digested = self._digest.proposals
        new = (p for p in self.history.proposals.values() if p.id not in digested)
        return self._digest.kinds + Counter(
            kind for p in new for kind in kinds_of(p.proposed.morphisms)
        )

    def may_be_grown(self) -> bool:
        """Return whether a trial anywhere has kept its weights, or is still being trained."""
        return any(trial.checkpoint or not trial.ended for trial in self.trials())
