"""What a run ran on, what its replicas do, and what it was asked to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from aiperf_hpc.results.views.replica_status import ReplicaStatus
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.telemetry import Telemetry, absences, telemetry_series
from aiperf_hpc.service.answers.base import Answer, Limit, Question
from aiperf_hpc.service.problem import not_found
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.system.summary import MachineSummary
from aiperf_hpc.trial import Machine, TimePhase


class Replicas(Answer):
    """All replicas now."""

    replicas: tuple[ReplicaStatus, ...]
    """The replicas, in the order of their numbers."""


class ReplicaDetail(Answer):
    """One replica with its machine and its time."""

    replica: ReplicaStatus
    """The replica as in the list of all."""
    machine: Machine | None
    """What it reported of the host of its first rank when it started."""
    ranks: dict[int, RankDescription]
    """What the ranks of its latest attempt reported of themselves, by their numbers."""
    restarts: int
    """How often it was started again."""
    seconds: dict[TimePhase, float]
    """Seconds of its trainer by what they were spent on."""
    trials_by_state: dict[str, int]
    """How many of its trials are in each state."""
    storage_wait_seconds: float
    """Seconds that it has waited for storage."""


class Configuration(Answer):
    """What the run was asked to do, by which versions: its run.yaml."""

    run_yaml: dict[str, Any]
    """The keys of run.yaml; `config` has the configuration as `aiperf config show` describes it."""


def replicas(view: RunView) -> Replicas:
    """Return all replicas now."""
    return Replicas(replicas=view.status().replicas)


@dataclass(frozen=True, slots=True)
class ReplicaQuestion:
    """The question for one replica."""

    id: str

    def __call__(self, view: RunView) -> ReplicaDetail:
        replica = view.history.replicas.get(self.id)
        if replica is None:
            raise not_found(f"the run has no replica {self.id!r}")
        (status,) = (each for each in view.status().replicas if each.id == self.id)
        states = Counter(str(view.history.trials[trial].state) for trial in replica.trials)
        return ReplicaDetail(
            **ReplicaDetail.fields_from(replica),
            replica=status,
            ranks=dict(replica.described),
            trials_by_state=dict(states),
        )


def machine(view: RunView) -> MachineSummary:
    """Return the machine that the run has: equal nodes together."""
    return view.machine.summary()


def configuration(view: RunView) -> Configuration:
    """Return the run's configuration and versions."""
    return Configuration(run_yaml=view.manifest.model_dump(mode="json"))


class TelemetryQuestion(Question):
    """Return the nodes' telemetry: utilization, memory, power, energy."""

    host: str | None = Field(None, examples=["n01"])
    """The node whose time series is given too."""
    points: Limit = 240
    """How many points of it, at most: the latest."""

    def __call__(self, view: RunView) -> Telemetry:
        history = view.history
        if self.host is not None and self.host not in history.telemetry:
            raise not_found(f"the run has no telemetry of a node {self.host!r}")
        return Telemetry(
            now=view.telemetry(),
            series=telemetry_series(history, [self.host] if self.host else [], self.points),
            absent=absences(history),
        )
