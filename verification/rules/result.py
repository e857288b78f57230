"""The result: the score, the final report, and the files that it was made from."""

from __future__ import annotations

import json
import math
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.morphism.weights.predictions import load_recorded
from aiperf_hpc.results.report.files import MOST_REPORT_BYTES, report_document
from aiperf_hpc.results.report.model import Report, as_of_now, make_report
from aiperf_hpc.results.report.provenance import has_grown, software_difference, software_of
from aiperf_hpc.results.report.scaling import Scaling
from aiperf_hpc.results.report.writer import report_files
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.records import PredictionsKept
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import bytes_inside
from aiperf_hpc.verification.evidence import Evidence, Failures, Note, best_quality, quality

Json = dict[str, Any]

STATED = (
    "run_id", "name", "final", "valid", "invalid", "started", "until", "end_reason",
    "nodes_requested", "resources", "hours", "launcher", "measure", "baseline", "score", "series",
    "interval_hours", "operations", "best", "datasets", "versions", "commit", "config",
)  # fmt: skip
"""What of a report must follow from the records until the run's end. (A replica that was cut off
may have written on after it; that changes nothing of these.)"""
STATED_OF_A_TRIAL = (
    "replica", "round", "phase", "graph", "parent", "morphisms", "batch_size", "kernel_size",
    "learning_rate", "parameters", "depth", "train_operations", "validation_operations",
    "epoch_limit", "started_seconds", "grown_by", "hyperparameters", "notes",
)  # fmt: skip
"""What of each of its trials must; what it executed and reached is recounted."""


def score(run: Evidence) -> Failures:
    """The score now must be the recount's; the rule ``report`` compares what was stated."""
    try:
        operations, ops, regulated = recount(run)
        final = run.view.final()
    except AIPerfError as error:
        yield f"it cannot be recounted: {error}"
        return
    wanted = {"operations": operations, "ops": ops, "regulated": regulated}
    for key, value in wanted.items():
        if not _same(getattr(final, key), value):
            yield f"the score now has {key} {getattr(final, key)}, recounted {value}"


def recount(run: Evidence) -> tuple[int, float, float | None]:
    """Return operations, OPS and regulated score, from the records and regrown graphs alone.

    Raises:
        AIPerfError: a trial that executed samples is unknown, or its graph cannot be grown.
    """
    start = run.history.start_utc
    if start is None:
        return 0, 0.0, None
    operations = sum(run.operations(_started(run, name)) for name in run.samples)
    elapsed = run.end - start
    ops = operations / elapsed if elapsed > 0 else 0.0
    results = [e for t in run.trials for e in t.evaluations if e.utc <= run.end]
    if not results:
        return operations, ops, None
    if any(r.measure.name != "accuracy" for r in results):
        return operations, ops, None  # No other measure has an error in (0, 1].
    best = max(results, key=quality)
    wrong = max(best.samples - best.sums["correct"], 1.0)
    return operations, ops, ops * math.log(best.samples / wrong)


def _started(run: Evidence, name: str) -> Trial:
    trial = run.history.trials.get(name)
    if trial is None:
        raise AIPerfError(f"{name} executed samples, and no record says that it started")
    return trial


def _same(stated: float | None, recounted: float | None) -> bool:
    """Counts must be equal; what is divided or a logarithm, to the last digits of a float."""
    if isinstance(stated, int) or stated is None or recounted is None:
        return stated == recounted
    return math.isclose(stated, recounted, rel_tol=1e-12)


def report(run: Evidence) -> Failures:
    """The final report is what these records give: in every number, and in every byte.

    Its values are compared by rules of their own, its bytes with a report that is made again.
    """
    if not run.reported:
        return
    try:
        stated = report_document(run.view.paths)
        document = make_report(run.view)
        made = json.loads(document.model_dump_json())
    except OSError as error:
        yield f"report.json cannot be read: {reason_of(error)}"
        return
    except AIPerfError as error:
        yield str(error)
        return
    except ValueError as error:
        yield f"report.json is damaged: {error}"
        return
    if not isinstance(stated, dict):
        yield "report.json is no report"
        return
    try:
        # Version 1 did not state them.
        unstated = {"resources": made["resources"]} if "nodes" in stated else {}
        stated = as_of_now(stated) | unstated
    except ValueError as error:
        yield f"report.json is damaged: {error}"
        return
    for key in STATED:
        if stated.get(key) != made.get(key):
            yield f"report.json states another '{key}' than the records give"
    yield from _rows(run, stated, made)
    if not has_grown(run.view):
        yield from _times(stated, made)
    yield from _bytes(run, document, stated)


