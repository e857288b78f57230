"""Verification: everything that a score rests on, recomputed from the run's own records.

The recount does not go through the code that made the score: it sums the progress records of
the journals itself, and counts graphs that it has grown again from the initial network by the
recorded morphisms, not the stored ones.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from aiperf_hpc.config import Reals
from aiperf_hpc.errors import AIPerfError, GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.lineage import Lineage, initial_graph
from aiperf_hpc.morphism.operators.grow import inserted_spatial_convs
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.primary.formatting import utc_text
from aiperf_hpc.primary.monitor.run_view import RunView
from aiperf_hpc.primary.report.model import make_report
from aiperf_hpc.primary.report.provenance import changed_files, has_grown, is_final
from aiperf_hpc.run import records
from aiperf_hpc.run.history import Trial, no_collections
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.run.records import RECORD, Record
from aiperf_hpc.trial import DatasetInfo, JobPhase, RoundPhase, TrialState

CLOCK_TOLERANCE = 1.0
"""Seconds by which two clocks, or a sum of durations and its whole, may differ."""
STARTS = records.RunStarted | records.TakenOver | records.ReplicaStarted | records.SearchStarted
"""What a process writes first."""
BOUNDS = records.RunStarted | records.RunEnded
"""What may not follow the end of a run."""


STATED = (
    "run_id", "final", "valid", "invalid", "started", "until", "end_reason", "nodes", "hours",
    "launcher", "score", "series", "interval_hours", "operations", "best", "datasets", "versions",
    "commit", "config",
)  # fmt: skip
"""What of a report must follow from the records until the run's end. (A replica that was cut off
may have written on after it; that changes nothing of these.)"""
STATED_OF_A_TRIAL = (
    "replica", "round", "phase", "graph", "parent", "morphisms", "batch_size", "kernel_size",
    "learning_rate", "parameters", "depth", "train_operations", "validation_operations",
    "epoch_limit", "started_seconds", "grown_by", "hyperparameters", "notes",
)  # fmt: skip
"""The same of each of its trials. What it executed and reached is recounted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one rule: what it checks, how much was checked, what is wrong."""

    rule: str
    checks: str
    checked: int
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


class Audit:
    """One verification of one run."""

    def __init__(self, view: RunView) -> None:
        """Read the run. Raises JournalError when a journal cannot be read at all."""
        view.refresh()
        self.view = view
        self.history = view.history
        self.config = view.manifest.config
        with no_collections(keep_all=True):
            # The same bytes as the history: a running replica may have appended since.
            self.journals = {
                path: _read(path, size) for path, size in self.history.bytes_read.items()
            }
        datasets = {r.dataset for r in self.history.replicas.values() if r.dataset is not None}
        self.datasets = sorted(datasets, key=lambda d: d.sha256)
        self._counts: dict[str, Recount] = {}
        """By the hash of the graph."""
        self._fences = self._all_fences()
        self._lineage = (
            Lineage(self.history.descent, initial_graph(self.config.model, self.datasets[0]))
            if self.datasets
            else None
        )

    @property
    def trials(self) -> list[Trial]:
        return list(self.history.trials.values())

    @property
    def dataset(self) -> DatasetInfo:
        """The one dataset; the rule ``dataset`` says whether there is exactly one."""
        return self.datasets[0]

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
            max((utc for utc in journal.times if utc < self._fence(path)), default=0.0)
            for path, journal in self.journals.items()
        )
        return max(latest, default=0.0)

    def graph(self, trial: Trial) -> Graph:
        """Return a trial's graph, grown again. Raises MorphismError."""
        if self._lineage is None:
            raise AIPerfError("no replica recorded its dataset")
        return self._lineage.graph(trial.id)

    def count(self, trial: Trial) -> Recount:
        """Return the count of a trial's graph, grown again. Raises MorphismError."""
        graph = self.graph(trial)
        if graph.hash not in self._counts:
            counted = count(graph)
            self._counts[graph.hash] = Recount(
                counted.training, counted.forward, graph.parameter_count, graph.depth
            )
        return self._counts[graph.hash]

    def progress(self) -> Iterator[Executed]:
        """Yield every progress record that counts.

        Those that a replica wrote after a later life of it had started do not count.
        """
        for path, journal in self.journals.items():
            fence = self._fence(path)
            for executed in journal.executed:
                if executed.utc < fence:
                    yield executed

    def _fence(self, journal: Path) -> float:
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


