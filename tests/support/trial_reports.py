"""Rows of a report for tests of what is made of them."""

from __future__ import annotations

from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.trial import Hyperparameters


def trial_report(name: str, parent: str | None = None, **changes: object) -> TrialReport:
    """Return a completed trial of one epoch, but for the changes."""
    return TrialReport(
        id=name, replica="r0", round=1, phase="warm-up", state="completed", reason="",
        graph=f"graph-{name}", parent=parent, morphisms=(), batch_size=32, kernel_size=None,
        learning_rate=0.1, parameters=1, depth=1, train_operations=3, validation_operations=1,
        epochs=1, epoch_limit=9, train_samples=1, validation_samples=1, best_accuracy=0.5,
        predicted_accuracy=None, started_seconds=0.0, seconds=1.0, operations=4,
        training_started_seconds=0.0, grown_by="",
        hyperparameters=Hyperparameters(batch_size=32, learning_rate=0.1), notes=(),
    ).model_copy(update=changes)  # fmt: skip
