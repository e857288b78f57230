"""Intervals between the records of executed samples, which give their execution times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from aiperf_hpc.analysis.training_log import Rates, StoredPredictions
from aiperf_hpc.config import TrainingConfig
from aiperf_hpc.errors import CheckpointError, RunDirectoryError, UsageError, reason_of
from aiperf_hpc.morphism.weights.weight_file import load_recorded
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.peaks import Rate, listed
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import text_of


class Span(NamedTuple):
    """The interval between two records of a trial's executed samples, and the samples in it."""

    started: float
    ended: float
    train_samples: int
    validation_samples: int

    @property
    def seconds(self) -> float:
        return self.ended - self.started


Spans = Mapping[str, Sequence[Span]]
"""Spans of each trial in order."""


def spans_of(history: RunHistory, until: float) -> Spans:
    """Return the spans of all trials, from the first step of each until ``until``, UTC seconds."""
    found: defaultdict[str, list[Span]] = defaultdict(list)
    for trial, span in executed_of(history, until):
        found[trial.id].append(span)
    return found


def executed_of(history: RunHistory, until: float) -> Iterator[tuple[Trial, Span]]:
    """Yield the spans of each trial until ``until``, UTC seconds.

    A record covers the time since the trial's previous record.
    """
    trials = [history.trials[name] for name in history.executions.trials]
    mark = [trial.training_utc or trial.started_utc for trial in trials]
    for utc, place, train, validation in history.executions.rows():
        if utc <= until:
            yield trials[place], Span(mark[place], utc, train, validation)
            mark[place] = utc


def best_stored(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial with the best quality of all trials with stored predictions."""
    recorded = [t for t in trials if t.predictions is not None and t.best is not None]
    return max(recorded, key=lambda t: t.best.objective_value if t.best else 0.0, default=None)


def load_predictions(trial: Trial | None, paths: RunPaths) -> tuple[StoredPredictions | None, str]:
    """Return a trial's predictions or the reason why they are unreadable; neither if absent."""
    recorded = None if trial is None else trial.predictions
    if trial is None or recorded is None:
        return None, ""
    path = paths.predictions(trial.replica, trial.id)
    try:
        classes = load_recorded(path, recorded.sha256).classes
    except OSError as error:
        return None, f"{path}: {reason_of(error)}"
    except CheckpointError as error:
        return None, f"its predictions: {error}"
    return StoredPredictions(
        trial=trial.id,
        samples=len(classes),
        sha256=recorded.sha256,
        classes=classes.astype("<u4").tobytes(),
    ), ""


PRECISIONS: tuple[str, ...] = (
    *get_args(TrainingConfig.model_fields["precision"].annotation),
    "tf32",
)
"""Precisions of runs, and one that only peaks have."""


class _Measured(BaseModel):
    utc: Annotated[float, Field(allow_inf_nan=False)]
    rates: Annotated[dict[str, Rate], Field(min_length=1)]


_FILE: TypeAdapter[list[_Measured]] = TypeAdapter(
    Annotated[list[_Measured], BeforeValidator(listed)]
)


def read_peaks(path: Path, precision: str) -> tuple[Rates, ...]:
    """Return the rates measured during a run, or none if there is no such file.

    For kinds that end with the name of a precision, only the run's own precision counts.

    Raises:
        RunDirectoryError: the file is invalid.
    """
    if not path.exists():
        return ()
    try:
        measured = _FILE.validate_json(text_of(path))
    except UsageError as error:
        raise RunDirectoryError(f"{path}: {error}") from None
    except ValidationError as error:
        raise RunDirectoryError(f"{path}: {first_fault(error)}") from None
    return tuple(Rates(utc=each.utc, rates=_own(each.rates, precision)) for each in measured)


def _own(rates: Mapping[str, float], precision: str) -> dict[str, float]:
    others = tuple(f" {name}" for name in PRECISIONS if name != precision)
    return {kind: rate for kind, rate in rates.items() if not kind.endswith(others)}
