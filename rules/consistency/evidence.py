"""The evidence of the rules: journals read separately, and graphs regrown from morphisms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.x509 import Certificate

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.morphism.lineage import Descent, Lineage
from aiperf_hpc.objective import Objective
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.rules.consistency.journal import (
    CLOCK_TOLERANCE,
    Executed,
    Journal,
    Sampler,
    Step,
    read_journal,
)
from aiperf_hpc.run import records
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.history import Evaluation, ReplicaHistory, RunHistory, Trial, no_collections
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.run.search_digest import Digest
from aiperf_hpc.trial import DatasetInfo

Json = dict[str, Any]

TRAINER_JOURNAL = "journal.jsonl"
"""Name of the journal of an attempt's trainer in its folder."""
QUEUES = 4
"""Maximum number of successive waits of a simulated replica for the writes of all others."""


class Recount(NamedTuple):
    """Counts of a graph: operations per training and validation sample, parameters, depth."""

    training: int
    forward: int
    parameters: int
    depth: int


class Attempt(NamedTuple):
    """An attempt of a replica, by its trainer's journal."""

    replica: ReplicaHistory
    incarnation: Incarnation
    path: Path
    journal: Journal

    @property
    def started(self) -> tuple[float, records.ReplicaStarted]:
        """The record of its start, with its UTC seconds."""
        return self.journal.records_of(records.ReplicaStarted)[0]

    def __str__(self) -> str:
        return f"{self.replica.id}, attempt {self.incarnation}"


@dataclass(slots=True)
class TrialEndings:
    """The recorded ends of trials, by name."""

    ends: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """End of each trial, UTC seconds, and whether its weights were stored."""
    dropped: dict[str, float] = field(default_factory=dict)
    """Deletion of each trial's weights, UTC seconds."""
    evaluated: dict[str, int] = field(default_factory=dict)
    """Last evaluated epoch of each trial."""


FORMULAS: Mapping[str, Callable[[Mapping[str, float], int], float]] = {
    "accuracy": lambda sums, samples: sums["correct"] / samples,
    "intersection_over_union": lambda sums, samples: sums["intersection_over_union"] / samples,
    "mean_absolute_error": lambda sums, _: sums["absolute_error"] / sums["values"],
    "mean_average_precision": lambda sums, _: sums["average_precision"] / sums["classes"],
}
"""Verification's own formula of each metric."""
ERRORS = ("mean_absolute_error",)
"""Metrics for which lower is better."""


def quality(result: Evaluation) -> float:
    """Return the quality of an evaluation from its sums.

    Raises:
        AIPerfError: verification has no formula for the metric.
    """
    name = result.quality_metric.name
    if name not in FORMULAS:
        raise AIPerfError(f"verify cannot recompute the metric '{name}'")
    return FORMULAS[name](result.sums, result.samples)


def best_quality(results: Iterable[Evaluation]) -> float | None:
    """Return the best quality of evaluations by one metric, or None if there are none."""
    found = list(results)
    better = min if any(each.quality_metric.name in ERRORS for each in found) else max
    return better((quality(each) for each in found), default=None)


class Trusted(NamedTuple):
    """Keys and certificates that the verifier trusts."""

    signers: Sequence[PublicKey] = ()
    """Keys, one of which must have signed the run; empty if no signature is required."""
    witnesses: Sequence[PublicKey] = ()
    """Keys of witnesses, one of which must have covered the run; empty if none is required."""
    authorities: Sequence[Certificate] = ()
    """Root certificates of timestamp authorities, which count as witnesses."""


NOBODY_TRUSTED = Trusted()


class Change(NamedTuple):
    """A file that differs from the manifest of the report."""

    text: str
    late: bool
    """Whether it may have changed legitimately after the end of the run."""


