"""How far trials are that are under way."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import START, Clock
from tests.support.run_factory import (
    DATASET,
    Grown,
    Plan,
    Primary,
    Worker,
    initial_graph,
    refreshed,
    write_manifest,
)

from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.answers.trials import InFlightQuestion, TrialProgress
from aiperf_hpc.trial import RoundPhase, TrialState


class _Run:
    """A run of one replica with one trial."""

    def __init__(self, root: Path) -> None:
        self.paths, plan = RunPaths(root), Plan(replicas=1)
        config = write_manifest(self.paths, plan).config
        self.primary = Primary(self.paths, plan, Clock(START))
        self.primary.start()
        self.worker = Worker(self.paths, "r0", config, Clock(START))
        self.worker.start()
        self.limit = config.training.max_epochs
        self.trial = self.worker.begin(Grown(initial_graph(config)), RoundPhase.WARMUP, 1)

    def progress(self) -> TrialProgress:
        view = refreshed(self.paths)
        now = self.worker.clock.now
        view._now = lambda: now  # type: ignore[method-assign]
        (progress,) = InFlightQuestion()(view).trials
        return progress


def test_a_trial_tells_its_epoch_and_the_time_to_its_limit(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    compiling = run.progress()
    assert (compiling.epoch, compiling.epoch_share, compiling.left_seconds) == (1, 0.0, None)
    run.worker.write(records.TrainingStarted(trial=run.trial), after=7.0)
    run.worker.train(run.trial, 1, 25.0)
    run.worker.evaluate(run.trial, 1, 100, 5.0)
    run.worker.train(run.trial, 2, 30.0, halves=1)
    progress = run.progress()
    share = (DATASET.train_samples // 2) / DATASET.train_samples
    assert (progress.trial.id, progress.epoch) == (run.trial, 2)
    assert progress.epoch_share == pytest.approx(share)
    assert progress.left_seconds == pytest.approx(45.0 / (1.0 + share) * (run.limit - 1 - share))
    assert progress.left_seconds == pytest.approx(30.0 * (run.limit - 1.5), rel=0.001)


def test_a_trial_that_is_over_is_not_in_flight(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.worker.end(run.trial, TrialState.FAILED, "no memory")
    answer = InFlightQuestion()(refreshed(run.paths))
    assert (answer.total, answer.trials) == (0, ())
