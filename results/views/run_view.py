"""Read interface of a run for the command line, the REST service and the report.

A ``RunView`` tails the journals and returns plain typed values. It never writes, so any number of
views can read a run concurrently, from any node with access to the run directory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache, cached_property
from typing import Literal, Self

from aiperf_hpc.errors import JournalError, RunDirectoryError
from aiperf_hpc.formatting import age
from aiperf_hpc.objective import ACCURACY, QUALITY_METRICS, QualityMetric
from aiperf_hpc.ops_counter.score import ScoreSeries, ScoreStatus, end_of, score_at, totals
from aiperf_hpc.results.views.clock import ClockStatus, clock_status, queue_reason
from aiperf_hpc.results.views.nodes import (
    ElasticityStatus,
    KindStatus,
    elasticity_status,
    kinds_status,
)
from aiperf_hpc.results.views.quantities import Figures, figures_of
from aiperf_hpc.results.views.replica_status import (
    ReplicaStatus,
    StorageStatus,
    record_problems,
    replica_statuses,
    storage_statuses,
)
from aiperf_hpc.results.views.resources import Resources, RunMachine
from aiperf_hpc.results.views.run_graphs import RunGraphs
from aiperf_hpc.results.views.telemetry import EnergyStatus, TelemetryStatus, telemetry_status
from aiperf_hpc.results.views.trials import (
    QUEUED,
    ModelsStatus,
    TrainingTime,
    TrialStatus,
    models_status,
    training_times,
    trial_statuses,
)
from aiperf_hpc.results.views.witnesses import WitnessStatus, witnesses_of
from aiperf_hpc.rules.judgement import Judgement, judge, judge_briefly
from aiperf_hpc.rules.rule import Rule, Violation, violations_of
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.liveness import primary_is_gone, silent_limit
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import TIME_OVER, TRAININGS_DONE
from aiperf_hpc.run.requests import Service
from aiperf_hpc.system.summary import machine_line
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_inside
from aiperf_hpc.workloads.registry import workload_of


class RunState(StrEnum):
    """State of a run."""

    STARTING = "starting"
    QUEUED = "queued"
    """State of a run that waits for its nodes; its clock has not started."""
    RUNNING = "running"
    STOPPING = "stopping"
    SILENT = "silent"
    GONE = "gone"
    """State of a run whose primary failed, or died on this machine; the run can be resumed."""
    ENDED = "ended"


def outcome(state: RunState, reason: str) -> str:
    """Return a state as text: a run that ended early was stopped or failed."""
    if state is not RunState.ENDED or reason in (TIME_OVER, TRAININGS_DONE):
        return state
    return "failed" if "failed" in reason else "stopped"


class BaselineStatus(Value):
    """Quality of a constant predictor on the validation samples (baseline)."""

    predictor: str
    """Description of the constant prediction."""
    quality: float
    """Quality in the run's metric."""


