"""A replica's view of the whole run.

Its own trials are known immediately from its journals, those of other replicas from the primary's
digest, a few seconds later (on NFS up to a minute).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from operator import attrgetter
from typing import Self

from aiperf_hpc.config import RunConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.lineage import Descent
from aiperf_hpc.morphism.search.base import VERSION, Bounds, Observation, View
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.run.history import Proposal, RunHistory
from aiperf_hpc.run.records import Seen, TrialSummary
from aiperf_hpc.run.search_digest import Digest, kinds_of, summarize
from aiperf_hpc.trial import DatasetInfo


class Observations:
    """The graphs of a digest, indexed for searchers. Callers must not modify them."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._version = -1
        self.known: dict[str, Observation] = {}
        """All trained graphs, by trial."""
        self.ended: Set[str] = set()
        """Graphs with an ended trial, successful or not."""
        self.unobserved: dict[str, str] = {}
        """Graphs without an ended trial, oldest first, with the proposal or trial of each."""

    def now(self) -> Self:
        """Return the observations, recomputed only if the digest has grown."""
        if self._version != self._digest.version:
            self._version = self._digest.version
            trials = self._digest.trials.values()
            found = {p.graph: p.proposal for p in self._digest.proposals.values()}
            found.update((trial.graph, trial.trial) for trial in trials)
            self.known = observe(trials)
            self.ended = {trial.graph for trial in trials if trial.ended}
            self.unobserved = {g: name for g, name in found.items() if g not in self.ended}
        return self


def observe(trials: Iterable[TrialSummary]) -> dict[str, Observation]:
    """Return the observations of ended trials."""
    return {
        t.trial: Observation(t.trial, t.graph, t.objective, t.checkpoint)
        for t in trials
        if t.objective is not None
    }


class RunKnowledge:
    """A replica's own history, combined with the digest of all replicas."""

    def __init__(
        self,
        replica: str,
        history: RunHistory,
        digest: Digest,
        observations: Observations | None = None,
    ) -> None:
        """Combine a replica's history with the digest.

        Args:
            replica: name of the replica.
            history: history of this replica's journals.
            digest: digest of all replicas.
            observations: observations of the same digest, if several share it.
        """
        self._replica = replica
        self.history = history
        self._digest = digest
        self._observations = Observations(digest) if observations is None else observations
        self._bounds: tuple[MemoryLimit | None, Bounds] | None = None

    @property
    def dataset(self) -> DatasetInfo | None:
        """Dataset of this replica, once it has been recorded."""
        replica = self.history.replicas.get(self._replica)
        return replica.dataset if replica is not None else None

    def memory_limit(self, config: RunConfig) -> MemoryLimit | None:
        """Return the memory that a trial may use on each rank, if it was recorded."""
        replica = self.history.replicas.get(self._replica)
        if replica is None or replica.memory_limit is None:
            return None
        return MemoryLimit(config, replica.memory_limit, replica.memory_holds_copies)

    def bounds(self, config: RunConfig, initial: Graph) -> Bounds:
        """Return the limits of candidates. The memory limit may differ between attempts."""
        limit = self.memory_limit(config)
        if self._bounds is None or self._bounds[0] != limit:
            self._bounds = limit, Bounds.of(config.search, initial, limit)
        return self._bounds[1]

    def view(self, graph: Callable[[str], Graph], bounds: Bounds, missing: Set[str]) -> View:
        """Return a searcher's input.

        Args:
            graph: returns the graph of a trial or proposal.
            bounds: limits of candidates.
            missing: trials whose weights were found missing.
        """
        return View(
            self.observations(missing),
            self.unobserved(),
            graph,
            self.graphs(),
            self.kinds(),
            bounds,
            self._seen(missing),
        )

    def _seen(self, missing: Set[str]) -> Seen:
        folder, read = self.history.paths.replica(self._replica), self.history.lines_read
        grown = (name for name in missing if (trial := self.trial(name)) and trial.checkpoint)
        return Seen(
            version=VERSION,
            digest_lines=self._digest.lines_read,
            journal_lines={
                str(path.relative_to(folder)): lines
                for path, lines in read.items()
                if path.is_relative_to(folder)
            },
            malformed=len(self.history.problems) + len(self._digest.problems),
            missing=tuple(sorted(grown)),
        )

    @property
    def pending(self) -> list[Proposal]:
        """Proposals in this replica's candidate queue, oldest first."""
        return self.history.pending(self._replica)

    @property
    def replacements(self) -> int:
        """Number of times that the digest was replaced."""
        return self._digest.replacements

    @property
    def problems(self) -> list[str]:
        """Problems of the digest."""
        return [str(problem) for problem in self._digest.problems]

    def refresh(self) -> None:
        """Read new records of all replicas. Raises JournalError if a journal is unreadable."""
        self.refresh_own()
        self._digest.refresh()

    def refresh_own(self) -> None:
        """Read new records of this replica. Raises JournalError if a journal is unreadable."""
        self.history.refresh(self._replica)

    def trials(self) -> Iterator[TrialSummary]:
        """Yield all known trials, this replica's last."""
        yield from (t for t in self._digest.trials.values() if t.replica != self._replica)
        yield from map(summarize, self.history.trials.values())

    def observations(self, missing: Set[str]) -> list[Observation]:
        """Return all trained graphs; those in ``missing`` cannot be parents."""
        found = dict(self._observations.now().known)
        # Not in the order of reading, which differs if journals of several attempts grow at once.
        own = sorted(self.history.trials.values(), key=attrgetter("started_utc"))
        found.update(observe(map(summarize, own)))
        for trial in missing & found.keys():
            found[trial] = replace(found[trial], can_grow=False)
        return list(found.values())

    def trial(self, name: str) -> TrialSummary | None:
        """Return a trial, or None if it is unknown."""
        own = self.history.trials.get(name)
        return self._digest.trials.get(name) if own is None else summarize(own)

    def descent(self, trial: str) -> Descent | None:
        """Return the origin of a trial's or proposal's graph, or None if it is unknown."""
        trials, proposals = self.history.trials, self.history.proposals
        if trial in trials:
            return trials[trial].started
        if trial in proposals:
            return proposals[trial].proposed
        return self._digest.trials.get(trial) or self._digest.proposals.get(trial)

    def graphs(self) -> set[str]:
        """Return the hashes of all trained or proposed graphs."""
        own = (proposal.proposed.graph for proposal in self.history.proposals.values())
        return self._digest.graphs.union(self.history.graphs, own)

    def unobserved(self) -> dict[str, str]:
        """Return the pending graphs: proposed or in training, without an ended trial.

        They are keyed by hash, oldest first, with the proposal or trial of each. A graph whose
        trials all failed is not pending.
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
        """Return the number of proposals of each kind of morphism."""
        digested = self._digest.proposals
        new = (p for p in self.history.proposals.values() if p.id not in digested)
        return self._digest.kinds + Counter(
            kind for p in new for kind in kinds_of(p.proposed.morphisms)
        )

    def may_be_grown(self) -> bool:
        """Return whether any trial of the run has stored weights or is still running."""
        return any(trial.checkpoint or not trial.ended for trial in self.trials())
