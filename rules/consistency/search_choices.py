"""The rule on the search: sampled proposals are chosen again, from what the searcher had read."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import in_words
from aiperf_hpc.integrity.release import FILES, package_digest
from aiperf_hpc.morphism.lineage import Lineage
from aiperf_hpc.morphism.search import load_searcher
from aiperf_hpc.morphism.search.base import VERSION, Choice, SearchSpaceExhaustedError, View
from aiperf_hpc.morphism.search.run_knowledge import Observations, RunKnowledge
from aiperf_hpc.rules.consistency.evidence import TRAINER_JOURNAL, Evidence
from aiperf_hpc.rules.consistency.records import JOURNALS
from aiperf_hpc.rules.rule import Checked, Each, Findings, Note
from aiperf_hpc.run.history import Proposal, RunHistory
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.liveness import LISTING_SECONDS
from aiperf_hpc.run.records import FileProblem, SearchFailed, Seen, TrialSummary
from aiperf_hpc.run.search_digest import Digest

SAMPLE: Final = 32
"""Maximum number of proposals that are chosen again."""
MOST_GRAPHS: Final = 8192
"""Maximum number of graphs, summed over the proposals, from which the guided searcher learns."""
MOST_TEXT: Final = 200
"""Maximum length of a quoted name or of an unexpected error's description."""
NUMERICS: Final = ("numpy", "scipy")
"""Packages whose versions may change random numbers and the guided searcher's results."""


class _NotRepeatedError(AIPerfError):
    """A choice cannot be repeated, although it may be honest."""


def choices(run: Evidence) -> Findings:
    """Sampled proposals are the choices that their searchers make from the records they had read.

    The search digest is written for the searchers only, and may be lost or made again.
    """
    trained = {trial.started.proposal for trial in run.begun}
    proposals = [p for name, p in run.history.proposals.items() if name in trained]
    search = _SearchAgain(run)
    yield from search.wrong_digest()
    if not run.manifest.earlier:
        silent = (p.id for p in proposals if p.proposed.seen is None)
        yield from (Each(f"{name} does not record what the searcher had read") for name in silent)
    repeated, others = 0, Counter[str]()
    for proposal in _sample(proposals):
        try:
            # As in search workers: on a busy machine, several threads wait for each other.
            with threadpool_limits(1, user_api="blas"):
                wrong = search.difference(proposal)
        except AIPerfError as error:
            others[str(error)] += 1
            continue
        repeated += 1
        if wrong is not None:
            yield Each(f"{proposal.id}: {wrong}")
    yield Checked(repeated)
    if repeated < len(proposals):
        reasons = [f"{number} of the sample not repeated: {why}" for why, number in others.items()]
        yield Note("; ".join([f"{repeated} of {len(proposals):,} proposals repeated", *reasons]))


