"""A run that lasts: a test writes its next record when it has seen the last one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from tests.support.clock import Clock
from tests.support.run_factory import (
    Grown,
    Plan,
    Primary,
    Worker,
    initial_graph,
    write_manifest,
)
from tests.support.telemetry import equipment, sample

from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import RoundPhase, TimePhase, TrialState


class Family(NamedTuple):
    """A trial, one grown from it, and one grown from that, which is under way."""

    parent: str
    child: str
    grandchild: str


AGO = 600.0
"""Seconds since its start when the writing begins."""


class LiveRun:
    """A run of two replicas that started ten minutes ago and goes on by this machine's clock."""

    def __init__(self, root: Path, *, hours: float = 1.0, **plan: Any) -> None:  # noqa: ANN401
        self.paths = RunPaths(root)
        self.plan = Plan(run_id=root.name, hours=hours, **plan)
        self._manifest = write_manifest(self.paths, self.plan)
        self._open = ExitStack()
        self._sampled: set[int] = set()
        """The replicas whose nodes have told what they have."""
        start = time.time() - AGO
        self.primary = self._open.enter_context(Primary(self.paths, self.plan, Clock(start)))
        self.primary.start()
        self.workers = [self._worker(number, start) for number in range(self.plan.replicas)]
        self.beat()

    def _worker(self, number: int, start: float) -> Worker:
        worker = Worker(self.paths, f"r{number}", self._manifest.config, Clock(start))
        self._open.enter_context(worker)
        worker.start()
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def beat(self) -> None:
        """Let the primary say that it is there."""
        self.primary.clock.now = time.time()
        self.primary.write(records.PrimaryHeartbeat())

    def begin(self, number: int = 0, grown: Grown | None = None) -> str:
        """Let a replica start a trial and train it; of the initial network where none is given."""
        worker = self.workers[number]
        trial = worker.begin(
            grown or Grown(initial_graph(worker.config)), RoundPhase.WARMUP, worker.trials + 1
        )
        worker.write(records.TrainingStarted(trial=trial), after=2.0)
        return trial

    def grow(self, number: int, parent: Grown, trial: str, seed: int = 0) -> Grown:
        """Let a replica's search grow a candidate."""
        return self.workers[number].propose(parent.graph, trial, np.random.default_rng(seed))

    def epoch(self, trial: str, epoch: int, correct: int, number: int = 0) -> None:
        """Let a trial's epoch pass, half a minute, and be evaluated."""
        worker = self.workers[number]
        worker.train(trial, epoch, 25.0)
        worker.evaluate(trial, epoch, correct, 5.0)

    def half_epoch(self, trial: str, epoch: int, number: int = 0) -> None:
        self.workers[number].train(trial, epoch, 25.0, halves=1)

    def finish(self, trial: str, number: int = 0, seconds: Mapping[TimePhase, float] = {}) -> None:
        worker = self.workers[number]
        worker.end(trial, TrialState.COMPLETED, "the epoch limit")
        worker.spend(trial, seconds or {TimePhase.BUILD: 2.0, TimePhase.TRAIN: 60.0})

    def sample(self, number: int = 0) -> None:
        """Let the node of a replica tell its telemetry, of half a minute."""
        worker = self.workers[number]
        if number not in self._sampled:
            self._sampled.add(number)
            worker.write(records.TelemetryStarted(equipment=equipment(f"node{number:03d}")))
        worker.write(records.TelemetrySampled(sample=sample()), after=30.0)

    def family(self) -> Family:
        """Let a replica train a trial, one grown from it, and one grown from that."""
        grown, trials = Grown(initial_graph(self.workers[0].config)), list[str]()
        for number in range(3):
            trials.append(self.begin(0, grown))
            self.epoch(trials[-1], 1, correct=180 + 30 * number)
            if number < 2:
                self.finish(trials[-1])
                grown = self.grow(0, grown, trials[-1])
        return Family(*trials)

    def damage(self, replica: str) -> None:
        """Write a line that is no record into a replica's journal."""
        with self.paths.replica_journal(replica).open("ab") as journal:
            journal.write(b"garbage\n")
