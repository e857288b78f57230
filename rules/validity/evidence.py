"""The evidence of the rules on validity: a run's records and its score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from aiperf_hpc.config import RunConfig
from aiperf_hpc.ops_counter.score import ScoreStatus, end_of
from aiperf_hpc.run.history import ReplicaHistory, RunHistory, Trial
from aiperf_hpc.run.manifest import RunManifest


@dataclass(frozen=True)
class RunEvidence:
    """The records of a run, its score and the time of the judgement."""

    history: RunHistory
    manifest: RunManifest
    final: ScoreStatus
    """Score at the end of the run, or at its last record so far."""
    now: float
    """Time of the judgement, UTC seconds."""

    @property
    def config(self) -> RunConfig:
        return self.manifest.config

    @property
    def end(self) -> float:
        """The end of the scored time, UTC seconds."""
        return end_of(self.history)

    @cached_property
    def replicas(self) -> list[ReplicaHistory]:
        """All replicas that were launched or wrote a record."""
        return list(self.history.replicas.values())

    @cached_property
    def trials_of(self) -> dict[str, list[Trial]]:
        """The trials of each replica in the order of their start."""
        trials = self.history.trials
        return {r.id: [trials[name] for name in r.trials] for r in self.replicas}

    @property
    def trials(self) -> Iterable[Trial]:
        return self.history.trials.values()
