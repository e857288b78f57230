"""Simulated runs: the real code of both sides, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aiperf_hpc.config import load_config
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.primary.launchers.slurm.batch_script import wait_limit
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import Identity, Incarnation, RunPaths, replica_number
from aiperf_hpc.simulation.cluster import Cluster, SimulatedHost, SimulatedLauncher
from aiperf_hpc.simulation.main import simulate
from aiperf_hpc.simulation.timeline import Timeline
from aiperf_hpc.trial import JobPhase

SHORT = (
    "engine.simulation.charge_cpu=false",
    "rounds.warmup_epochs=[4,5,6]",
    "training.max_epochs=4",
)
"""Settings by which a run has warm-up and some HPO in minutes, always the same."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A model of a shared machine: nodes become free one by one and may be preempted.

    Waiting times and times until preemption are exponentially distributed, because they do not
    depend on the run.
    """

    mean_wait_seconds: float = 0.0
    """Mean time in seconds from the submission of the run until a node is free."""
    gang: bool = False
    """Whether all nodes are allocated together, when the requested number is free."""
    preemptions_per_hour: float = 0.0
    """Mean number of preemptions per node and hour."""
    away_seconds: float = 60.0
    """Seconds from the preemption of a node until it is allocated again."""
    seed: int = 0

    def waits(self, nodes: int) -> list[float]:
        """Return the seconds until each of ``nodes`` nodes is allocated, in ascending order."""
        rng = np.random.default_rng(self.seed)
        freed = np.sort(rng.exponential(self.mean_wait_seconds, nodes)).tolist()
        return [freed[-1]] * nodes if self.gang else freed

    def left_alone(self, node: int, attempt: int) -> float:
        """Return the seconds from the n-th allocation of a node until its preemption."""
        if not self.preemptions_per_hour:
            return math.inf
        rng = np.random.default_rng((self.seed, node, attempt))
        return float(rng.exponential(3600.0 / self.preemptions_per_hour))


class QueuedLauncher(SimulatedLauncher):
    """Starts replicas on the nodes of a shared machine."""

    def __init__(self, queue: Queue, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.wait_limit = wait_limit(cluster.manifest.config.slurm)
        self._queue = queue
        self._waits = queue.waits(cluster.manifest.most_replicas)
        self._preempted: list[SimulatedHost] = []

    def _start(self, name: str, after: float) -> None:
        number, now = replica_number(name), self._cluster.timeline.monotonic()
        free = self._waits[number] if number < len(self._waits) else 0.0
        waiting = ReplicaState(JobPhase.PENDING, submitted_utc=self._cluster.timeline.utc())
        self._wait(name, max(0.0, free - now) + after, waiting)

    def _wait(self, name: str, after: float, waiting: ReplicaState) -> None:
        """Start or restart a replica, ``after`` seconds from now."""
        timeline, number, attempt = (
            self._cluster.timeline,
            replica_number(name),
            self._attempts[name],
        )
        self._attempts[name] += 1
        host = self._hosts[name] = SimulatedHost(self._cluster, number)
        self._states[name] = waiting

        def live() -> None:
            granted = timeline.utc()
            state = replace(waiting, phase=JobPhase.RUNNING, node=f"n{number}", started_utc=granted)
            self._states[name] = state
            left = self._queue.left_alone(number, attempt)
            preemption = timeline.spawn(lambda: self._preempt(name, host), left)
            status = self._live(Identity(name, Incarnation(restart=attempt)), host)
            timeline.cancel(preemption)
            if host in self._preempted:
                again = replace(waiting, phase=JobPhase.REQUEUED, detail="PREEMPTED")
                self._wait(name, self._queue.away_seconds, again)
                return
            phase = JobPhase.FAILED if status else JobPhase.DONE
            self._states[name] = replace(state, phase=phase, status=status)

        self._tasks[name] = timeline.spawn(live, after)

    def _preempt(self, name: str, host: SimulatedHost) -> None:
        """Take a replica's node away: it gets the signal of the scheduler and is queued again."""
        if host.stop is not None and host.stop.reason is None:
            self._preempted.append(host)
            host.stop.interrupt("SIGTERM")


def simulated_run(
    folder: Path,
    *assignments: str,
    show: Callable[[Timeline], None] = lambda _: None,
    launcher: Callable[[Cluster], SimulatedLauncher] = SimulatedLauncher,
    **manifest: Any,  # noqa: ANN401 -- the manifest's fields
) -> RunView:
    """Simulate a run with ``SHORT`` and other settings, and write its report."""
    values = {"run_id": "simulated", "versions": {}, "commit": None, "rules": RULES, **manifest}
    config = load_config("simulated", (*SHORT, *assignments))
    paths = RunPaths(folder)
    folder.mkdir()
    RunManifest(launcher="simulated", config=config, **values).save(paths)
    simulate(RunManifest.load(paths), paths, show, launcher)
    view = RunView.read(paths)
    write_report(view)
    return view
