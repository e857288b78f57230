"""What the rules look at: the journals read anew, and the graphs grown anew."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from cryptography.x509 import Certificate

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.morphism.lineage import Descent, Lineage
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.results.report.provenance import is_final
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history import Evaluation, ReplicaHistory, Trial, no_collections
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.verification.journal import (
    CLOCK_TOLERANCE,
    Executed,
    Journal,
    Sampler,
    Step,
    read_journal,
)
from aiperf_hpc.workloads.registry import initial_graph

Failures = Iterator[str]
"""What a rule found wrong, a line each; and what it has to say besides, as ``Note``."""


class Note(str):
    """A line of a rule that is no failure: what was found, or could not be checked and why."""

    __slots__ = ()


QUEUES = 4
"""How often a simulated replica waits for the writes of all others, at most, in one go."""


class Recount(NamedTuple):
    """What a graph counts: operations a training and a validation sample, parameters, depth."""

    training: int
    forward: int
    parameters: int
    depth: int


@dataclass(slots=True)
class ToldOfTrials:
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


class Evidence:
    """A run as verification reads it."""

    def __init__(
        self,
        view: RunView,
        trusted: Sequence[PublicKey] = (),
        witnesses: Sequence[PublicKey] = (),
        authorities: Sequence[Certificate] = (),
    ) -> None:
        """Read the run.

        Args:
            view: the run.
            trusted: the keys of which one must have signed it, if any must.
            witnesses: the keys of witnesses of which one must have seen it go on, if any must.
            authorities: certificates below which are authorities whose time stamps do as well.

        Raises:
            JournalError: a journal cannot be read at all.
        """
        view.refresh()
        self.trusted = trusted
        self.view = view
        self.witnesses = witnesses
        self.authorities = authorities
        self.history = view.history
        self.config = view.manifest.config
        with no_collections(keep_all=True):
            # The same bytes as the history: a running replica may have appended since.
            self.journals = {
                path: read_journal(path, size) for path, size in self.history.bytes_read.items()
            }
        datasets = {r.dataset for r in self.history.replicas.values() if r.dataset is not None}
        self.datasets = sorted(datasets, key=lambda d: d.sha256)
        self._counts: dict[str, Recount] = {}
        """The count of each graph, by its hash."""
        self._fences = self._all_fences()
        self._lineage = (
            Lineage(self._descent, initial_graph(self.config, self.datasets[0]))
            if self.datasets
            else None
        )

    @property
    def trials(self) -> list[Trial]:
        return list(self.history.trials.values())

    @property
    def primary(self) -> Journal:
        """What the primaries wrote; nothing, where there is none of it."""
        return self.journals.get(self.view.paths.primary_journal) or Journal()

    def lives(self, replica: ReplicaHistory) -> dict[Incarnation, Journal]:
        """Return what each life of a replica wrote, by its trainer."""
        paths = self.view.paths
        found = {life: paths.replica_journal(replica.id, life) for life in replica.starts}
        return {life: self.journals[path] for life, path in found.items() if path in self.journals}

    def tolerance(self, replica: ReplicaHistory) -> float:
        """Return the seconds by which a replica's clock and the primary's may differ."""
        checked, manifest = replica.checked, self.view.manifest
        ahead = checked.clock_ahead_seconds if checked is not None else None
        # A simulated replica that waits for the file server is ahead of the others meanwhile.
        rate = self.config.engine.simulation.syncs_per_second
        waits = QUEUES * manifest.replicas / rate if manifest.simulated else 0.0
        return CLOCK_TOLERANCE + abs(ahead or 0.0) + waits + self.stepped(replica)

    def stepped(self, replica: ReplicaHistory) -> float:
        """Return the seconds by which a replica's clock and the primary's were set, in all."""
        paths = self.view.paths
        own = [paths.replica_journal(replica.id, life) for life in replica.starts]
        return self.steps_of(paths.primary_journal) + sum(map(self.steps_of, own))

    def steps_of(self, path: Path) -> float:
        """Return the seconds by which the clock of a journal's writer was set, in all."""
        steps = self.journals[path].steps if path in self.journals else []
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
        return (
            path != trainer
            and trainer in self.journals
            and any(
                abs(each.seconds - step.seconds) < CLOCK_TOLERANCE and self.is_honest(trainer, each)
                for each in self.journals[trainer].steps
            )
        )

    @cached_property
    def told_of_trials(self) -> ToldOfTrials:
        """What the replicas recorded of trials, also after they had been replaced."""
        found = ToldOfTrials()
        for journal in self.journals.values():
            for utc, ended in journal.told(records.TrialEnded):
                found.ends.setdefault(ended.trial, (utc, ended.checkpoint))
            for utc, dropped in journal.told(records.CheckpointDropped):
                found.dropped.setdefault(dropped.trial, utc)
            for name, epoch in journal.evaluated.items():
                found.evaluated[name] = max(epoch, found.evaluated.get(name, 0))
        return found

    def memory_limit(self, trial: Trial) -> MemoryLimit | None:
        """Return what a trial's training may take on a rank, if that was recorded."""
        path = self.view.paths.replica_journal(trial.replica, trial.incarnation)
        loaded = self.journals[path].told(records.DatasetLoaded) if path in self.journals else []
        said = loaded[-1][1] if loaded else None
        if said is None or said.memory_limit_bytes is None:
            return None
        return MemoryLimit(self.config, said.memory_limit_bytes, said.memory_holds_copies)

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
        return self.history.end_utc is not None or is_final(self.view)

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
        """Return a trial's graph, grown again. Raises MorphismError."""
        if self._lineage is None:
            raise AIPerfError("no replica recorded its dataset")
        return self._lineage.graph(trial.id)

    def _descent(self, name: str) -> Descent | None:
        """Return where the graph of a trial or a proposal comes from."""
        proposal = self.history.proposals.get(name)
        return self.history.descent(name) or (None if proposal is None else proposal.proposed)

    def initial(self) -> Graph:
        """Return the graph that all others grow from. Raises AIPerfError."""
        if self._lineage is None:
            raise AIPerfError("no replica recorded its dataset")
        return self._lineage.initial

    def candidate(self, proposal: str) -> Graph:
        """Return a proposal's graph, grown again. Raises MorphismError."""
        if self._lineage is None:
            raise AIPerfError("no replica recorded its dataset")
        return self._lineage.graph(proposal)

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
                where = str(path.relative_to(self.view.paths.root))
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
        return self._fences.get(journal.parent, math.inf)

    def _all_fences(self) -> dict[Path, float]:
        """Return when a later life of its replica started, UTC seconds, for each life's folder."""
        lives: defaultdict[Path, dict[Incarnation, float]] = defaultdict(dict)
        for path, journal in self.journals.items():
            if path != self.view.paths.primary_journal and journal.begins_a_life is not None:
                lives[path.parent.parent][Incarnation.parse(path.parent.name)] = (
                    journal.begins_a_life
                )
        folders = {p.parent for p in self.journals if p != self.view.paths.primary_journal}
        fences = {}
        for folder in folders:
            life = Incarnation.parse(folder.name)
            later = (utc for other, utc in lives[folder.parent].items() if other > life)
            fences[folder] = min(later, default=math.inf)
        return fences
