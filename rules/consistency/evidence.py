"""The evidence of the rules: journals read again, and graphs derived again from morphisms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from aiperf_hpc.trial import DatasetInfo

Json = dict[str, Any]

QUEUES = 4
"""How often a simulated replica waits for the writes of all others, at most, in one go."""


class Recount(NamedTuple):
    """What a graph counts: operations a training and a validation sample, parameters, depth."""

    training: int
    forward: int
    parameters: int
    depth: int


class Attempt(NamedTuple):
    """An attempt of a replica, by its trainer."""

    replica: ReplicaHistory
    life: Incarnation
    path: Path
    journal: Journal

    @property
    def started(self) -> tuple[float, records.ReplicaStarted]:
        """When it recorded its start, UTC seconds, and that record."""
        return self.journal.records_of(records.ReplicaStarted)[0]

    def __str__(self) -> str:
        return f"{self.replica.id}, attempt {self.life}"


@dataclass(slots=True)
class TrialEndings:
    """What was recorded of trials, by their names."""

    ends: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """When each ended, UTC seconds, and whether its weights were kept."""
    dropped: dict[str, float] = field(default_factory=dict)
    """When its weights were deleted, UTC seconds."""
    evaluated: dict[str, int] = field(default_factory=dict)
    """The last epoch that was evaluated."""


FORMULAS: Mapping[str, Callable[[Mapping[str, float], int], float]] = {
    "accuracy": lambda sums, samples: sums["correct"] / samples,
    "intersection_over_union": lambda sums, samples: sums["intersection_over_union"] / samples,
    "mean_absolute_error": lambda sums, _: sums["absolute_error"] / sums["values"],
    "mean_average_precision": lambda sums, _: sums["average_precision"] / sums["classes"],
}
"""Verification's own reading of each measure's sums."""
ERRORS = ("mean_absolute_error",)
"""The measures of which less is better."""


def quality(result: Evaluation) -> float:
    """Return the quality of an evaluation from its sums.

    Raises:
        AIPerfError: verification has no formula of its own for its measure.
    """
    name = result.measure.name
    if name not in FORMULAS:
        raise AIPerfError(f"verify cannot recompute the measure '{name}'")
    return FORMULAS[name](result.sums, result.samples)


def best_quality(results: Iterable[Evaluation]) -> float | None:
    """Return the best quality of evaluations by one measure; None of no evaluation."""
    found = list(results)
    better = min if any(each.measure.name in ERRORS for each in found) else max
    return better((quality(each) for each in found), default=None)


class Trusted(NamedTuple):
    """Whom the verifier trusts."""

    signers: Sequence[PublicKey] = ()
    """The keys of which one must have signed the run, if any must."""
    witnesses: Sequence[PublicKey] = ()
    """The keys of witnesses of which one must have seen all of the run, if any must."""
    authorities: Sequence[Certificate] = ()
    """Root certificates of time-stamp authorities, which are witnesses too."""


class Change(NamedTuple):
    """A file that is not as the manifest of the report states."""

    text: str
    late: bool
    """Whether it may have been changed after the end of the run."""


@dataclass(frozen=True, slots=True)
class FinalReport:
    """The stored report of a run, and the report that its records give, each looked at when asked.

    Reports are made in ``results/``, above the rules: ``verification/final_report.py`` fills it in.
    """

    exists: Callable[[], bool]
    has_grown: Callable[[], bool]
    """Whether journals contain more than the report was made from."""
    signed: Callable[[], bool]
    complete: Callable[[], bool]
    """Whether its manifest names every file of a run that has ended."""
    stated: Callable[[], Any]
    """``report.json``, whatever was written. Raises OSError, ValueError."""
    in_this_version: Callable[[Json], Json]
    """A report of an earlier version in the form of this one. Raises ValueError."""
    made: Callable[[], Json]
    """The report that the records give. Raises AIPerfError."""
    files: Callable[[object], Mapping[Path, bytes]]
    """The report's files, with a section on scaling. Raises ValueError."""
    other_maker: Callable[[], str | None]
    """How the stored report's maker differs from this program, if it does."""
    score: Callable[[], Json]
    """The operations, ``ops`` and regulated score at the end of the run."""
    result: Callable[[], Json]
    """What ``result.txt`` states besides the score."""
    violated: Callable[[], set[str]]
    """The names of the rules on validity that the run violates."""
    named_files: Callable[[], int]
    """How many files its manifest names."""
    changes: Callable[[], Iterable[Change]]
    """Each file of the run that is not as the manifest states."""
    signer: Callable[[Sequence[PublicKey]], PublicKey | None]
    """The key that signed its manifest. Raises BadSignatureError."""


