"""Reports of runs for tests: their documents, pages and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.run_factory import Plan, write_run

from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import Hyperparameters


def trial_report(name: str, parent: str | None = None, **changes: object) -> TrialReport:
    """Return a completed trial of one epoch, but for the changes."""
    return TrialReport(
        id=name, replica="r0", round=1, phase="warm-up", state="completed", reason="",
        graph=f"graph-{name}", parent=parent, morphisms=(), batch_size=32, kernel_size=None,
        learning_rate=0.1, parameters=1, depth=1, train_operations=3, validation_operations=1,
        epochs=1, epoch_limit=9, train_samples=1, validation_samples=1, best_accuracy=0.5,
        predicted_accuracy=None, started_seconds=0.0, seconds=1.0, operations=4,
        training_started_seconds=0.0, morphisms_text="",
        hyperparameters=Hyperparameters(batch_size=32, learning_rate=0.1), notes=(),
    ).model_copy(update=changes)  # fmt: skip


def document_of(paths: RunPaths) -> dict[str, Any]:
    """Return the document of a run's report."""
    loaded = json.loads(paths.report_json.read_text("utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def reported(root: Path, plan: Plan | None = None) -> tuple[dict[str, Any], str, RunPaths]:
    """Write a run and its report; return the document, the page, and where they are."""
    paths = write_run(root, plan)
    page = write_report(RunView(paths))
    return document_of(paths), page.read_text("utf-8"), paths
