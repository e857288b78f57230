"""Reports of earlier versions are read by their earlier names."""

from __future__ import annotations

import pytest

from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.views.earlier_versions import RENAMED, in_this_version
from aiperf_hpc.results.views.run_catalog import RunSummary

EARLIER = {
    "schema_version": 2,
    "measure": "accuracy",
    "invalid": [{"rule": "hours", "reason": "too few"}],
    "restarts": [{"at_seconds": 1.0, "who": "r0", "what": "attempt 1 started"}],
    "telemetry": {
        "seconds": 30.0,
        "course": [{"cpu_percent": {"mean": 1.0, "least": 0.0, "most": 2.0}}],
        "absent": [{"what": "RAPL", "why": "denied", "hosts": ["n"]}],
    },
    "elasticity": {"asked": [{"seconds": 5.0, "why": "a user"}], "steps": [{"seconds": 9.0}]},
    "resources": {"line": "1 replica"},
    "versions": {"share": "1.0"},
}
PRESENT = {
    "schema_version": 3,
    "metric": "accuracy",
    "violations": [{"rule": "hours", "reason": "too few"}],
    "restarts": [{"elapsed_seconds": 1.0, "component": "r0", "description": "attempt 1 started"}],
    "telemetry": {
        "interval_seconds": 30.0,
        "timeline": [{"cpu_percent": {"mean": 1.0, "min": 0.0, "max": 2.0}}],
        "absent": [{"name": "RAPL", "reason": "denied", "hosts": ["n"]}],
    },
    "elasticity": {
        "requests": [{"elapsed_seconds": 5.0, "reason": "a user"}],
        "steps": [{"elapsed_seconds": 9.0}],
    },
    "resources": {"summary": "1 replica"},
    "versions": {"share": "1.0"},
}


def test_a_report_of_version_2_gets_the_present_names() -> None:
    assert in_this_version(EARLIER) == PRESENT
    assert in_this_version(PRESENT) is PRESENT


def test_a_stored_format_gets_the_present_name() -> None:
    report = {"schema_version": 2, "measure": "accuracy", "datasets": [{"stored": "raw"}]}
    assert in_this_version(report)["datasets"] == [{"storage_format": "raw"}]


def test_a_value_by_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="by its earlier and its present name"):
        in_this_version(EARLIER | {"violations": []})


@pytest.mark.parametrize("key", ["replicas", "datasets"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_list_that_is_none_is_refused(key: str, version: int) -> None:
    with pytest.raises(ValueError, match=f"{key}: not a list"):
        in_this_version({"schema_version": version, key: 5})


def test_present_names_are_fields_and_earlier_ones_are_none() -> None:
    schema = Report.model_json_schema()
    models = [schema, *schema["$defs"].values(), RunSummary.model_json_schema()]
    fields = {name for model in models for name in model.get("properties", {})}
    assert set(RENAMED.values()) <= fields
    assert {name for name in RENAMED if "." not in name} & fields == set()