class RunStatus(Value):
    """Current status of a run."""

    run_id: str
    """Name of the run."""
    state: RunState
    """State of the run."""
    simulated: bool = False
    """Whether its time is simulated instead of this machine's."""
    reason: str
    """Reason for the state; may be empty."""
    nodes_requested: int
    """Number of nodes that the user requested."""
    resources: Resources
    """Numbers of replicas, hosts and accelerators."""
    hours: float
    """Requested length in hours."""
    elapsed_seconds: float
    """Seconds since the run's start."""
    remaining_seconds: float
    """Seconds until the run's end."""
    score: ScoreStatus
    """Score so far."""
    metric: str = ACCURACY.name
    """Name of the run's quality metric."""
    best_accuracy: float | None
    """Highest accuracy that an evaluation observed; None if the run has another metric."""
    best_quality: float | None = None
    """Best quality that an evaluation observed."""
    baseline: BaselineStatus | None = None
    """Baseline for the best quality; None in runs with a search and before the first evaluation."""
    error_unavailable_reason: str = ""
    """Reason why there is no error and no regulated score; empty if there is one."""
    best_trial: str | None
    """Trial with the best quality; null before the first evaluation."""
    replicas: tuple[ReplicaStatus, ...]
    """Replicas in the order of their numbers."""
    trials_by_state: dict[str, int]
    """Number of trials by state; queued candidates count as ``queued``."""
    rounds: dict[str, int]
    """Highest round of each replica."""
    violations: tuple[Violation, ...]
    """Rules violated so far, each with the reason."""
    scheduler_problem: str | None
    """Reason why the state of jobs is unknown; None while the scheduler responds."""
    service_url: str | None = None
    """URL of the primary's REST service."""
    problems: tuple[str, ...]
    """Problems of the records, one line each."""
    storage: tuple[StorageStatus, ...] = ()
    """Waits for storage of the primary and of replicas."""
    telemetry: TelemetryStatus | None = None
    """Utilization and power of its nodes; None in documents of earlier versions."""
    machine: str = ""
    """Accelerators, processors and memory of the nodes in one line, as reported by their processes.
    """
    witnesses: tuple[WitnessStatus, ...] = ()
    """Witnesses and timestamp authorities of the run; none in documents of earlier versions."""
    clock: ClockStatus | None = None
    """Waiting times for nodes; None if the clock started with the run."""
    elasticity: ElasticityStatus | None = None
    """Changes of the number of nodes; None if it is constant."""
    kinds: tuple[KindStatus, ...] = ()
    """Contribution of each kind of node; none if all nodes are alike."""
    models: ModelsStatus | None = None
    """Trained models of a run without a search; None in runs with a search."""
    figures: Figures = {}
    """Every headline figure by its name; null if the run does not have it."""

    @property
    def energy(self) -> EnergyStatus | None:
        return None if self.telemetry is None else self.telemetry.energy

    @property
    def violated_rules(self) -> tuple[str, ...]:
        """Names of the rules violated so far."""
        return tuple(dict.fromkeys(each.rule for each in self.violations))


