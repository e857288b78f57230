"""The search digest of a run: trials and proposals of all replicas, for the search workers.

The primary writes it from the journals that it reads anyway, so that each of N replicas reads one
file instead of N. It is not evidence: nothing is credited by it, and it can be regenerated from the
journals. Later lines about a trial replace earlier ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.journal import JournalReader, JournalWriter, Problem
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent, ProposalSummary, TrialSummary
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import MorphismData


class Digest:
    """The content of the search digest as of the last ``refresh``."""

    def __init__(self, paths: RunPaths, retry: Retry = no_retry) -> None:
        self._path = paths.digest
        self._retry = retry
        self.version = 0
        """Version number, which increases with every line."""
        self.replacements = 0
        """Number of times that the file was replaced and read again."""
        self._problems: list[Problem] = []
        """Problems of digests that were replaced since."""
        self._begin()

    def _begin(self) -> None:
        self._reader = JournalReader(self._path, retry=self._retry)
        self.trials: dict[str, TrialSummary] = {}
        self.proposals: dict[str, ProposalSummary] = {}
        self.graphs: set[str] = set()
        """Hashes of all trained or proposed graphs."""
        self.kinds: Counter[str] = Counter()
        """Number of proposed morphisms by kind."""

    @property
    def problems(self) -> list[Problem]:
        """Malformed or misplaced lines."""
        return self._problems + self._reader.problems

    @property
    def lines_read(self) -> int:
        """Number of lines that were read."""
        return self._reader.line

    def refresh(self) -> None:
        """Read the new lines, or the whole digest if its file was replaced.

        Raises:
            JournalError: the digest is unreadable.
        """
        problems = len(self._reader.problems)
        added = list(self._reader.read())
        if self._reader.replaced:
            self._problems += self._reader.problems[:problems]
            self._begin()
            self.version += 1
            self.replacements += 1
            added = list(self._reader.read())
        for record in added:
            self.add(record.event)

    def add(self, event: AnyEvent) -> None:
        """Add the content of a line."""
        self.version += 1
        if isinstance(event, TrialSummary):
            self.trials[event.trial] = event
            self.graphs.add(event.graph)
        elif isinstance(event, ProposalSummary):
            self.proposals[event.proposal] = event
            self.graphs.add(event.graph)
            self.kinds.update(kinds_of(event.morphisms))


class DigestWriter:
    """Updates a run's search digest from its history."""

    def __init__(self, history: RunHistory, journal: JournalWriter) -> None:
        """Continue an existing digest.

        Args:
            history: history of the run; its owner refreshes it.
            journal: writer of the digest's file.
        """
        self._history = history
        self._journal = journal
        self.path = journal.path
        said = Digest(history.paths)
        said.refresh()
        self._said = said.trials
        self._said_proposals = set(said.proposals)
        self._look_again()

    def _look_again(self) -> None:
        """Start over at the beginning of the history."""
        self._trials = self._history.trials
        self._open: set[str] = set()
        """Trials whose state may still change."""
        self._seen_trials = self._seen_proposals = 0

    def update(self) -> None:
        """Write the changes since the last call. Raises JournalError if that fails."""
        with self._history.lock:
            events = [*self._new_trials(), *self._new_proposals()]
        if events:
            self._journal.append_all(events)

    def remake(self) -> None:
        """Write the whole digest again, because its file is missing or was modified.

        Raises:
            JournalError: the file cannot be written.
        """
        self._journal.begin_anew()
        self._said = {}
        self._said_proposals = set()
        self._look_again()
        self.update()

    def _new_trials(self) -> list[AnyEvent]:
        trials = self._history.trials
        if trials is not self._trials:
            self._look_again()  # The history was replayed from its beginning.
        self._open.update(islice(trials, self._seen_trials, None))
        self._seen_trials = len(trials)
        changed: list[AnyEvent] = []
        for name in sorted(self._open):
            trial, said = trials[name], self._said.get(name)
            if said is None or (said.ended, said.checkpoint) != _state(trial):
                self._said[name] = summarize(trial)
                changed.append(self._said[name])
            if trial.state.ended and not trial.has_checkpoint:
                self._open.discard(name)
        return changed

    def _new_proposals(self) -> list[AnyEvent]:
        new = islice(self._history.proposals.values(), self._seen_proposals, None)
        self._seen_proposals = len(self._history.proposals)
        unsaid = [p for p in new if p.id not in self._said_proposals]
        self._said_proposals.update(p.id for p in unsaid)
        return [
            ProposalSummary(
                proposal=p.id,
                replica=p.replica,
                graph=p.proposed.graph,
                parent=p.proposed.parent,
                morphisms=p.proposed.morphisms,
            )
            for p in unsaid
        ]


def kinds_of(morphisms: Iterable[MorphismData]) -> Iterator[str]:
    """Return an iterator over the kinds of morphisms."""
    return (str(data["kind"]) for data in morphisms)


def _state(trial: Trial) -> tuple[bool, bool]:
    return trial.state.ended, trial.has_checkpoint


def summarize(trial: Trial) -> TrialSummary:
    """Return the summary of a trial for the search."""
    started = trial.started
    ended, checkpoint = _state(trial)
    return TrialSummary(
        trial=trial.id,
        replica=trial.replica,
        graph=started.graph,
        parent=started.parent,
        morphisms=started.morphisms,
        ended=ended,
        objective=trial.objective_value if ended else None,
        checkpoint=checkpoint,
        hyperparameters=started.hyperparameters,
    )
