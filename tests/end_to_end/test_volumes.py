"""A workload that is no image classification: from `aiperf start` to its stated error."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.end_to_end.conftest import TORCH, LiveRun
from tests.support.command import aiperf

from aiperf_hpc.formatting import quality
from aiperf_hpc.run.records import TRAININGS_DONE, RunEnded
from aiperf_hpc.trial import RoundPhase, TrialState

Trained = tuple[LiveRun, CompletedProcess[str]]
TARGET = 0.14
"""The mean absolute error of what is predicted for each spectrum; predicting nothing has 0.5."""
SMALL = [
    argument
    for setting in (
        "dataset.train_samples=512", "dataset.validation_samples=64", f"training.target={TARGET}",
        "training.max_epochs=40", "training.patience=40", "search.max_trainings=1",
    )
    for argument in ("--set", setting)
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run that ends when each of two replicas has trained a model to the target."""
    folder = tmp_path_factory.mktemp("volumes") / "run"
    run = LiveRun(folder, *TORCH, *SMALL, config=Path("volumes"))
    try:
        return run, run.end()
    finally:
        run.close()


def test_a_regression_on_volumes(trained: Trained) -> None:
    run, done = trained
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    history = run.history
    trials = [t for t in history.trials.values() if t.state is TrialState.COMPLETED]
    assert len({trial.replica for trial in trials}) == len(trials) == 2
    assert len({trial.started.seed for trial in trials}) == 2
    assert history.run_ended is not None
    assert isinstance(history.run_ended.event, RunEnded)
    assert history.run_ended.event.reason == TRAININGS_DONE
    for trial in trials:
        assert trial.reason == f"the target, {TARGET:g}, is reached"
        assert trial.started.phase is RoundPhase.FIXED
        last = trial.evaluations[-1]
        assert last.quality_metric.name == "mean_absolute_error"
        assert last.quality <= TARGET < trial.evaluations[0].quality
        assert last.sums["values"] == 2 * last.samples == 128
    assert history.searchers == set()
    assert history.proposals == {}
    summary = done.stdout
    said, other = (replica.baseline for replica in history.replicas.values())
    assert said is not None
    assert other == said
    assert said.quality == pytest.approx(0.5, abs=0.05)
    baseline = quality(said.quality, said.metric)
    assert (
        "Regulated score  none: the mean absolute error is not a fraction of the samples" in summary
    )
    assert "the best mean absolute error" in summary
    assert f"Baseline         {baseline}, the mean absolute error of zeros\n" in summary
    reasons = " ".join(aiperf("report", run.paths.root).stdout.split())
    assert "workload volumes; the benchmark's score is that of automl" in reasons
    verified = aiperf("verify", run.paths.root)
    assert verified.returncode == 0, verified.stdout
    document = json.loads(run.paths.report_json.read_bytes())
    assert document["metric"] == "mean_absolute_error"
    models = document["models"]
    assert models["scaling"] == "weak"
    assert models["started"] == models["reached"] == 2
    assert models["models_per_minute"] > 0.0
    assert document["best"]["quality"] <= TARGET
    assert document["best"]["accuracy"] is None
    assert document["score"]["error"] is None
    assert document["score"]["regulated"] is None
    assert document["operations"]["by_kind"]["conv3d"]["forward"] > 0
    status = json.loads(aiperf("status", run.paths.root, "--json").stdout)
    assert status["best_quality"] == document["best"]["quality"]
    assert status["baseline"] == document["baseline"]
    assert document["baseline"] == {"predictor": "zeros", "quality": said.quality}
    html, text = (
        path.read_text("utf-8") for path in (run.paths.report_html, run.paths.result_text)
    )
    assert f"; that of zeros: {baseline}</span>" in html
    assert f"; that of zeros: {baseline}\n" in text


def test_a_forged_number_of_values(trained: Trained, tmp_path: Path) -> None:
    run, _ = trained
    folder = Path(shutil.copytree(run.paths.root, tmp_path / "forged"))
    (journal,) = (folder / "replicas" / "r0").glob("*/journal.jsonl")
    text = journal.read_text("utf-8")
    forged = re.sub(r'"values":128\b', '"values":256', text, count=1)
    assert forged != text
    journal.write_text(forged, "utf-8")
    verified = aiperf("verify", folder)
    assert verified.returncode == 1
    assert "256 values of 64 samples, there must be 128" in verified.stdout
