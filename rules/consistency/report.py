"""Rules on the final report and the result texts: values and bytes follow from the records."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.rules.consistency.evidence import Evidence, Json, best_quality, quality
from aiperf_hpc.rules.consistency.score import recount
from aiperf_hpc.rules.rule import Checked, Findings, Note
from aiperf_hpc.run.history import Trial
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import bytes_inside, parsed_json

STATED = (
    "run_id", "name", "final", "valid", "violations", "started", "ended", "end_reason",
    "nodes_requested", "resources", "hours", "launcher", "metric", "baseline", "score", "series",
    "interval_hours", "operations", "best", "datasets", "versions", "commit", "config",
)  # fmt: skip
"""Values of a report that must follow from the records until the run's end. (Later records of a
disconnected replica do not change them.)"""
STATED_OF_A_TRIAL = (
    "replica", "round", "phase", "graph", "parent", "morphisms", "batch_size", "kernel_size",
    "learning_rate", "parameters", "depth", "train_operations", "validation_operations",
    "epoch_limit", "started_seconds", "morphisms_text", "hyperparameters", "notes",
)  # fmt: skip
"""Values of each trial that must follow from the records; samples and results are recounted."""
MOST_REPORT_BYTES = 256 * 2**20
"""Maximum size of a report's file in bytes."""
LAST_LINE = re.compile(r"^AIPERF RESULT: (VALID|INVALID|NOT FINAL) (.*?) run=(.*)$", re.MULTILINE)
RULE_LINE = re.compile(r"^(\S.*?)  .* \.{6} (PASSED|FAILED)$", re.MULTILINE)
"""Lines of ``result.txt`` that programs parse."""
LOG_LINE = re.compile(r"^:::MLLOG (\{.*\})$", re.MULTILINE)
ALIKE = 1e-12
"""Relative tolerance of floats, to ignore their last digits."""


def report(run: Evidence) -> Findings:
    """The final report follows from the records, in every value and every byte.

    Values are compared by separate code, bytes with a report that is made again.
    """
    yield Checked(int(run.reported))
    if not run.reported:
        return
    try:
        stated, made = run.report.stated(), run.report.made()
        if not isinstance(stated, dict):
            yield "report.json is not a report"
            return
        absent = run.manifest.earlier and "resources" not in stated
        unstated = {"resources": made["resources"]} if absent else {}
        stated = run.report.in_this_version(stated) | unstated
    except OSError as error:
        yield _unreadable("report.json", error)
        return
    except AIPerfError as error:
        yield str(error)
        return
    except ValueError as error:
        yield f"report.json is damaged: {error}"
        return
    for key in STATED:
        if _value(run, stated, key) != _value(run, made, key):
            yield f"the '{key}' in report.json differs from the records"
    yield from _rows(run, stated, made)
    if not run.report.has_grown():
        yield from _times(stated, made)
    yield from _bytes(run, stated)


def _value(run: Evidence, stated: Json, key: str) -> object:
    """Return a value to compare; of another version's violated rules only the names."""
    value = stated.get(key)
    if key != "violations" or not isinstance(value, list) or run.report.other_maker() is None:
        return value
    return [each.get("rule") if isinstance(each, dict) else each for each in value]


def _bytes(run: Evidence, stated: Json) -> Iterator[str]:
    """Each file of the report equals, byte for byte, the file made from the same records.

    Another version may have written different bytes; then only the values are compared.
    """
    if run.report.has_grown():
        yield Note("journals have grown since it was made: its values were compared, not its bytes")
        return
    if (other := run.report.other_maker()) is not None:
        yield Note(f"it was made by {other}: its values were compared, not its bytes")
        return
    if stated.get("scaling") is not None:
        yield Note("its section on scaling is of other runs' reports, which were not looked at")
    try:
        files = run.report.files(stated.get("scaling"))
    except ValidationError as error:
        yield f"report.json is damaged: scaling: {first_fault(error)}"
        return
    for path, content in files.items():
        yield from _same_bytes(run, path, content)


def _unreadable(name: str, error: OSError) -> str:
    remedy = "; `aiperf report` writes it" if isinstance(error, FileNotFoundError) else ""
    return f"{name} cannot be read: {reason_of(error)}{remedy}"


def _same_bytes(run: Evidence, path: Path, made: bytes) -> Iterator[str]:
    try:
        stated = bytes_inside(run.paths.root, path, MOST_REPORT_BYTES)
    except OSError as error:
        yield _unreadable(path.name, error)
        return
    if stated != made:
        pairs = enumerate(zip_longest(stated, made))
        place = next(number for number, (one, other) in pairs if one != other)
        yield f"{path.name} differs from the records, starting at byte {place:,}"


def _rows(run: Evidence, stated: Json, made: Json) -> Iterator[str]:
    """Every trial until the end has one row with the recounted values."""
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
        if "qualities" in stated_rows[name]:  # Earlier versions stated only the best.
            wanted["qualities"] = [quality(e) for e in trial.evaluations if e.utc <= run.end]
        for key, value in wanted.items():
            if stated_rows[name].get(key) != value:
                yield f"{name}: the '{key}' in report.json differs from the records"