Failures = Iterator[str]
Json = dict[str, Any]
Rule = tuple[str, str, Callable[[Audit], int], Callable[[Audit], Failures]]


class Recount(NamedTuple):
    """What a graph counts: operations a training and a validation sample, parameters, depth."""

    training: int
    forward: int
    parameters: int
    depth: int


class Executed(NamedTuple):
    """A progress record."""

    utc: float
    trial: str
    epoch: int
    train_samples: int
    validation_samples: int


class Journal:
    """What the rules need of one journal: not every record, of which there may be millions."""

    def __init__(self) -> None:
        self.times = array("d")
        """Of all records, UTC seconds."""
        self.begins_a_life: float | None = None
        """When, UTC seconds; None unless its first record says that a replica started."""
        self.executed: list[Executed] = []
        self.drifts: list[str] = []
        """Where the UTC clock did not run as the monotonic one did."""
        self.reopened: list[str] = []
        """What starts or ends the run although it had ended."""
        self._first: Record | None = None
        self._before: Record | None = None
        self._over = False

    def add(self, record: Record) -> None:
        """Take the next record."""
        event = record.event
        if not self.times and isinstance(event, records.ReplicaStarted):
            self.begins_a_life = record.utc
        self.times.append(record.utc)
        if isinstance(event, records.Progress):
            self.executed.append(
                Executed(
                    record.utc,
                    sys.intern(event.trial),
                    event.epoch,
                    event.train_samples,
                    event.validation_samples,
                )
            )
        elif isinstance(event, BOUNDS):
            if self._over:
                self.reopened.append(f"record {record.seq}: {event.type} after the run had ended")
            self._over |= isinstance(event, records.RunEnded)
        self._compare_clocks(record)

    def _compare_clocks(self, record: Record) -> None:
        first, before = self._first, self._before
        self._before = record
        if first is None or before is None or isinstance(record.event, STARTS):
            self._first = record  # Another process, perhaps on another host.
            return
        drift = (record.utc - first.utc) - (record.mono - first.mono)
        if record.mono < before.mono or abs(drift) > CLOCK_TOLERANCE:
            self.drifts.append(f"record {record.seq}: {drift:.3f} s off since record {first.seq}")


def _read(path: Path, size: int) -> Journal:
    """Return what is in the first ``size`` bytes of a journal."""
    journal = Journal()
    with path.open("rb") as file:
        for line in file.read(size).splitlines():
            try:
                journal.add(RECORD.validate_json(line))
            except ValidationError:
                continue  # The rule ``journals`` reports it.
    return journal


def _journals(audit: Audit) -> Failures:
    for problem in audit.history.problems:
        yield str(problem)


def _clocks(audit: Audit) -> Failures:
    """Within one writer, the UTC clock must run as the monotonic one does."""
    for path, journal in audit.journals.items():
        where = path.relative_to(audit.view.paths.root)
        yield from (f"{where}, {drift}" for drift in journal.drifts)


def _replicas(audit: Audit) -> Failures:
    """What the primary knows from a replica's records, or from its success, needs records.

    A node may die, or be refused, before its replica has written any: that it ran is not enough.
    """
    for replica in audit.history.replicas.values():
        if replica.starts:
            continue
        job = replica.job_state
        done = job is not None and job.phase is JobPhase.DONE and not job.detail
        ended = replica.exit_status == 0 or done
        if replica.checked is not None or ended:
            what = "ended in order" if ended else "started"
            yield f"the primary recorded that {replica.id} {what}; {replica.id} recorded no start"


def _stated_manifests(audit: Audit) -> list[tuple[float, str]]:
    """Return when a primary stated the SHA-256 of ``run.yaml``, UTC seconds, and what it was."""
    starts = audit.history.run_starts
    return [(utc, event.manifest_sha256) for utc, event in starts if event.manifest_sha256]