@dataclass(frozen=True, slots=True)
class FinalReport:
    """The stored report of a run and the report made from its records, both loaded on demand.

    Reports are made in ``results/``, a layer above the rules, so ``verification/audit.py``
    supplies the functions.
    """

    exists: Callable[[], bool]
    has_grown: Callable[[], bool]
    """Whether journals have grown since the report was made."""
    signed: Callable[[], bool]
    complete: Callable[[], bool]
    """Whether its manifest names every file of a run that has ended."""
    stated: Callable[[], Any]
    """Content of ``report.json``, unchecked. Raises OSError, ValueError."""
    in_this_version: Callable[[Json], Json]
    """Converts a report of an earlier version to this version. Raises ValueError."""
    made: Callable[[], Json]
    """Report made from the records. Raises AIPerfError."""
    files: Callable[[object], Mapping[Path, bytes]]
    """Files of the report with the given section on scaling. Raises ValueError."""
    other_maker: Callable[[], str | None]
    """Version that made the stored report, if it differs from this program."""
    score: Callable[[], Json]
    """The operations, ``ops`` and regulated score at the end of the run."""
    result: Callable[[], Json]
    """Other values in ``result.txt`` than the score."""
    violated: Callable[[], set[str]]
    """The names of the rules on validity that the run violates."""
    named_files: Callable[[], int]
    """Number of files in its manifest."""
    changes: Callable[[], Iterable[Change]]
    """Files of the run that differ from the manifest."""
    signer: Callable[[Sequence[PublicKey]], PublicKey | None]
    """The key that signed its manifest. Raises BadSignatureError."""


