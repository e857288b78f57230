"""The JSON Schema of reports, by a validator of others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.results.report.schema import report_schema, schema_text
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

ARCHIVES = sorted((Path(__file__).parents[2] / "data" / "runs").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = report_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _documents(root: Path) -> Iterator[tuple[str, RunPaths]]:
    for archive in ARCHIVES:
        folder = root / archive.name
        folder.mkdir()
        subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
        (run,) = folder.iterdir()
        RunPaths(run).report.rename(folder / "report")
        yield archive.name, RunPaths(run)
    small = Plan(replicas=1, trials=1, hpo_trials=0, failed=0)
    yield "small", write_run(root / "small", small)
    yield "not started", write_run(root / "empty", Plan(replicas=1, trials=0, hpo_trials=0))


def test_reports_keep_their_schema_which_lies_beside_them(
    validator: Draft202012Validator, tmp_path: Path
) -> None:
    for name, paths in _documents(tmp_path):
        write_report(RunView(paths))
        document = json.loads(paths.report_json.read_bytes())
        assert [error.message for error in validator.iter_errors(document)] == [], name
        assert paths.report_schema.read_text("utf-8") == schema_text()


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("nodes_requested", "two", "'two' is not of type 'integer'"),
        ("tpye", 1, "'tpye' was unexpected"),
    ],
)
def test_what_is_no_report_is_refused(
    validator: Draft202012Validator, default_run: RunPaths, key: str, value: object, told: str
) -> None:
    document = json.loads(default_run.report_json.read_bytes()) | {key: value}
    with pytest.raises(ValidationError, match=told):
        validator.validate(document)


def test_keys_are_described_by_the_docstrings_of_their_fields() -> None:
    schema = report_schema()
    hours = schema["properties"]["hours"]["description"]
    assert hours.startswith("The hours that were requested")
    trial = schema["$defs"]["TrialReport"]["properties"]
    assert (
        trial["train_operations"]["description"] == "Operations credited for one training sample."
    )
    assert trial["operations"]["description"].startswith("Operations credited until the report's")