def _config(audit: Audit) -> Failures:
    """A primary of an earlier version stated nothing of ``run.yaml``."""
    now = audit.view.paths.manifest_digest()
    for utc, stated in _stated_manifests(audit):
        if stated != now:
            yield (
                f"run.yaml has SHA-256 {now[:12]}, the primary of {utc_text(utc)} had {stated[:12]}"
            )


def _dataset(audit: Audit) -> Failures:
    if len(audit.datasets) != 1:
        names = [f"{d.name} {d.sha256[:12]}" for d in audit.datasets]
        yield f"replicas must have one dataset, they have {names}"
    for dataset in audit.datasets:
        if dataset.name != audit.config.dataset.name:
            yield f"run.yaml asks for {audit.config.dataset.name}, replicas had {dataset.name}"


def _graphs(audit: Audit) -> Failures:
    """Every graph is grown again, and stored as such."""
    looked: set[str] = set()
    for trial in audit.trials:
        name = trial.started.graph
        try:
            audit.graph(trial)  # Its hash is what the trial recorded.
        except AIPerfError as error:
            yield f"{trial.id}: {error}"
            continue
        if name in looked:
            continue
        looked.add(name)
        try:
            audit.view.graphs.load(name)  # Its hash is its name.
        except GraphError as error:
            yield f"{trial.id}: {error}; the recorded morphisms give it again"


def _counts(audit: Audit) -> Failures:
    for trial in audit.trials:
        started = trial.started
        try:
            recount = audit.count(trial)
        except AIPerfError as error:
            yield f"{trial.id}: {error}"
            continue
        recorded = (
            started.train_operations,
            started.validation_operations,
            started.parameters,
            started.depth,
        )
        if recount != recorded:
            yield f"{trial.id}: recorded {recorded}, recounted {tuple(recount)}"


def _samples(audit: Audit) -> Failures:
    """An epoch executes each sample once; a part of an epoch not more than that."""
    trained: Counter[tuple[str, int]] = Counter()
    validated: Counter[tuple[str, int]] = Counter()
    for progress in audit.progress():
        trained[progress.trial, progress.epoch] += progress.train_samples
        validated[progress.trial, progress.epoch] += progress.validation_samples
    for progress in audit.progress():
        utc, trial = progress.utc, audit.history.trials.get(progress.trial)
        if trial is None:
            continue  # The rule ``journals`` reports it.
        started, last = trial.training_utc, trial.ended_utc
        within = started is not None and started <= utc <= (utc if last is None else last)
        due = trial.started.first_epoch + len(trial.evaluations)
        if not within or not trial.started.first_epoch <= progress.epoch <= min(
            due, trial.started.epoch_limit
        ):
            yield f"{trial.id}: samples of epoch {progress.epoch} outside of its training"
    if not audit.datasets:
        return
    full = audit.dataset.train_samples, audit.dataset.validation_samples
    evaluated = {(t.id, e.epoch) for t in audit.trials for e in t.evaluations}
    for key in sorted(trained.keys() | evaluated):
        done = trained[key], validated[key]
        complete = key in evaluated
        if done != full if complete else (done[0] > full[0] or done[1] > full[1]):
            wanted = "must be" if complete else "may be at most"
            yield f"{key[0]}, epoch {key[1]}: {done} samples executed, {wanted} {full}"


def _evaluations(audit: Audit) -> Failures:
    for trial in audit.trials:
        epochs = [e.epoch for e in trial.evaluations]
        first, limit = trial.started.first_epoch, trial.started.epoch_limit
        if epochs != list(range(first, first + len(epochs))) or (epochs and epochs[-1] > limit):
            yield f"{trial.id}: evaluated epochs {epochs}, from {first} to at most {limit}"
        for result in trial.evaluations:
            if audit.datasets and result.samples != audit.dataset.validation_samples:
                yield f"{trial.id}, epoch {result.epoch}: {result.samples} samples evaluated"
            if result.correct > result.samples or not math.isfinite(result.validation_loss):
                right = f"{result.correct} of {result.samples} right, loss {result.validation_loss}"
                yield f"{trial.id}, epoch {result.epoch}: {right}"


