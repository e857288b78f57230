"""The predictions that a run of ours kept (``training.keep_predictions``)."""

from __future__ import annotations

from collections.abc import Iterable

from aiperf_hpc.analysis.training_log import Predicted
from aiperf_hpc.errors import CheckpointError, reason_of
from aiperf_hpc.morphism.weights.predictions import load_recorded
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import RunPaths


def best_kept(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial of the best quality among those whose predictions were kept."""
    kept = [t for t in trials if t.predictions is not None and t.best is not None]
    return max(kept, key=lambda t: t.best.objective_value if t.best else 0.0, default=None)


def predicted_by(trial: Trial | None, paths: RunPaths) -> tuple[Predicted | None, str]:
    """Return what a trial's network predicted, or why that cannot be read; neither if not kept."""
    kept = None if trial is None else trial.predictions
    if trial is None or kept is None:
        return None, ""
    path = paths.predictions(trial.replica, trial.id)
    try:
        classes = load_recorded(path, kept.sha256).classes
    except OSError as error:
        return None, f"{path}: {reason_of(error)}"
    except CheckpointError as error:
        return None, f"its predictions: {error}"
    return Predicted(
        trial=trial.id,
        samples=len(classes),
        sha256=kept.sha256,
        classes=classes.astype("<u4").tobytes(),
    ), ""