def _bytes(run: Evidence, document: Report, stated: Json) -> Failures:
    """Each of the report's files is, to the byte, what is made of the same records again.

    By another version it may be another file: then the values alone are compared.
    """
    if has_grown(run.view):
        yield Note("journals have grown since it was made: its values were compared, not its bytes")
        return
    if (other := software_difference(software_of(run.view))) is not None:
        yield Note(f"it was made by {other}: its values were compared, not its bytes")
        return
    if stated.get("scaling") is not None:
        yield Note("its section on scaling is of other runs' reports, which were not looked at")
        try:
            scaling = Scaling.model_validate(stated["scaling"])
        except ValidationError as error:
            yield f"report.json is damaged: scaling: {first_fault(error)}"
            return
        document = document.model_copy(update={"scaling": scaling})
    for path, content in report_files(run.view, document).items():
        yield from _same_bytes(run, path, content)


def _same_bytes(run: Evidence, path: Path, made: bytes) -> Failures:
    try:
        stated = bytes_inside(run.view.paths.root, path, MOST_REPORT_BYTES)
    except OSError as error:
        yield f"{path.name} cannot be read: {reason_of(error)}"
        return
    if stated != made:
        pairs = enumerate(zip_longest(stated, made))
        place = next(number for number, (one, other) in pairs if one != other)
        yield f"{path.name} is not what the records give, from its byte {place:,} on"


def _rows(run: Evidence, stated: Json, made: Json) -> Failures:
    """Every trial until the end has one row, which states what the recount gives."""
    expected, rows = _by_id(made["trials"]), _table(stated, "trials")
    stated_rows = _by_id(rows)
    if len(stated_rows) != len(rows):
        yield "report.json states trials of the same name"
    begun = {trial.id for trial in run.trials if trial.started_utc <= run.end}
    for name in sorted(begun - stated_rows.keys() | stated_rows.keys() - expected.keys()):
        yield f"report.json states {'no' if name in begun else 'an unknown'} trial {name}"
    for name in sorted(stated_rows.keys() & expected.keys()):
        trial = run.history.trials[name]
        wanted = {key: expected[name][key] for key in STATED_OF_A_TRIAL} | _result(run, trial)
        if "qualities" in stated_rows[name]:  # Earlier versions stated the best alone.
            wanted["qualities"] = [quality(e) for e in trial.evaluations if e.utc <= run.end]
        for key, value in wanted.items():
            if stated_rows[name].get(key) != value:
                yield f"{name}: report.json states another '{key}' than the records give"


def _result(run: Evidence, trial: Trial) -> Json:
    """Return what a trial executed and reached until the end."""
    train, validation = run.samples.get(trial.id, (0, 0))
    until = [e for e in trial.evaluations if e.utc <= run.end]
    is_share = all(e.measure.name == "accuracy" for e in until)
    best = best_quality(until)
    return {
        "train_samples": train,
        "validation_samples": validation,
        "operations": run.operations(trial),
        "epochs": len(until),
        "best_accuracy": best if is_share else None,
        "best_quality": best,
    }


def _times(stated: Json, made: Json) -> Failures:
    """Where the time went; sums over replicas that may have been read in another order."""
    if not _alike(stated.get("time"), made["time"]):
        yield "report.json states another 'time' than the records give"
    replicas = _by_id(_table(stated, "replicas"))
    for row in made["replicas"]:
        if not _alike(replicas.get(row["id"], {}).get("time"), row["time"]):
            yield f"{row['id']}: report.json states another 'time' than the records give"


def _table(stated: Json, key: str) -> list[Json]:
    """Return the rows of a table that is yet to be compared, whatever it is."""
    table = stated.get(key)
    return [row for row in table if isinstance(row, dict)] if isinstance(table, list) else []


def _by_id(rows: list[Json]) -> dict[str, Json]:
    return {str(row.get("id")): row for row in rows}


def _alike(one: object, other: object) -> bool:
    """Return whether two values of JSON are equal, but for the last digits of floats."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def predictions(run: Evidence) -> Failures:
    """Kept predictions are those of the trial's last evaluation, in the file that was recorded."""
    for trial in run.trials:
        if trial.predictions is not None:
            for wrong in _wrong_predictions(run, trial, trial.predictions):
                yield f"{trial.id}: {wrong}"


def _wrong_predictions(run: Evidence, trial: Trial, kept: PredictionsKept) -> Failures:
    path = run.view.paths.predictions(trial.replica, trial.id)
    last = trial.evaluations[-1] if trial.evaluations else None
    if last is None or (last.epoch, last.samples) != (kept.epoch, kept.samples):
        yield f"predictions of {kept.samples} samples after epoch {kept.epoch}: no such evaluation"
    try:
        found = load_recorded(path, kept.sha256)
    except (OSError, AIPerfError) as error:
        said = reason_of(error) if isinstance(error, OSError) else str(error)
        yield f"its predictions cannot be read: {said}"
        return
    stated = (found.trial, found.epoch, len(found.classes))
    if stated != (trial.id, kept.epoch, kept.samples):
        yield f"{path} holds predictions of {stated[0]}, epoch {stated[1]}, {stated[2]} samples"
    classes = run.dataset.classes or 0
    if found.classes.max(initial=0) >= classes:
        yield f"{path} predicts class {found.classes.max()} of {classes}"