def _order(audit: Audit) -> Failures:
    """A replica has one trainer: its trials follow one another, from the run's start on.

    One may begin before the end of the last one is recorded, which waits for its weights to be
    stored; but not before the last samples of it were executed. What a replica that was cut off,
    or whose clock is ahead, records after the run's end is not counted, and no fault.
    """
    for path, journal in audit.journals.items():
        where = path.relative_to(audit.view.paths.root)
        yield from (f"{where}, {what}" for what in journal.reopened)
    start = audit.history.start_utc
    if start is None:
        yield "the primary recorded no start of the run"
        return
    executed: dict[str, float] = {}
    for progress in audit.progress():
        executed[progress.trial] = max(progress.utc, executed.get(progress.trial, progress.utc))
    for replica in audit.history.replicas.values():
        free = start
        for trial in (audit.history.trials[name] for name in replica.trials):
            if trial.started_utc < free - CLOCK_TOLERANCE:
                yield f"{trial.id} started {free - trial.started_utc:.3f} s before it could"
            in_order = replica.ended is not None and not replica.ended.startswith("failed")
            if in_order and trial.ended is None and not trial.interrupted:
                yield f"{trial.id} has no end although {replica.id} ended in order"
            free = max(trial.started_utc, executed.get(trial.id, trial.started_utc))
    early = [p.trial for p in audit.progress() if p.utc < start]
    if early:
        yield f"{len(early)} records of executed samples are before the start: {sorted(set(early))}"


def _rounds(audit: Audit) -> Failures:
    """Warm-up first, then HPO; limits as configured; the kernel size really in the graph."""
    warmup, config = audit.config.rounds.warmup_epochs, audit.config
    for trial in audit.trials:
        started = trial.started
        early = started.round <= len(warmup)
        phase = RoundPhase.WARMUP if early else RoundPhase.HPO
        limit = warmup[started.round - 1] if early else config.training.max_epochs
        if (started.phase, started.epoch_limit) != (phase, limit):
            yield (
                f"{trial.id}: round {started.round} is {phase} with {limit} epochs, recorded are "
                f"{started.phase} with {started.epoch_limit}"
            )
        yield from _used(audit, trial)
        chosen = started.hyperparameters.kernel_size
        if chosen is not None:
            sizes = set(inserted_spatial_convs(audit.graph(trial)).values())
            if sizes != {chosen}:
                yield f"{trial.id}: kernel size {chosen} was chosen, its graph has {sorted(sizes)}"


def _used(audit: Audit, trial: Trial) -> Failures:
    """The hyperparameters are those of the configuration, or of its search space."""
    training, used = audit.config.training, trial.started.hyperparameters
    searched = audit.config.hpo.space if trial.started.phase is RoundPhase.HPO else None
    for name in (
        "optimizer", "learning_rate", "momentum", "weight_decay", "label_smoothing", "precision"
    ):  # fmt: skip
        value, dimension = getattr(used, name), getattr(searched, name, None)
        if isinstance(dimension, Reals):
            if not dimension.low <= value <= dimension.high:
                yield f"{trial.id}: {name} {value} is not from {dimension.low} to {dimension.high}"
        elif value != getattr(training, name):
            yield f"{trial.id}: {name} {value}, configured {getattr(training, name)}"
    allowed = searched.batch_size.values if searched else (training.batch_size,)
    if used.batch_size not in allowed and not trial.started.notes:
        yield f"{trial.id}: batch size {used.batch_size} is not one of {sorted(allowed)}"
    sizes = (None, *searched.kernel_size.values) if searched else (None,)
    if used.kernel_size not in sizes:
        yield f"{trial.id}: kernel size {used.kernel_size} is not in the search space"


