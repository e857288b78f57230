"""System, replicas, telemetry and configuration of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from aiperf_hpc.results.views.replica_status import ReplicaStatus
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.telemetry import Telemetry, absences, telemetry_series
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.service.answers.base import Answer, Limit, Question
from aiperf_hpc.service.problem import not_found
from aiperf_hpc.streams import without_controls
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.system.summary import MachineSummary
from aiperf_hpc.trial import Machine, TimePhase
from aiperf_hpc.untrusted.files import last_lines_inside

MOST_OUTPUT_BYTES = 2**18
"""Maximum number of bytes of a replica's output that are read for an answer."""


class Replicas(Answer):
    """Current state of all replicas."""

    replicas: tuple[ReplicaStatus, ...]
    """Replicas in the order of their numbers."""


class ReplicaDetail(Answer):
    """One replica with its host and its time split."""

    replica: ReplicaStatus
    """Replica as in the list of all replicas."""
    machine: Machine | None
    """Description of the host of rank 0, as reported at the start of the replica."""
    ranks: dict[int, RankDescription]
    """Reports of the ranks of the latest attempt, by rank."""
    restarts: int
    """Number of restarts of the replica."""
    seconds: dict[TimePhase, float]
    """Seconds of the replica's trainer by phase."""
    trials_by_state: dict[str, int]
    """Number of the replica's trials in each state."""
    storage_wait_seconds: float
    """Seconds that the replica has waited for storage."""


class Configuration(Answer):
    """Configuration and software versions of the run, from its run.yaml."""

    run_yaml: dict[str, Any]
    """Keys of run.yaml; `config` is the configuration as described by `aiperf config show`."""


def replicas(view: RunView) -> Replicas:
    """Return the current state of all replicas."""
    return Replicas(replicas=view.status().replicas)


@dataclass(frozen=True, slots=True)
class ReplicaQuestion:
    """Query for one replica."""

    id: str

    def __call__(self, view: RunView) -> ReplicaDetail:
        replica = _replica(view, self.id)
        (status,) = (each for each in view.status().replicas if each.id == self.id)
        states = Counter(str(view.history.trials[trial].state) for trial in replica.trials)
        return ReplicaDetail(
            **ReplicaDetail.fields_from(replica),
            replica=status,
            ranks=dict(replica.described),
            trials_by_state=dict(states),
        )


class ReplicaOutput(Answer):
    """Last lines of a replica's output."""

    lines: tuple[str, ...]
    """Last lines, oldest first; empty if nothing was printed. Control characters are escaped."""


@dataclass(frozen=True, slots=True)
class OutputQuestion:
    """Query for the output of a replica."""

    id: str
    limit: int

    def __call__(self, view: RunView) -> ReplicaOutput:
        _replica(view, self.id)
        log = view.paths.replica_log(self.id)
        lines = last_lines_inside(view.paths.root, log, self.limit, MOST_OUTPUT_BYTES)
        return ReplicaOutput(lines=tuple(map(without_controls, lines)))


def _replica(view: RunView, name: str) -> ReplicaHistory:
    if (found := view.history.replicas.get(name)) is None:
        raise not_found(f"the run has no replica {name!r}")
    return found


def machine(view: RunView) -> MachineSummary:
    """Return the system of the run, with equal nodes grouped."""
    return view.machine.summary()


def configuration(view: RunView) -> Configuration:
    """Return the run's configuration and versions."""
    return Configuration(run_yaml=view.manifest.model_dump(mode="json"))


class TelemetryQuestion(Question):
    """Return the telemetry of all nodes, or of one node with its time series: utilization, memory,
    power, energy."""

    host: str | None = Field(None, examples=["n01"])
    """Return only this node, with its time series."""
    points: Limit = 240
    """Maximum number of points of the time series; the latest are returned."""

    def __call__(self, view: RunView) -> Telemetry:
        history = view.history
        if self.host is not None and self.host not in history.telemetry:
            raise not_found(f"the run has no telemetry of a node {self.host!r}")
        now, absent = view.telemetry(), absences(history)
        if self.host is not None:
            nodes = tuple(node for node in now.nodes if node.host == self.host)
            now = now.model_copy(update={"nodes": nodes})
            absent = tuple(each for each in absent if each.host == self.host)
        series = telemetry_series(history, [self.host] if self.host else [], self.points)
        return Telemetry(now=now, series=series, absent=absent)
