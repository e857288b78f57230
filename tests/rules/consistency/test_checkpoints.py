"""The rules on kept predictions and on checkpoints of best epochs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks import synthetic_run
from tests.support.hostile import in_records
from tests.support.rules import (
    append,
    append_before_the_end,
    check_rule,
    failures_by_rule,
    reported,
)

from aiperf_hpc.morphism.weights.weight_file import Predictions, file_digest, save_predictions
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.paths import RunPaths

REPLICAS = 3


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", REPLICAS, distinct=2).paths


def _kept(run: RunPaths, **changed: object) -> tuple[Path, Trial]:
    """Keep predictions of r0's first trial, and record what is true but for ``changed``."""
    history = RunHistory.read(run)
    trial = history.trials[history.replicas["r0"].trials[0]]
    last = trial.evaluations[-1]
    path = run.predictions("r0", trial.id)
    classes = np.arange(last.samples) % 3
    digest = save_predictions(path, Predictions(trial.id, last.epoch, classes))
    said = {"epoch": last.epoch, "samples": last.samples, "sha256": digest, **changed}
    kept = records.PredictionsSaved.model_validate({"trial": trial.id, **said})
    append_before_the_end(run, "r0", kept)
    return path, trial


def failure(rule: str, run: RunPaths) -> str:
    (said,) = check_rule(rule, run).failures
    return said


def test_kept_predictions_are_checked(run: RunPaths) -> None:
    path, _ = _kept(run)
    assert failures_by_rule(reported(run)) == {}
    path.write_bytes(path.read_bytes()[:-1])
    assert "is not the file that was recorded" in failure("predictions", run)
    path.unlink()
    assert "its predictions cannot be read: No such file" in failure("predictions", run)


@pytest.mark.parametrize(("seconds", "passes"), [(91.5, True), (92.5, False)])
def test_a_proposal_may_grow_from_weights_that_are_still_listed(
    run: RunPaths, seconds: float, passes: bool
) -> None:
    """A client lists a deleted file for 90 s, and two clocks may be 1 s off each."""
    proposal = min(RunHistory.read(run).proposals.values(), key=lambda each: each.utc)
    began = proposal.utc - proposal.proposed.seconds
    dropped = records.CheckpointDeleted(trial=proposal.proposed.parent)
    append(run.replica_journal(proposal.replica), began - seconds, dropped)
    found = check_rule("candidates", run).failures
    said = f"{proposal.id}: it grew from {dropped.trial} {seconds:.3f} s after its weights were"
    assert [each.startswith(said) for each in found] == [True] * (not passes)


def _best_epoch(run: RunPaths, epoch: int | None = None) -> tuple[Path, Path]:
    """Keep a best epoch of the best trial, in files of no sense; return them."""
    history = RunHistory.read(run)
    assert history.best is not None
    trial = history.trials[history.best.trial]
    files = run.epoch_began(trial.replica, trial.id), run.epoch_evaluated(trial.replica, trial.id)
    files[0].parent.mkdir()
    for path in files:
        path.write_bytes(path.name.encode())
    began, evaluated = (
        records.SavedFile(bytes=path.stat().st_size, sha256=file_digest(path)) for path in files
    )
    kept = records.BestEpochSaved(
        trial=trial.id,
        epoch=epoch or history.best.epoch,
        start_checkpoint=began,
        end_checkpoint=evaluated,
    )
    append_before_the_end(run, trial.replica, kept)
    write_report(RunView(run))
    return files


def test_the_kept_best_epoch_of_the_best_trial_is_checked(run: RunPaths) -> None:
    _, evaluated = _best_epoch(run)
    assert failures_by_rule(run) == {}
    content = evaluated.read_bytes()
    evaluated.write_bytes(content[::-1])
    assert "evaluated.safetensors is not the file that was recorded" in failure("best epochs", run)
    evaluated.write_bytes(content[:-1])
    sizes = f"has {len(content) - 1} bytes, {len(content)} were recorded"
    assert sizes in failure("best epochs", run)
    evaluated.unlink()
    assert "cannot be read: No such file" in failure("best epochs", run)
    os.mkfifo(evaluated)
    assert "is not a file" in failure("best epochs", run)


def test_a_kept_epoch_that_is_not_the_best_is_found(run: RunPaths) -> None:
    _best_epoch(run, 99)
    assert "the best epoch that was kept is 99" in failure("best epochs", run)


@pytest.mark.parametrize("changed", [{"epoch": 99}, {"samples": 7}])
def test_predictions_of_no_evaluation_are_found(run: RunPaths, changed: dict[str, int]) -> None:
    _kept(run, **changed)
    first, second = check_rule("predictions", run).failures
    assert "no such evaluation" in first
    assert "holds predictions of" in second


def test_a_class_that_there_is_not_is_found(run: RunPaths) -> None:
    path, trial = _kept(run)
    last = trial.evaluations[-1]
    classes = np.full(last.samples, 4_000)
    digest = save_predictions(path, Predictions(trial.id, last.epoch, classes))
    in_records("predictions_saved", lambda record: record["event"].update(sha256=digest))(run)
    assert "predicts class 4000 of" in failure("predictions", run)