def _states(audit: Audit) -> Failures:
    for trial in audit.trials:
        if trial.ended is None:
            continue
        if not trial.ended.state.ended:
            yield f"{trial.id} ended in the state {trial.ended.state}"
        due = trial.started.epoch_limit - trial.started.first_epoch + 1
        full = len(trial.evaluations) == due
        if trial.ended.state is TrialState.COMPLETED and not full:
            yield f"{trial.id} is completed after {len(trial.evaluations)} epochs"
        if trial.ended.state is TrialState.FAILED and not trial.ended.reason:
            yield f"{trial.id} failed without a reason"


def _time(audit: Audit) -> Failures:
    """What a replica says it spent cannot be more than there was until its last record."""
    start = audit.history.start_utc or audit.end
    for replica in audit.history.replicas.values():
        spent, elapsed = sum(replica.seconds.values()), max(audit.end, replica.last_utc) - start
        if spent > elapsed + CLOCK_TOLERANCE:
            yield f"{replica.id} spent {spent:.1f} s of {elapsed:.1f} s"


def recount(audit: Audit) -> tuple[int, float, float | None]:
    """Return operations, OPS and regulated score, from the records and regrown graphs alone."""
    start = audit.history.start_utc
    if start is None:
        return 0, 0.0, None
    operations = sum(audit.operations(audit.history.trials[name]) for name in audit.samples)
    elapsed = audit.end - start
    ops = operations / elapsed if elapsed > 0 else 0.0
    results = [e for t in audit.trials for e in t.evaluations if e.utc <= audit.end]
    if not results:
        return operations, ops, None
    best = max(results, key=lambda r: r.correct / r.samples)
    wrong = max(best.samples - best.correct, 1)
    return operations, ops, ops * math.log(best.samples / wrong)


def _score(audit: Audit) -> Failures:
    """The score now, and the one that the final report states, must be the recount's."""
    try:
        operations, ops, regulated = recount(audit)
        final = audit.view.final()
    except (AIPerfError, KeyError) as error:
        yield f"it cannot be recounted: {error}"
        return
    wanted = {"operations": operations, "ops": ops, "regulated": regulated}
    for key, value in wanted.items():
        if not _same(getattr(final, key), value):
            yield f"the score now has {key} {getattr(final, key)}, recounted {value}"


def _report(audit: Audit) -> Failures:
    """The final report is what these records give, in every number."""
    paths = audit.view.paths
    if not audit.reported:
        return
    try:
        stated = json.loads(paths.report_json.read_bytes())
        made = json.loads(make_report(audit.view).model_dump_json())
    except OSError as error:
        yield f"report.json cannot be read: {error.strerror}"
        return
    except AIPerfError as error:
        yield str(error)
        return
    except ValueError as error:
        yield f"report.json is damaged: {error}"
        return
    if not isinstance(stated, dict):
        yield "report.json is no report"
        return
    for key in STATED:
        if stated.get(key) != made.get(key):
            yield f"report.json states another '{key}' than the records give"
    yield from _rows(audit, stated, made)
    if not has_grown(audit.view):
        yield from _times(stated, made)


def _rows(audit: Audit, stated: Json, made: Json) -> Failures:
    """Every trial until the end has one row, which states what the recount gives."""
    expected, rows = _by_id(made["trials"]), _table(stated, "trials")
    stated_rows = _by_id(rows)
    if len(stated_rows) != len(rows):
        yield "report.json states trials of the same name"
    begun = {trial.id for trial in audit.trials if trial.started_utc <= audit.end}
    for name in sorted(begun - stated_rows.keys() | stated_rows.keys() - expected.keys()):
        yield f"report.json states {'no' if name in begun else 'an unknown'} trial {name}"
    for name in sorted(stated_rows.keys() & expected.keys()):
        trial = audit.history.trials[name]
        wanted = {key: expected[name][key] for key in STATED_OF_A_TRIAL} | _result(audit, trial)
        for key, value in wanted.items():
            if stated_rows[name].get(key) != value:
                yield f"{name}: report.json states another '{key}' than the records give"


def _result(audit: Audit, trial: Trial) -> Json:
    """Return what a trial executed and reached until the end."""
    train, validation = audit.samples.get(trial.id, (0, 0))
    reached = [e.correct / e.samples for e in trial.evaluations if e.utc <= audit.end]
    return {
        "train_samples": train,
        "validation_samples": validation,
        "operations": audit.operations(trial),
        "epochs": len(reached),
        "best_accuracy": max(reached, default=None),
    }