class Evidence:
    """A run as the rules on consistency read it."""

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
            history: its records.
            manifest: its ``run.yaml``.
            objective: the objective of its workload.
            initial: the function that returns the initial graph on a dataset.
            report: its report.
            trusted: whom the verifier trusts.

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
            # The same bytes as the history: a running replica may have appended since.
            self.journals = {
                path: read_journal(path, size) for path, size in self.history.bytes_read.items()
            }
        datasets = {r.dataset for r in self.history.replicas.values() if r.dataset is not None}
        self.datasets = sorted(datasets, key=lambda d: d.sha256)
        self._counts: dict[str, Recount] = {}
        """The count of each graph, by its hash."""
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
        """What the primaries wrote."""
        return self.journal(self.paths.primary_journal)

    def journal(self, path: Path) -> Journal:
        """Return a journal; an empty one, where there is none."""
        return self.journals.get(path) or Journal()

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The attempts of all replicas whose trainers left a journal."""
        replicas = self.history.replicas.values()
        return [attempt for replica in replicas for attempt in self.attempts_of(replica)]

    def attempts_of(self, replica: ReplicaHistory) -> list[Attempt]:
        """Return the attempts of a replica whose trainers left a journal."""
        return [
            Attempt(replica, life, path, self.journals[path])
            for life in replica.starts
            if (path := self.paths.replica_journal(replica.id, life)) in self.journals
        ]

    def tolerance(self, replica: ReplicaHistory) -> float:
        """Return the seconds by which a replica's clock and the primary's may differ."""
        checked, manifest = replica.checked, self.manifest
        ahead = checked.clock_ahead_seconds if checked is not None else None
        # A simulated replica that waits for the file server is ahead of the others meanwhile.
        rate = self.config.engine.simulation.syncs_per_second
        waits = QUEUES * manifest.replicas / rate if manifest.simulated else 0.0
        return CLOCK_TOLERANCE + abs(ahead or 0.0) + waits + self.stepped(replica)

    def stepped(self, replica: ReplicaHistory) -> float:
        """Return the seconds by which a replica's clock and the primary's were set, in all."""
        paths = self.paths
        own = [paths.replica_journal(replica.id, life) for life in replica.starts]
        return self.steps_of(paths.primary_journal) + sum(map(self.steps_of, own))

    def steps_of(self, path: Path) -> float:
        """Return the seconds by which the clock of a journal's writer was set, in all."""
        steps = self.journal(path).steps
        return sum(abs(step.seconds) for step in steps if self.is_honest(path, step))

    def is_honest(self, path: Path, step: Step) -> bool:
        """Return whether an honest machine's clock may have made a step.

        One that goes forward makes no run shorter: the clock was set, or the machine suspended.
        That it was set back has to be in a later reading of all clocks, which the rule
        ``timekeeping`` compares with the times of its record. A replica's other processes read
        none: its trainer's clock was set with theirs.
        """
        if not step.forward or step.seconds > 0.0:
            return step.forward
        own = self.journals[path]
        if any(each.seq >= step.seq for process in own.processes for each in process.readings):
            return True
        trainer = path.with_name("journal.jsonl")
        return path != trainer and any(
            abs(each.seconds - step.seconds) < CLOCK_TOLERANCE and self.is_honest(trainer, each)
            for each in self.journal(trainer).steps
        )

    @cached_property
    def trial_endings(self) -> TrialEndings:
        """What the replicas recorded of trials, also after they had been replaced."""
        found = TrialEndings()
        for journal in self.journals.values():
            for utc, ended in journal.records_of(records.TrialEnded):
                found.ends.setdefault(ended.trial, (utc, ended.checkpoint))
            for utc, dropped in journal.records_of(records.CheckpointDropped):
                found.dropped.setdefault(dropped.trial, utc)
            for name, epoch in journal.evaluated.items():
                found.evaluated[name] = max(epoch, found.evaluated.get(name, 0))
        return found

    def memory_limit(self, trial: Trial) -> MemoryLimit | None:
        """Return what a trial's training may take on a rank, if that was recorded."""
        path = self.paths.replica_journal(trial.replica, trial.incarnation)
        loaded = self.journal(path).records_of(records.DatasetLoaded)
        latest = loaded[-1][1] if loaded else None
        if latest is None or latest.memory_limit_bytes is None:
            return None
        return MemoryLimit(self.config, latest.memory_limit_bytes, latest.memory_holds_copies)

    @property
    def dataset(self) -> DatasetInfo:
        """The one dataset; the rule ``dataset`` says whether there is exactly one."""
        return self.datasets[0]

    @cached_property
    def begun(self) -> list[Trial]:
        """The trials that began before the end; what came after it is not counted, and no fault."""
        return [trial for trial in self.trials if trial.started_utc <= self.end]

    @cached_property
    def samples(self) -> dict[str, tuple[int, int]]:
        """The training and validation samples of each trial until the end."""
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
        """Return what a trial is credited until the end. Raises MorphismError."""
        train, validation = self.samples.get(trial.id, (0, 0))
        counted = self.count(trial)
        return train * counted.training + validation * counted.forward

    @cached_property
    def reported(self) -> bool:
        """Whether there has to be a final report, or is one."""
        return self.history.end_utc is not None or self.report.exists()

    @cached_property
    def end(self) -> float:
        """The end of the scored time, UTC seconds."""
        if self.history.end_utc is not None:
            return self.history.end_utc
        latest = (
            max((utc for utc in journal.times if utc < self.fence(path)), default=0.0)
            for path, journal in self.journals.items()
        )
        return max(latest, default=0.0)

    def graph(self, trial: Trial) -> Graph:
        """Return a trial's graph, derived again. Raises MorphismError."""
        return self.lineage.graph(trial.id)

    def _descent(self, name: str) -> Descent | None:
        """Return where the graph of a trial or a proposal comes from."""
        proposal = self.history.proposals.get(name)
        return self.history.descent(name) or (None if proposal is None else proposal.proposed)

    @property
    def lineage(self) -> Lineage:
        """The graphs, derived again from the initial one. Raises AIPerfError."""
        if self._lineage is None:
            raise AIPerfError("no replica recorded its dataset")
        return self._lineage

    def count(self, trial: Trial) -> Recount:
        """Return the count of a trial's graph, grown again. Raises MorphismError."""
        return self.count_of(self.graph(trial))

    def count_of(self, graph: Graph) -> Recount:
        """Return the count of a graph."""
        if graph.hash not in self._counts:
            counted = count(graph)
            self._counts[graph.hash] = Recount(
                counted.training, counted.forward, graph.parameter_count, graph.depth
            )
        return self._counts[graph.hash]

    def executions(self) -> Iterator[tuple[str, Journal, list[Executed]]]:
        """Yield all lives of replicas: where one's journal is, what it executed that counts."""
        for path, journal in self.journals.items():
            if journal.started is not None:
                fence = self.fence(path)
                where = str(path.relative_to(self.paths.root))
                yield where, journal, [each for each in journal.executed if each.utc < fence]

    def progress(self) -> Iterator[Executed]:
        """Yield every progress record that counts.

        Those that a replica wrote after a later life of it had started do not count.
        """
        for path, journal in self.journals.items():
            fence = self.fence(path)
            for executed in journal.executed:
                if executed.utc < fence:
                    yield executed

    def samplers(self) -> Iterator[Sampler]:
        """Yield who told of the energy of nodes, with the samples that count."""
        for path, journal in self.journals.items():
            fence = self.fence(path)
            for sampler in journal.samplers:
                if sampler.begin < fence:
                    until = [each for each in sampler.samples if each[0] < fence]
                    yield replace(sampler, samples=until, replica=path.parent.parent.name)

    def fence(self, journal: Path) -> float:
        """Return from when on a journal's records do not count, UTC seconds."""
        if journal == self.paths.primary_journal:
            return math.inf
        own, lives = Incarnation.parse(journal.parent.name), self._lives[journal.parent.parent]
        return min((utc for life, utc in lives.items() if life > own), default=math.inf)

    @cached_property
    def _lives(self) -> Mapping[Path, Mapping[Incarnation, float]]:
        """When each life of each replica started, UTC seconds, by the replica's folder."""
        found: defaultdict[Path, dict[Incarnation, float]] = defaultdict(dict)
        for path, journal in self.journals.items():
            if path != self.paths.primary_journal and journal.attempt_began_utc is not None:
                life = Incarnation.parse(path.parent.name)
                found[path.parent.parent][life] = journal.attempt_began_utc
        return found
