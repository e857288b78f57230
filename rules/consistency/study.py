"""Rule on the studies of hyperparameter optimization, compared with the trials of the journals.

A replica's study is in Optuna's journal format, with one line per operation, and is never read by a
run. To fabricate a trial in a journal, its operations in the study must be fabricated as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.rule import Checked, Findings
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import FIRST, Incarnation
from aiperf_hpc.trial import RoundPhase, TrialState
from aiperf_hpc.untrusted.files import bytes_inside, parsed_json

CREATED, STATE_SET = 4, 6
"""Operations of Optuna's journal: a trial is created; its state and values are set."""
COMPLETE = 1
"""Optuna's number of the state of a completed trial."""
_NO_STUDY = (
    AIPerfError, ValueError, TypeError, LookupError, AttributeError, OverflowError,
)  # fmt: skip
"""Exceptions raised by reading other content as a study."""
DIGITS = 9
"""Decimal places of compared values."""
Point = tuple[int, int | None, float]
"""A batch size, a kernel size or None, and the best value."""


@dataclass(slots=True)
class StudyTrial:
    """A trial of a study."""

    used: tuple[int, int | None]
    """Batch size, and kernel size or None."""
    suggested: bool
    """Whether the study suggested the trial; others were added after their execution."""
    value: float | None = None
    told_utc: float = 0.0
    """Time at which its value was added to the study, UTC seconds."""


def studies(run: Evidence) -> Findings:
    """The study of each attempt has the trials of its journal, and no other values."""
    attempts = _attempts(run)
    yield Checked(sum(map(len, attempts.values())))
    for (replica, attempt), trials in attempts.items():
        path = run.paths.study(replica, attempt)
        where = str(path.relative_to(run.paths.root))
        try:
            found = _read(bytes_inside(run.paths.root, path))
        except FileNotFoundError:
            yield f"{where} is missing"
        except OSError as error:
            yield f"{where} cannot be read: {reason_of(error)}"
        except _NO_STUDY as error:
            yield f"{where} is not a study: {' '.join(str(error).split())}"
        else:
            for wrong in _differences(run, replica, trials, found):
                yield f"{where}: {wrong}"


def _attempts(run: Evidence) -> dict[tuple[str, Incarnation], list[Trial]]:
    """Return the trials of each attempt that has a study."""
    found: dict[tuple[str, Incarnation], list[Trial]] = {}
    if not run.manifest.monitored:
        return found
    for trial in run.trials:
        if trial.started.phase is RoundPhase.HPO:
            found.setdefault((trial.replica, trial.incarnation), []).append(trial)
    return found


def _read(content: bytes) -> list[StudyTrial]:
    """Return the trials of a study in order of their numbers. Raises one of ``_NO_STUDY``.

    An unfinished last line is ignored: the replica failed while it wrote the line.
    """
    found: list[StudyTrial] = []
    for line in content.split(b"\n")[:-1]:
        operation = parsed_json(line)
        if operation["op_code"] == CREATED:
            found.append(_created(operation))
        elif operation["op_code"] == STATE_SET and operation["state"] == COMPLETE:
            trial = found[operation["trial_id"]]
            trial.value, trial.told_utc = float(operation["values"][0]), _completed(operation)
    return found


def _created(operation: dict[str, Any]) -> StudyTrial:
    params = {
        name: _value(json.loads(operation["distributions"][name]), value)
        for name, value in operation["params"].items()
    }
    used = (params["batch_size"], params.get("kernel_size"))
    suggested = operation["user_attrs"]["chosen_by"] != "earlier"
    if operation["state"] != COMPLETE:
        return StudyTrial(used, suggested)
    return StudyTrial(used, suggested, float(operation["value"]), _completed(operation))


def _completed(operation: dict[str, Any]) -> float:
    return datetime.fromisoformat(operation["datetime_complete"]).timestamp()


def _value(distribution: dict[str, Any], value: float) -> Any:  # noqa: ANN401 -- whatever it is of
    """Return a value of a study, which stores the index of a choice."""
    choices = distribution["attributes"].get("choices")
    return value if choices is None else choices[int(value)]


def _differences(
    run: Evidence, replica: str, trials: list[Trial], study: list[StudyTrial]
) -> Iterator[str]:
    whole = run.history.replicas[replica]
    asked = [t for t in trials if t.started.resumes is None and not t.started.notes]
    suggested = sum(each.suggested for each in study)
    if suggested < len(asked):
        yield f"it suggested {suggested} trials, its journal has {len(asked)}"
    values = {_point(*each.used, each.value) for each in study if each.value is not None}
    in_order = whole.ended is not None and trials[0].incarnation == max(whole.starts, default=FIRST)
    for trial in trials if in_order else ():
        if _must_have_a_value(trial) and _reached(run, trial) not in values:
            yield f"it has no value for {trial.id}, which was completed"
    own = (run.history.trials[name] for name in whole.trials)
    reached = {_reached(run, trial) for trial in own if trial.started.phase is RoundPhase.HPO}
    fence = run.fence(run.paths.replica_journal(replica, trials[0].incarnation))
    # A disconnected attempt continues its study with trials that do not count.
    late = {_point(*s.used, s.value) for s in study if s.value is not None and s.told_utc > fence}
    for batch_size, _, value in sorted(values - reached - late, key=str):
        yield f"it received {value} for batch size {batch_size}, which no trial reached"


def _must_have_a_value(trial: Trial) -> bool:
    """Return whether a trial is completed and, as far as recorded, a point of the search space."""
    started = trial.started
    fits = not started.notes and started.planned_batch_size is None
    return fits and trial.state is TrialState.COMPLETED


def _reached(run: Evidence, trial: Trial) -> Point:
    """Return the point of a trial with its best value, including the trials that it resumes."""
    used = trial.started.hyperparameters
    best = max((each.objective_value for each in run.evaluations(trial)), default=-math.inf)
    return _point(used.batch_size, used.kernel_size, best)


def _point(batch_size: int, kernel_size: int | None, value: float) -> Point:
    return batch_size, kernel_size, round(value, DIGITS)
