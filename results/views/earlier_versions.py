"""Reports of earlier versions, converted to this version's names."""

from __future__ import annotations

from typing import Any, Final

from aiperf_hpc.config import RunConfig
from aiperf_hpc.earlier_names import DATASET, HYPERPARAMETERS, SETTINGS
from aiperf_hpc.earlier_names import renamed as of_now
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.trial import DatasetInfo

RENAMED: Final = {
    "asked": "requests",
    "asked.seconds": "elapsed_seconds",
    "asked_division": "requested_division",
    "at_once": "concurrent",
    "at_seconds": "elapsed_seconds",
    "away": "unreachable_reason",
    "began_seconds": "started_seconds",
    "broken": "violated_rules",
    "busy_share": "busy_fraction",
    "clock.late": "late_replicas",
    "course": "timeline",
    "greatest_gap_seconds": "max_gap_seconds",
    "grown_by": "morphisms_text",
    "invalid": "violations",
    "judged": "compared",
    "least": "min",
    "measure": "metric",
    "models.begun": "started",
    "models.ended": "completed",
    "most": "max",
    "most_celsius": "max_celsius",
    "most_memory_bytes": "max_memory_bytes",
    "nodes_each": "nodes_per_model",
    "not_closed": "closed_violations",
    "problems.idle": "idle_accelerators",
    "ranks_each": "ranks_per_model",
    "report.nodes": "nodes_requested",
    "resources.line": "summary",
    "restarts.what": "description",
    "saw_end": "signed_end",
    "share": "fraction",
    "shares": "fractions",
    "steps.seconds": "elapsed_seconds",
    "telemetry.seconds": "interval_seconds",
    "times": "statement_count",
    "train_evaluate_share": "train_evaluate_fraction",
    "until": "ended",
    "what": "name",
    "who": "component",
    "why": "reason",
    "why_none": "unavailable_reason",
    "without_error": "error_unavailable_reason",
    "without_peak": "peak_unavailable_reason",
}
"""Names of versions 1 and 2 and their present ones; a name that has several meanings is preceded
by the key that contains it."""
AS_WRITTEN: Final = frozenset({"system", "versions"})
"""Keys whose values have names of their own."""
ELSEWHERE: Final = {
    "config": SETTINGS,
    "datasets": DATASET,
    "hyperparameters": HYPERPARAMETERS,
}
"""Earlier names of values that are recorded outside the report too."""


def in_this_version(document: Any) -> Any:  # noqa: ANN401 -- whatever was written
    """Return a report.json of this or an earlier version in the format of this version.

    Version 1 had neither names nor ``resources``. Reports of versions without metrics are on
    accuracies of a dataset of labeled images.

    Raises:
        ValueError: a list, the configuration or a dataset is invalid, or a value has two names.
    """
    if not isinstance(document, dict) or document.get("schema_version") not in (1, 2):
        return document
    for key in ("replicas", "datasets"):
        if not isinstance(document.get(key, []), list):
            raise ValueError(f"{key}: not a list")
    document = {**renamed(document, "report"), "schema_version": 3}
    if "resources" not in document:
        replicas = {"replicas": len(document.get("replicas", ()))}
        document |= {"name": document.get("run_id"), "resources": replicas}
    return document if "metric" in document else _with_metric(document)


def renamed(value: Any, inside: str) -> Any:  # noqa: ANN401 -- whatever was written
    """Return parsed JSON, the value of the key ``inside``, with the present names of its keys.

    Raises:
        ValueError: it has a value by its earlier and its present name.
    """
    if isinstance(value, list):
        return [renamed(each, inside) for each in value]
    if not isinstance(value, dict) or inside in AS_WRITTEN:
        return value
    if (names := ELSEWHERE.get(inside)) is not None:
        return of_now(value, names)
    present = {
        RENAMED.get(f"{inside}.{key}", RENAMED.get(key, key)): renamed(each, key)
        for key, each in value.items()
    }
    if len(present) < len(value):
        raise ValueError(f"{inside}: a value by its earlier and its present name")
    if isinstance(text := present.get("morphisms_text"), str):
        present["morphisms_text"] = text.replace(" behind ", " after ")
    return present


def _with_metric(document: dict[str, Any]) -> dict[str, Any]:
    best, trials = document.get("best"), document.get("trials")
    return {
        **document,
        "metric": ACCURACY.name,
        "best": {**best, "quality": best.get("accuracy")} if isinstance(best, dict) else best,
        "trials": list(map(_with_quality, trials)) if isinstance(trials, list) else trials,
        "datasets": [
            DatasetInfo.model_validate(dataset).model_dump(mode="json")
            for dataset in document.get("datasets", ())
        ],
        "config": RunConfig.model_validate(document.get("config")).model_dump(mode="json"),
    }


def _with_quality(row: object) -> object:
    return {**row, "best_quality": row.get("best_accuracy")} if isinstance(row, dict) else row