class Evidence:
    """The evidence of a run for the rules on consistency."""

    def __init__(
        self,
        history: RunHistory,
        manifest: RunManifest,
        objective: Objective,
        initial: Callable[[DatasetInfo], Graph],
        report: FinalReport,
        trusted: Trusted,
    ) -> None:
        """Read the run's journals.

        Args:
            history: history of the run.
            manifest: manifest of the run.
            objective: objective of its workload.
            initial: function that returns the initial graph for a dataset.
            report: report of the run.
            trusted: trusted keys and certificates.

        Raises:
            JournalError: a journal cannot be read at all.
        """
        self.history = history
        self.manifest = manifest
        self.paths = history.paths
        self.graphs = GraphStore(history.paths)
        self.config = manifest.config
        self.objective = objective
        self.report = report
        self.trusted = trusted
        with no_collections(keep_all=True):
            # Read the same bytes as the history: a running replica may have appended since.
            self.journals = {
                path: read_journal(path, size) for path, size in self.history.bytes_read.items()
            }
        datasets = {r.dataset for r in self.history.replicas.values() if r.dataset is not None}
        self.datasets = sorted(datasets, key=lambda d: d.sha256)
        self._stepped: dict[str, float] = {}
        self._counts: dict[str, Recount] = {}
        """Counts of graphs by hash."""
        self._lineage = Lineage(self._descent, initial(self.datasets[0])) if self.datasets else None

    @property
    def trials(self) -> list[Trial]:
        return list(self.history.trials.values())

    @property
    def record_count(self) -> int:
        """The number of records in all journals."""
        return sum(len(journal.times) for journal in self.journals.values())

    @property
    def primary(self) -> Journal:
        """Journal of the primaries."""
        return self.journal(self.paths.primary_journal)

    def journal(self, path: Path) -> Journal:
        """Return a journal, or an empty one if it does not exist."""
        return self.journals.get(path) or Journal()

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The attempts of all replicas whose trainers left a journal."""
        replicas = self.history.replicas.values()
        return [attempt for replica in replicas for attempt in self.attempts_of(replica)]

    def attempts_of(self, replica: ReplicaHistory) -> list[Attempt]:
        """Return the attempts of a replica whose trainers left a journal."""
        return [
            Attempt(replica, incarnation, path, self.journals[path])
            for incarnation in replica.starts
            if (path := self.paths.replica_journal(replica.id, incarnation)) in self.journals
        ]

    @cached_property
    def lost_paths(self) -> set[Path]:
        """Journals that were lost during the run, as the primary recorded."""
        recorded = {self.paths.root / name for name in self.history.missing_journals}
        return recorded & {each.path for each in self.history.lost_journals}

    def has_lost(self, replica: ReplicaHistory) -> bool:
        """Return whether a trainer's journal of a replica was lost during the run."""
        return bool(self._lost_trainers(self.paths.replica(replica.id)))

    def follows_lost(self, path: Path) -> bool:
        """Return whether the trainer's journal of an earlier attempt of a replica was lost.

        Args:
            path: path of a journal of the replica.
        """
        lost = self._lost_trainers(path.parent.parent)
        return any(each < Incarnation.parse(path.parent.name) for each in lost)

    def _lost_trainers(self, replica: Path) -> list[Incarnation]:
        """Return the attempts in a replica's folder whose trainers' journals were lost."""
        lost = (each for each in self.lost_paths if each.name == TRAINER_JOURNAL)
        found = []
        for path in lost:
            if path.parent.parent == replica:
                with suppress(ValueError):  # The record names no attempt.
                    found.append(Incarnation.parse(path.parent.name))
        return found

    def tolerance(self, replica: ReplicaHistory) -> float:
        """Return the seconds by which a replica's clock and the primary's may differ."""
        checked, manifest = replica.checked, self.manifest
        ahead = checked.clock_ahead_seconds if checked is not None else None
        # A simulated replica that waits for the file server is ahead of the others.
        rate = self.config.engine.simulation.syncs_per_second
        waits = QUEUES * manifest.replicas / rate if manifest.simulated else 0.0
        return CLOCK_TOLERANCE + abs(ahead or 0.0) + waits + self.stepped(replica)

    def stepped(self, replica: ReplicaHistory) -> float:
        """Return the total seconds by which a replica's clock and the primary's were set."""
        if replica.id not in self._stepped:
            paths = self.paths
            own = [paths.replica_journal(replica.id, each) for each in replica.starts]
            steps = map(self.steps_of, [paths.primary_journal, *own])
            self._stepped[replica.id] = sum(steps)
        return self._stepped[replica.id]

    def steps_of(self, path: Path) -> float:
        """Return the total seconds by which the clock of a journal's writer was set."""
        steps = self.journal(path).steps
        return sum(abs(step.seconds) for step in steps if self.is_honest(path, step))

    def is_honest(self, path: Path, step: Step) -> bool:
        """Return whether a clock's step is plausible on an unmanipulated machine.

        A forward step does not shorten a run: the clock was set, or the machine suspended. A
        backward step must be followed by a reading of all clocks, which the rule ``timekeeping``
        compares with the times of its record, unless its process was killed. Other processes of a
        replica read no clocks: their steps must match a step of its trainer.
        """
        if not step.forward or step.seconds > 0.0:
            return step.forward
        own = self.journals[path].processes
        if any(each.seq >= step.seq for process in own for each in process.readings):
            return True
        by = next((each for each in reversed(own) if each.start.seq < step.seq), None)
        if by is not None and by.readings and by.ended_utc is None:
            return True
        trainer = path.with_name(TRAINER_JOURNAL)
        return path != trainer and any(
            abs(each.seconds - step.seconds) < CLOCK_TOLERANCE and self.is_honest(trainer, each)
            for each in self.journal(trainer).steps
        )

    @cached_property
    def trial_endings(self) -> TrialEndings:
        """Recorded ends of trials, including records of replaced attempts."""
        found = TrialEndings()
        for journal in self.journals.values():
            for utc, ended in journal.records_of(records.TrialEnded):
                found.ends.setdefault(ended.trial, (utc, ended.checkpoint))
            for utc, dropped in journal.records_of(records.CheckpointDeleted):
                found.dropped.setdefault(dropped.trial, utc)
            for name, epoch in journal.evaluated.items():
                found.evaluated[name] = max(epoch, found.evaluated.get(name, 0))
        return found

    def memory_limit(self, trial: Trial) -> MemoryLimit | None:
        """Return the memory limit of a trial's training per rank, or None if not recorded."""
        path = self.paths.replica_journal(trial.replica, trial.incarnation)
        loaded = self.journal(path).records_of(records.DatasetLoaded)
        latest = loaded[-1][1] if loaded else None
        if latest is None or latest.memory_limit_bytes is None:
            return None
        return MemoryLimit(self.config, latest.memory_limit_bytes, latest.memory_holds_copies)

    @property
    def dataset(self) -> DatasetInfo:
        """The dataset of the run; the rule ``dataset`` checks that there is exactly one."""
        return self.datasets[0]

    @cached_property
    def begun(self) -> list[Trial]:
        """Trials that started before the end; later ones are neither counted nor a failure.

        By a clock that was set back since, an earlier one may appear to have started later.
        """
        ends = {each.id: self.end + self.stepped(each) for each in self.history.replicas.values()}
        return [trial for trial in self.trials if trial.started_utc <= ends[trial.replica]]

    @cached_property
    def samples(self) -> dict[str, tuple[int, int]]:
        """Training and validation samples of each trial until the end."""
        found: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for progress in self.progress():
            if progress.utc <= self.end:
                train, validation = found[progress.trial]
                found[progress.trial] = (
                    train + progress.train_samples,
                    validation + progress.validation_samples,
                )
        return dict(found)

    def operations(self, trial: Trial) -> int:
        """Return the credited operations of a trial until the end. Raises MorphismError."""
        train, validation = self.samples.get(trial.id, (0, 0))
        counted = self.count(trial)
        return train * counted.training + validation * counted.forward

    @cached_property
    def reported(self) -> bool:
        """Whether a final report is required or exists."""
        return self.history.end_utc is not None or self.report.exists()

    @cached_property
    def end(self) -> float:
        """The end of the scored time, UTC seconds."""
        if self.history.end_utc is not None:
            return self.history.end_utc
        latest = (
            max((utc for utc in journal.times if utc < fence), default=0.0)
            for _, journal, fence in self._fenced()
        )
        return max(latest, default=0.0)

    def evaluations(self, trial: Trial) -> list[Evaluation]:
        """Return the evaluations of a trial, after those of the trials that it resumes."""
        found: list[Evaluation] = []
        at, until = trial, math.inf
        while True:
            found[:0] = [each for each in at.evaluations if each.epoch < until]
            until = min(until, at.started.first_epoch)
            before = self.history.trials.get(at.started.resumes or "")
            if before is None or before.incarnation >= at.incarnation:
                return found
            at = before

    def graph(self, trial: Trial) -> Graph:
        """Return the regrown graph of a trial. Raises MorphismError."""
        return self.lineage.graph(trial.id)

    def _descent(self, name: str) -> Descent | None:
        """Return the origin of the graph of a trial or a proposal."""
        proposal = self.history.proposals.get(name)
        known = self.history.descent(name) or (None if proposal is None else proposal.proposed)
        return known or self._summaries.get(name)

    @cached_property
    def _summaries(self) -> Mapping[str, Descent]:
        """The search digest's trials, for lost journals: a descent is proved by its graph's hash.

        Raises:
            JournalError: the search digest cannot be read.
        """
        digest = Digest(self.paths)
        if self.lost_paths:
            digest.refresh()
        return digest.trials

    @property
    def lineage(self) -> Lineage:
        """Lineage of the graphs, regrown from the initial one. Raises AIPerfError."""
        if self._lineage is None:
            raise AIPerfError("no replica recorded its dataset")
        return self._lineage

    def count(self, trial: Trial) -> Recount:
        """Return the counts of a trial's regrown graph. Raises MorphismError."""
        return self.count_of(self.graph(trial))

    def count_of(self, graph: Graph) -> Recount:
        """Return the counts of a graph."""
        if graph.hash not in self._counts:
            counted = count(graph)
            self._counts[graph.hash] = Recount(
                counted.training, counted.forward, graph.parameter_count, graph.depth
            )
        return self._counts[graph.hash]

    def executions(self) -> Iterator[tuple[str, Journal, list[Executed]]]:
        """Yield the path and the journal of each attempt, with its executions that count."""
        for path, journal, fence in self._fenced():
            if journal.started is not None:
                where = str(path.relative_to(self.paths.root))
                yield where, journal, [each for each in journal.executed if each.utc < fence]

    def progress(self) -> Iterator[Executed]:
        """Yield every progress record that counts.

        Records that an attempt wrote after a later attempt had started do not count.
        """
        for _, journal, fence in self._fenced():
            for executed in journal.executed:
                if executed.utc < fence:
                    yield executed

    def samplers(self) -> Iterator[Sampler]:
        """Yield the samplers of nodes' energy, with the samples that count."""
        for path, journal, fence in self._fenced():
            for sampler in journal.samplers:
                if sampler.begin < fence:
                    until = [each for each in sampler.samples if each[0] < fence]
                    yield replace(sampler, samples=until, replica=path.parent.parent.name)

    def _fenced(self) -> Iterator[tuple[Path, Journal, float]]:
        """Yield each journal with the time from which its records do not count, UTC seconds."""
        return ((path, journal, self.fence(path)) for path, journal in self.journals.items())

    def fence(self, journal: Path) -> float:
        """Return the time from which a journal's records do not count, UTC seconds."""
        if journal == self.paths.primary_journal:
            return math.inf
        own, starts = Incarnation.parse(journal.parent.name), self._starts[journal.parent.parent]
        return min((utc for other, utc in starts.items() if other > own), default=math.inf)

    @cached_property
    def _starts(self) -> Mapping[Path, Mapping[Incarnation, float]]:
        """Start of each attempt, UTC seconds, by the replica's folder."""
        found: defaultdict[Path, dict[Incarnation, float]] = defaultdict(dict)
        for path, journal in self.journals.items():
            if path != self.paths.primary_journal and journal.attempt_began_utc is not None:
                incarnation = Incarnation.parse(path.parent.name)
                found[path.parent.parent][incarnation] = journal.attempt_began_utc
        return found