def _sample(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Return a sample, in the order in which the digest was read.

    It depends on all proposals: whoever changes one draws another sample.
    """
    names = sorted((p.id, p.proposed.graph) for p in proposals)
    seed = hashlib.sha256(repr(names).encode()).hexdigest()

    def draw(proposal: Proposal) -> bytes:
        return hashlib.sha256(f"{seed}\n{proposal.id}".encode()).digest()

    def read(proposal: Proposal) -> int:
        return proposal.proposed.seen.digest_lines if proposal.proposed.seen else 0

    return sorted(sorted(proposals, key=draw)[:SAMPLE], key=read)


class _SearchAgain:
    """Chooses proposals again."""

    def __init__(self, run: Evidence) -> None:
        self._run = run
        reader = JournalReader(run.paths.digest)
        self._lines = list(reader.read())
        self._problems = reader.problems
        self._searcher = load_searcher(run.config.search) if run.config.search.searches else None
        self._graphs = 0
        self._begin()

    def _begin(self) -> None:
        """Read the digest from its beginning."""
        self._digest = Digest(self._run.paths)
        self._observations = Observations(self._digest)
        self._read = 0

    def wrong_digest(self) -> Iterator[str]:
        """Yield the trials of which the digest states another graph or result than the journals.

        The records of a replaced attempt may have counted when the digest was written.
        """
        trials, replicas = self._run.history.trials, self._run.history.replicas
        for line in self._lines:
            if not isinstance(line.event, TrialSummary):
                continue
            trial = trials.get(line.event.trial)
            if trial is None or len(replicas[trial.replica].starts) > 1:
                continue
            stated, found = line.event.objective, trial.objective_value
            if line.event.graph != trial.started.graph or (
                line.event.ended and trial.ended is not None and stated != found
            ):
                yield Each(f"{trial.id}: the search digest states another graph or result")

    def difference(self, proposal: Proposal) -> str | None:
        """Return the difference of a proposal from the choice that its searcher makes.

        Raises:
            AIPerfError: the choice cannot be repeated.
        """
        proposed = proposal.proposed
        for seen in (proposed.seen, proposed.learned):
            if seen is not None and (impossible := self._impossible(proposal, seen)):
                return impossible
        try:
            choice = self._choice(proposal)
        except SearchSpaceExhaustedError as error:
            chosen = f"none ({error})"
        except (ValueError, ArithmeticError, LookupError) as error:  # Of fabricated records.
            what = f"{type(error).__name__}: {error}"[:MOST_TEXT]
            raise _NotRepeatedError(f"its searcher fails with {what}") from error
        else:
            steps = tuple(step.to_data() for step in choice.morphisms)
            if (choice.parent, steps) == (proposed.parent, proposed.morphisms):
                return None
            chosen = f"{choice.parent} grown by {in_words(steps)}"
        for name, version in self._other_versions(proposal):
            raise _NotRepeatedError(f"it differs, and was chosen with {name} {version}")
        return (
            f"{proposed.parent} grown by {in_words(proposed.morphisms)}; "
            f"from the records that it had read, its searcher chooses {chosen}"
        )

    def _impossible(self, proposal: Proposal, seen: Seen) -> str | None:
        """Return why a searcher cannot have read what its proposal states, or None."""
        machine = self._run.history.replicas[proposal.replica].machine
        files = None if machine is None else machine.versions.get(FILES)
        if seen.version != VERSION and files == package_digest():
            return f"it states version {seen.version} of its searcher, which has version {VERSION}"
        for name, lines in seen.journal_lines.items():
            if lines and (wrong := self._wrong_journal(proposal, name, lines)):
                return f"it states {lines:,} lines of {name[:MOST_TEXT]!r}, {wrong}"
        return None

    def _wrong_journal(self, proposal: Proposal, name: str, lines: int) -> str | None:
        """Return why a proposal's searcher cannot have read these lines of a journal, or None.

        Lines that it had read may honestly be missing if their journal, or the trainer's, was lost
        during the run, or if a power failure ended the attempt before they were on stable storage.
        """
        run, path = self._run, self._run.paths.replica(proposal.replica) / name
        trainer = path.parent / TRAINER_JOURNAL
        if run.lost_paths & {path, trainer}:
            return None
        found = run.history.lines_read.get(path, 0)
        if not found and not self._may_exist(proposal, name):
            return "which is not a journal of its replica"
        if found >= lines or any(problem.path == path for problem in run.history.problems):
            return None
        times = run.journal(path if found else trainer).times
        later = max(times, default=0.0) > proposal.utc + self._tolerance(proposal)
        return f"which has {found:,}" if later else None

    def _may_exist(self, proposal: Proposal, name: str) -> bool:
        """Return whether an attempt of a proposal's replica may write a journal of this name."""
        attempt, _, file = name.partition("/")
        starts = map(str, self._run.history.replicas[proposal.replica].starts)
        return attempt in starts and any(re.fullmatch(pattern, file) for pattern in JOURNALS)

    def _other_versions(self, proposal: Proposal) -> Iterator[tuple[str, str]]:
        machine = self._run.history.replicas[proposal.replica].machine
        versions = {} if machine is None else machine.versions
        for name in NUMERICS:
            version = versions.get(name, "unknown")
            if version != metadata.version(name):
                yield name, version

    def _choice(self, proposal: Proposal) -> Choice:
        proposed = proposal.proposed
        if proposed.seen is None:
            raise _NotRepeatedError("an earlier version did not record what the searcher had read")
        if self._searcher is None:
            raise _NotRepeatedError("the configuration has no searcher")
        searcher, earlier = self._searcher, proposed.learned
        learned = None if earlier is None else self._view(proposal, earlier)
        view = self._view(proposal, proposed.seen)
        observed = [*view.observations, *(() if learned is None else learned.observations)]
        self._spend(len({observation.graph for observation in observed}))
        searcher.begin_anew()
        if learned is not None:
            searcher.learn(learned)
        return searcher.choose(view, np.random.default_rng(proposed.seed))

    def _spend(self, graphs: int) -> None:
        if self._run.config.search.method != "guided":
            return
        if self._graphs and self._graphs + graphs > MOST_GRAPHS:
            raise _NotRepeatedError(
                f"the sample's searchers learned from over {MOST_GRAPHS} graphs"
            )
        self._graphs += graphs

    def _view(self, proposal: Proposal, seen: Seen) -> View:
        """Return what a searcher had read."""
        if seen.version != VERSION:
            raise _NotRepeatedError(f"the searcher had version {seen.version}, not {VERSION}")
        run = self._run
        self._read_digest(proposal, seen.digest_lines)
        folder = run.paths.replica(proposal.replica)
        until = {folder / name: lines for name, lines in seen.journal_lines.items()}
        history = RunHistory(run.paths, replica=proposal.replica, until=until)
        history.refresh(proposal.replica)
        if history.lines_read != {path: lines for path, lines in until.items() if lines}:
            raise _NotRepeatedError("the journals that it had read are missing or shorter")
        if seen.malformed != len(history.problems):
            raise _NotRepeatedError("lines that it had read, or could not read, have changed")
        for name in seen.missing:
            self._check_missing(proposal, name)
        knowledge = RunKnowledge(proposal.replica, history, self._digest, self._observations)
        lineage = Lineage(knowledge.descent, run.lineage.initial, run.lineage.grown)
        bounds = knowledge.bounds(run.config, lineage.initial)
        return knowledge.view(lineage.graph, bounds, set(seen.missing))

    def _read_digest(self, proposal: Proposal, until: int) -> None:
        if self._read > until:
            self._begin()
        added = self._lines[self._read : until]
        for line in added:
            self._digest.add(line.event)
        self._read += len(added)
        last = self._lines[self._read - 1].utc if self._read else 0.0
        late = last > proposal.utc + self._tolerance(proposal)
        if self._problems or self._read < until or late or self._replaced(proposal):
            raise _NotRepeatedError(
                "the search digest that it had read was lost, damaged or made again"
            )

    def _replaced(self, proposal: Proposal) -> bool:
        """Return whether the digest was replaced, and the previous one may still have been read."""
        digest = str(self._run.paths.digest.relative_to(self._run.paths.root))
        problems = self._run.primary.records_of(FileProblem)
        until = proposal.utc - LISTING_SECONDS - self._tolerance(proposal)
        return any(utc > until and problem.file == digest for utc, problem in problems)

    def _tolerance(self, proposal: Proposal) -> float:
        return self._run.tolerance(self._run.history.replicas[proposal.replica])

    def _check_missing(self, proposal: Proposal, trial: str) -> None:
        """Raise _NotRepeatedError unless a trial's weights were missing by the records."""
        journals = self._run.journals.values()
        lost = (event for each in journals for _, event in each.records_of(SearchFailed))
        deleted = self._run.trial_endings.dropped.get(trial, float("inf"))
        late = deleted > proposal.utc + self._tolerance(proposal)
        if late and all(event.lost_parent != trial for event in lost):
            raise _NotRepeatedError("no record explains why weights were missing")
