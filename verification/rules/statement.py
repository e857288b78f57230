"""What the result says in plain text, ``result.txt``, and as a log of MLPerf, ``result_0.txt``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import reason_of
from aiperf_hpc.untrusted.files import bytes_inside, parsed_json
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.rules.result import recount

LAST_LINE = re.compile(r"^AIPERF RESULT: (VALID|INVALID|NOT FINAL) (.*?) run=(.*)$", re.MULTILINE)
RULE_LINE = re.compile(r"^(\S.*?)  .* \.{6} (PASSED|FAILED)$", re.MULTILINE)
"""What programs read in ``result.txt``."""
LOG_LINE = re.compile(r"^:::MLLOG (\{.*\})$", re.MULTILINE)
ALIKE = 1e-12
"""The last digits of floats do not count."""


def statements(run: Evidence) -> Failures:
    """Both texts state the recounted score, and the first the rules that are not kept.

    Earlier versions wrote none; whether one that was written is there, the rule ``files`` says.
    """
    if not run.reported:
        return
    yield from _read(run, run.view.paths.result_text, _result_text)
    yield from _read(run, run.view.paths.result_log, _result_log)


def stated(run: Evidence) -> int:
    """Return how many of the two there are."""
    paths = run.view.paths
    return sum(path.exists() for path in (paths.result_text, paths.result_log))


def _read(run: Evidence, path: Path, check: Callable[[Evidence, str], Failures]) -> Failures:
    if not path.exists():
        return
    try:
        text = bytes_inside(run.view.paths.root, path).decode()
    except (OSError, UnicodeDecodeError) as error:
        yield f"{path.name} cannot be read: {reason_of(error)}"
        return
    for failure in check(run, text):
        yield f"{path.name} {failure}"


def _result_text(run: Evidence, text: str) -> Failures:
    found = LAST_LINE.findall(text)
    if len(found) != 1:
        yield f"has {len(found)} lines of a result; it must have one"
        return
    broken = {each.rule for each in run.view.violations()}
    verdict, pairs, run_id = found[0]
    said = dict(pair.partition("=")[::2] for pair in pairs.split())
    said |= {"verdict": verdict, "run": run_id}
    resources = run.view.resources()
    wanted = _score(run) | {
        "verdict": "INVALID" if broken else "VALID",
        "error": run.view.final().error,
        "seconds": _seconds(run),
        "replicas": resources.replicas,
        "hosts": resources.hosts,
        "accelerators": resources.accelerator_count,
        "run": " ".join(run.view.manifest.run_id.split()),
    }
    if run.view.manifest.rules > 1:
        wanted["division"] = run.view.judgement().division
    for key, value in wanted.items():
        if not _says(said.get(key), value):
            yield f"states {key} {said.get(key)}, the records give {value}"
    failed = {rule.strip() for rule, came in RULE_LINE.findall(text) if came == "FAILED"}
    for rule in sorted(failed ^ broken):
        yield f"states another verdict on the rule '{rule}' than the records give"


def _result_log(run: Evidence, text: str) -> Failures:
    try:
        lines = [parsed_json(line) for line in LOG_LINE.findall(text)]
        said = {line["key"]: line["value"] for line in lines}
        times = {line["key"]: line["time_ms"] / 1000.0 for line in lines}
        seconds = times["run_stop"] - times["run_start"]
    except (ValueError, TypeError, KeyError) as error:
        yield f"is no log of a run that has ended: {type(error).__name__}, {error}"
        return
    for key, value in _score(run).items():
        name = {"regulated": "aiperf_regulated_ops"}.get(key, f"aiperf_{key}")
        if not _says(json.dumps(said.get(name)).replace("null", "none"), value):
            yield f"states {name} {said.get(name)}, the records give {value}"
    if abs(seconds - _seconds(run)) > 0.01:
        yield f"states a run of {seconds} s, the records give {_seconds(run)}"


def _score(run: Evidence) -> dict[str, Any]:
    operations, ops, regulated = recount(run)
    return {"operations": operations, "ops": ops, "regulated": regulated}


def _seconds(run: Evidence) -> float:
    start = run.history.start_utc
    return 0.0 if start is None else run.end - start


def _says(said: str | None, value: object) -> bool:
    """Return whether a word of the text is a value."""
    if said is None or value is None or not isinstance(value, float):
        return said == ("none" if value is None else str(value))
    try:
        return math.isclose(float(said), value, rel_tol=ALIKE)
    except ValueError:
        return False