class RunView:
    """View of one run. Call ``refresh`` before reading from it."""

    def __init__(self, paths: RunPaths) -> None:
        """Open a run. Raises RunDirectoryError if ``paths`` is not a run directory."""
        self.paths = paths
        self.manifest = RunManifest.load(paths)
        self._written = bytes_inside(paths.root, paths.manifest)
        self.history = RunHistory(paths)
        self.graphs = GraphStore(paths)
        self.run_graphs = RunGraphs(self.history, self.manifest, self.graphs)
        load = self.run_graphs.load
        self.counts = cache(lambda graph_hash: totals(load(graph_hash)))
        """Returns the operation counts of a graph by its hash. Raises GraphError, CountError."""
        on_cpus = self.manifest.config.engine.device == "cpu"
        self.machine = RunMachine(self.history, self.manifest.site, on_cpus=on_cpus)
        self._judged: tuple[int, Judgement] | None = None
        """Latest judgement, with the number of records that it covers."""
        self.series = ScoreSeries(self.history, self.manifest.config.score.interval_hours)

    @classmethod
    def read(cls, paths: RunPaths) -> Self:
        """Return a view after a first refresh. Raises like the constructor and ``refresh``."""
        view = cls(paths)
        view.refresh()
        return view

    def refresh(self) -> None:
        """Read the records added since the last call.

        Raises:
            RunDirectoryError: the run was removed or replaced by another one.
            JournalError: a journal is unreadable, or was truncated.
            OSError: the directory cannot be read.
        """
        self._require_the_same_run()
        self.history.refresh()
        if lost := self.history.lost:
            raise JournalError(lost)

    def _require_the_same_run(self) -> None:
        try:
            written = bytes_inside(self.paths.root, self.paths.manifest)
        except FileNotFoundError:
            raise RunDirectoryError(
                f"the run directory {self.paths.root} or its run.yaml is missing; restore it"
            ) from None
        if written != self._written:
            raise RunDirectoryError(
                f"{self.paths.manifest} has changed; restore it, or start the command again for "
                "the new run"
            )

    @property
    def until(self) -> float:
        """End of the run or, before its end, its last record, in UTC seconds."""
        return end_of(self.history)

    def final(self) -> ScoreStatus:
        """Return the score at the end of the run, or at the last record so far."""
        return score_at(self.history, self.until)

    def violations(self) -> list[Violation]:
        """Return the rules that the run violates so far."""
        return self.judgement().violations

    def judgement(self) -> Judgement:
        """Return the division in which the run is official, and the outcome of every rule so
        far."""
        count = self.history.record_count
        if self._judged is None or self._judged[0] != count:
            self._judged = count, judge(self._evidence(self.final()), self._rules)
        return self._judged[1]

    def mlperf_division(self) -> Literal["closed", "open"]:
        """Return the MLPerf HPC division of the run, from its settings and its data."""
        run = self._evidence(self.final())
        rules = workload_of(self.manifest.config).division_rules
        return "open" if violations_of(rule.check(run) for rule in rules) else "closed"

    def _violations(self, final: ScoreStatus) -> list[Violation]:
        """Return the violated rules: of all rules after the run's end, of the quick ones before
        it."""
        if self.history.end_utc is not None:
            return self.violations()
        return judge_briefly(self._evidence(final), self._rules)

    @cached_property
    def _rules(self) -> tuple[Rule[RunEvidence], ...]:
        """Rules of the workload's own benchmark."""
        return workload_of(self.manifest.config).rules

    def _evidence(self, final: ScoreStatus) -> RunEvidence:
        return RunEvidence(self.history, self.manifest, final, time.time())

    def status(self, now: float | None = None) -> RunStatus:
        """Return the status at ``now`` (UTC seconds); by default at the current time.

        Raises:
            JournalError: the primary's journal has no start of the run.
        """
        now = self._now() if now is None else now
        history = self.history
        start = history.start_utc
        until = now if history.end_utc is None else history.end_utc
        elapsed = max(0.0, until - start) if start is not None else 0.0
        state, reason = self._state(now)
        service, damage = self._service(state)
        best = history.best_until(until)
        ended = history.end_utc is not None
        remaining = 0.0 if ended else max(0.0, self.manifest.hours * 3600.0 - elapsed)
        final = score_at(history, until)
        nodes_each = self.manifest.config.replica.nodes
        found = RunStatus(
            run_id=self.manifest.run_id,
            state=state,
            simulated=self.manifest.simulated,
            reason=reason,
            nodes_requested=self.manifest.nodes,
            resources=self.resources(),
            hours=self.manifest.hours,
            elapsed_seconds=elapsed,
            remaining_seconds=remaining,
            score=final,
            metric=self.quality_metric.name,
            best_accuracy=best.quality if best and best.quality_metric is ACCURACY else None,
            best_quality=None if best is None else best.quality,
            baseline=self.baseline(),
            error_unavailable_reason=self.error_unavailable_reason(until),
            best_trial=None if best is None else best.trial,
            replicas=replica_statuses(history, now, self._silent_after),
            trials_by_state=self._by_state(),
            rounds={
                r.id: max((history.trials[t].started.round for t in r.trials), default=0)
                for r in history.replicas.values()
            },
            violations=tuple(self._violations(final)),
            service_url=None if service is None else service.url,
            scheduler_problem=None if ended else history.scheduler_problem,
            problems=(*self._problems(), *damage),
            storage=tuple(storage_statuses(history)),
            telemetry=telemetry_status(history, self.manifest, until, final.ops),
            machine=machine_line(self.machine.summary()),
            witnesses=witnesses_of(history),
            clock=clock_status(history, self.manifest, until),
            elasticity=elasticity_status(history, self.manifest.nodes, nodes_each, until),
            kinds=kinds_status(history, self.machine.kinds(), nodes_each, until),
            models=self.models(until),
        )
        return found.model_copy(update={"figures": figures_of(found)})

    def _problems(self) -> Iterator[str]:
        """Yield the problems of the records, one line each."""
        history = self.history
        yield from map(str, history.problems)
        yield from filter(None, [self.machine.idle()])
        yield from record_problems(history)
        yield from self.run_graphs.missing()

    def resources(self) -> Resources:
        """Return the numbers of replicas, hosts and accelerators."""
        return self.machine.resources(self.manifest.replicas, self.until)

    def models(self, until: float) -> ModelsStatus | None:
        """Return the models trained until a time (UTC seconds), or None for a run with a search."""
        config = self.manifest.config
        weight = workload_of(config).valid_flops_on(config.dataset.name)
        return models_status(self.history, self.manifest, self.quality_metric, weight, until)

    def telemetry(self) -> TelemetryStatus:
        """Return the current telemetry of the nodes, including each accelerator."""
        end = self.history.end_utc
        until = self._now() if end is None else end
        ops = score_at(self.history, until).ops
        return telemetry_status(self.history, self.manifest, until, ops, briefly=False)

    def trials(self, now: float | None = None) -> list[TrialStatus]:
        """Return all trials in order of their start."""
        return self.trial_statuses(self.ordered_trials(), now)

    def ordered_trials(self) -> list[Trial]:
        """Return the records of all trials in order of their start."""
        return sorted(self.history.trials.values(), key=lambda t: t.started_utc)

    def trial_statuses(
        self, trials: Iterable[Trial], now: float | None = None
    ) -> list[TrialStatus]:
        """Return the status of the given trials at ``now`` (UTC seconds)."""
        return trial_statuses(self.history, trials, self._now() if now is None else now)

    def _service(self, state: RunState) -> tuple[Service | None, list[str]]:
        """Return the URL of its primary's REST service, and the defect of its record, if any."""
        silent = (RunState.ENDED, RunState.SILENT, RunState.GONE)
        if state in silent or not self.history.run_starts:
            return None, []
        try:
            service = Service.load(self.paths)
        except RunDirectoryError as error:
            return None, [str(error)]
        mine = service is not None and service.belongs_to(self.history.last_start)
        return (service if mine else None), []

    def _state(self, now: float) -> tuple[RunState, str]:
        history = self.history
        if history.run_ended is not None:
            return RunState.ENDED, getattr(history.run_ended.event, "reason", "")
        if history.primary_utc is None or not history.run_starts:
            last = history.last_utc
            # On NFS, records of replicas may be visible before the primary's.
            recent = not last or time.time() - last <= self._silent_after
            if history.primary_utc is None and recent:
                return RunState.STARTING, ""
            journal = self.paths.primary_journal
            damage = "damaged: it has no record of the run's start"
            found = damage if journal.exists() else "missing"
            raise JournalError(f"{journal}: {found}; restore it from a copy")
        if (gone := self._gone()) is not None:
            return RunState.GONE, f"{gone}; `aiperf resume {self.paths.root}` resumes the run"
        quiet = self._quiet(now - history.primary_utc)
        if quiet > self._silent_after:
            return RunState.SILENT, f"the primary has written nothing for {age(quiet)}"
        if history.stop_requests:
            return RunState.STOPPING, history.stop_requests[-1][1].reason
        if history.start_utc is None:
            return RunState.QUEUED, queue_reason(history, self.manifest.replicas)
        return RunState.RUNNING, ""

    def _now(self) -> float:
        """Return the time of the run's clock; a simulated clock stays at the last record."""
        return self.until if self.manifest.simulated else time.time()

    def _quiet(self, recorded: float) -> float:
        """Return the seconds since the primary's last heartbeat, by its records or, if their clock
        differs from this machine's, by its file."""
        if not self.manifest.simulated:
            return recorded
        return time.time() - self.paths.primary_journal.stat().st_mtime

    def _gone(self) -> str | None:
        """Return the outcome of an exited primary, as far as it is known on this machine."""
        if self.history.primary_failure is not None:
            return f"the primary failed: {self.history.primary_failure}"
        last = self.history.last_start
        if primary_is_gone(last):
            return f"the primary, process {last.pid} on this machine, has exited"
        return None

    @property
    def _silent_after(self) -> float:
        return silent_limit(self.manifest.config.journal.heartbeat_interval_seconds)

    def _by_state(self) -> dict[str, int]:
        states = Counter(trial.state.value for trial in self.history.trials.values())
        queued = sum(self.history.stock(r) for r in self.history.replicas)
        return {QUEUED: queued, **states}

    @property
    def quality_metric(self) -> QualityMetric:
        """Quality metric of the run."""
        return workload_of(self.manifest.config).objective.quality

    def training_times(self, until: float) -> tuple[TrainingTime, ...]:
        """Return the time split of each training run completed by ``until``; none in runs with a
        search."""
        config = self.manifest.config
        if config.search.searches:
            return ()
        return training_times(self.history, until, config.training.target)

    def baseline(self) -> BaselineStatus | None:
        """Return the baseline quality of a constant predictor, or None if no replica measured
        it."""
        for _, replica in sorted(self.history.replicas.items()):
            if (found := replica.baseline) is not None:
                words = QUALITY_METRICS[found.metric].baseline
                return BaselineStatus(predictor=words, quality=found.quality)
        return None

    def error_unavailable_reason(self, until: float) -> str:
        """Return why there is no error and no regulated score at a time; empty if there is one."""
        if self.history.best_until(until) is None:
            return "no evaluation was completed"
        if self.quality_metric.error is None:
            return f"the {self.quality_metric.label} is not a fraction of the samples"
        return ""