def _result(run: Evidence, trial: Trial) -> Json:
    """Return the executed samples and results of a trial until the end."""
    train, validation = run.samples.get(trial.id, (0, 0))
    until = [e for e in trial.evaluations if e.utc <= run.end]
    is_share = all(e.quality_metric.name == "accuracy" for e in until)
    best = best_quality(until)
    return {
        "train_samples": train,
        "validation_samples": validation,
        "operations": run.operations(trial),
        "epochs": len(until),
        "best_accuracy": best if is_share else None,
        "best_quality": best,
    }


def _times(stated: Json, made: Json) -> Iterator[str]:
    """The time breakdown agrees, up to rounding: sums may be in another order of replicas."""
    if not _alike(stated.get("time"), made["time"]):
        yield "the 'time' in report.json differs from the records"
    replicas = _by_id(_table(stated, "replicas"))
    for row in made["replicas"]:
        if not _alike(replicas.get(row["id"], {}).get("time"), row["time"]):
            yield f"{row['id']}: the 'time' in report.json differs from the records"


def _table(stated: Json, key: str) -> list[Json]:
    """Return the rows of an unchecked table; none if it is malformed."""
    table = stated.get(key)
    return [row for row in table if isinstance(row, dict)] if isinstance(table, list) else []


def _by_id(rows: list[Json]) -> dict[str, Json]:
    return {str(row.get("id")): row for row in rows}


def _alike(one: object, other: object) -> bool:
    """Return whether two JSON values are equal, except for the last digits of floats."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def statements(run: Evidence) -> Findings:
    """Both texts state the recomputed score, and the first one also the violated rules.

    Earlier versions wrote no texts; the rule ``files`` checks that written ones exist.
    """
    yield Checked(sum(path.exists() for path in (run.paths.result_text, run.paths.result_log)))
    if not run.reported:
        return
    for path, check in ((run.paths.result_text, _result_text), (run.paths.result_log, _result_log)):
        if path.exists():
            yield from (f"{path.name} {failure}" for failure in _read(run, path, check))


def _read(
    run: Evidence, path: Path, check: Callable[[Evidence, str], Iterator[str]]
) -> Iterator[str]:
    try:
        text = bytes_inside(run.paths.root, path).decode()
    except (OSError, UnicodeDecodeError) as error:
        yield f"cannot be read: {reason_of(error)}"
        return
    yield from check(run, text)


def _result_text(run: Evidence, text: str) -> Iterator[str]:
    found = LAST_LINE.findall(text)
    if len(found) != 1:
        yield f"has {len(found)} lines of a result; it must have one"
        return
    broken = run.report.violated()
    verdict, pairs, run_id = found[0]
    stated = dict(pair.partition("=")[::2] for pair in pairs.split())
    stated |= {"verdict": verdict, "run": run_id}
    wanted = _score(run) | run.report.result() | {
        "verdict": "INVALID" if broken else "VALID",
        "seconds": _seconds(run),
        "run": " ".join(run.manifest.run_id.split()),
    }  # fmt: skip
    for key, value in wanted.items():
        if not _says(stated.get(key), value):
            yield f"states {key} {stated.get(key)}, the records give {value}"
    failed = {rule.strip() for rule, came in RULE_LINE.findall(text) if came == "FAILED"}
    for rule in sorted(failed ^ broken):
        yield f"differs from the records in the verdict on the rule '{rule}'"


def _result_log(run: Evidence, text: str) -> Iterator[str]:
    try:
        lines = [parsed_json(line) for line in LOG_LINE.findall(text)]
        stated = {line["key"]: line["value"] for line in lines}
        times = {line["key"]: line["time_ms"] / 1000.0 for line in lines}
        seconds = times["run_stop"] - times["run_start"]
    except (ValueError, TypeError, KeyError) as error:
        yield f"is not a log of a run that has ended: {type(error).__name__}, {error}"
        return
    for key, value in _score(run).items():
        name = {"regulated": "aiperf_regulated_ops"}.get(key, f"aiperf_{key}")
        if not _says(json.dumps(stated.get(name)).replace("null", "none"), value):
            yield f"states {name} {stated.get(name)}, the records give {value}"
    if abs(max(0.0, seconds) - _seconds(run)) > 0.01:
        yield f"states a run of {seconds} s, the records give {_seconds(run)}"


def _score(run: Evidence) -> dict[str, Any]:
    operations, ops, regulated = recount(run)
    return {"operations": operations, "ops": ops, "regulated": regulated}


def _seconds(run: Evidence) -> float:
    start = run.history.start_utc
    return 0.0 if start is None else max(0.0, run.end - start)


def _says(stated: str | None, value: object) -> bool:
    """Return whether a stated word equals a value."""
    if stated is None or value is None or not isinstance(value, float):
        return stated == ("none" if value is None else str(value))
    try:
        return math.isclose(float(stated), value, rel_tol=ALIKE)
    except ValueError:
        return False