def _times(stated: Json, made: Json) -> Failures:
    """Where the time went; sums over replicas that may have been read in another order."""
    if not _alike(stated.get("time"), made["time"]):
        yield "report.json states another 'time' than the records give"
    replicas = _by_id(_table(stated, "replicas"))
    for row in made["replicas"]:
        if not _alike(replicas.get(row["id"], {}).get("time"), row["time"]):
            yield f"{row['id']}: report.json states another 'time' than the records give"


def _table(stated: Json, key: str) -> list[Json]:
    """Return the rows of a table that is yet to be compared, whatever it is."""
    table = stated.get(key)
    return [row for row in table if isinstance(row, dict)] if isinstance(table, list) else []


def _by_id(rows: list[Json]) -> dict[str, Json]:
    return {str(row.get("id")): row for row in rows}


def _alike(one: object, other: object) -> bool:
    """Return whether two values of JSON are equal, but for the last digits of floats."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def _same(stated: float | None, recounted: float | None) -> bool:
    """Counts must be equal; what is divided or a logarithm, to the last digits of a float."""
    if isinstance(stated, int) or stated is None or recounted is None:
        return stated == recounted
    return math.isclose(stated, recounted, rel_tol=1e-12)


def _files(audit: Audit) -> Failures:
    """The files are those that the final report was made from."""
    if audit.reported:
        yield from changed_files(audit.view)


def _trial_count(audit: Audit) -> int:
    return len(audit.trials)


def _record_count(audit: Audit) -> int:
    return sum(len(journal.times) for journal in audit.journals.values())


def _progress_count(audit: Audit) -> int:
    return sum(1 for _ in audit.progress())


def _evaluation_count(audit: Audit) -> int:
    return sum(len(trial.evaluations) for trial in audit.trials)


RULES: tuple[Rule, ...] = (
    ("journals", "every line is a record in its place", _record_count, _journals),
    ("clocks", "UTC and monotonic times agree", _record_count, _clocks),
    ("replicas", "replicas that started or ended in order left records",
     lambda a: len(a.history.replicas), _replicas),
    ("config", "run.yaml is what every primary had",
     lambda a: len(_stated_manifests(a)), _config),
    ("dataset", "all replicas had the configured dataset", lambda a: len(a.datasets), _dataset),
    ("graphs", "every graph follows from the initial one by its morphisms", _trial_count, _graphs),
    ("counts", "recorded operations a sample are those of the graph", _trial_count, _counts),
    ("samples", "each sample at most once an epoch, exactly once if evaluated",
     _progress_count, _samples),
    ("evaluations", "evaluations are whole, in order, within limits",
     _evaluation_count, _evaluations),
    ("order", "one trial at a time on a replica, from the run's start on", _trial_count, _order),
    ("rounds", "warm-up, then HPO; the chosen kernel size is in the graph", _trial_count, _rounds),
    ("states", "trials ended as their records say", _trial_count, _states),
    ("time", "no replica spent more time than there was",
     lambda a: len(a.history.replicas), _time),
    ("score", "operations, OPS and regulated score equal the recount", _progress_count, _score),
    ("report", "the final report is what the records give",
     lambda a: int(a.reported), _report),
    ("files", "journals and graphs are those that the report was made from",
     lambda a: len(a.journals) + len(a.history.graphs) + 1, _files),
)  # fmt: skip


def verify(view: RunView) -> list[Finding]:
    """Check every rule on a run and return what came of each, in order.

    Raises:
        JournalError: a journal cannot be read at all.
    """
    audit = Audit(view)
    return [
        Finding(name, checks, checked(audit), tuple(_failures(audit, rule)))
        for name, checks, checked, rule in RULES
    ]


def _failures(audit: Audit, rule: Callable[[Audit], Failures]) -> Failures:
    try:
        yield from rule(audit)
    except AIPerfError as error:
        yield f"it cannot be checked: {error}"
