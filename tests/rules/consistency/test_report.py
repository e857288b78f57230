"""The rule ``report``: a report's values and bytes are those of the records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from benchmarks import synthetic_run
from tests.support.hostile import edited_lines
from tests.support.manifests import change_manifest, restate
from tests.support.rules import (
    append,
    check_rule,
    end_amid_the_last_trial,
    failures_by_rule,
    reported,
    write_late,
)

from aiperf_hpc.results.report.provenance import ReportManifest
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

REPLICAS = 3
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "samples": (lambda r: r["trials"][0].update(train_samples=1), "r0-t1: * 'train_samples'"),
    "accuracy": (lambda r: r["trials"][0].update(best_accuracy=1.0), "r0-t1: * 'best_accuracy'"),
    "notes": (lambda r: r["trials"][0].update(notes=["x"]), "r0-t1: * 'notes'"),
    "one more": (
        lambda r: r["trials"].append(r["trials"][0] | {"id": "r0-t10"}), "* an unknown trial r0-t10"
    ),
    "one twice": (lambda r: r["trials"].append(r["trials"][0]), "* trials of the same name"),
    "no table": (lambda r: r.update(trials=7), "* no trial r0-t1"),
    "time": (lambda r: r["time"].update(train_evaluate_fraction=0.99), "the 'time' in *"),
    "its time": (
        lambda r: r["replicas"][1]["time"]["phases"]["train"].update(seconds=1.0), "r1: * 'time'"
    ),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", REPLICAS, distinct=2).paths


def test_a_final_report_holds_also_where_the_end_of_the_run_was_removed(run: RunPaths) -> None:
    edited_lines(reported(run).primary_journal, lambda lines: lines[:-1])
    perfect = re.compile(rb'"correct":\d+')
    edited_lines(
        run.replica_journal("r0"),
        lambda lines: [perfect.sub(b'"correct":360', line) for line in lines],
    )
    found = failures_by_rule(run)
    assert "the 'final' in report.json differs from the records" in found["report"]
    assert {name.split()[0] for name in found["files"]} == {
        "primary/journal.jsonl",
        "replicas/r0/0.0/journal.jsonl",
    }
    run.report_manifest.unlink()
    assert check_rule("files", run).failures == (
        "manifest.json cannot be read: No such file or directory",
    )


@pytest.mark.parametrize("file", ["report.json", "report.html"])
def test_a_report_that_is_not_whole_is_to_be_written_again(run: RunPaths, file: str) -> None:
    """The primary may be killed while it writes it."""
    path = reported(run).report / file
    path.unlink()
    assert failures_by_rule(run)["report"] == (
        f"{file} cannot be read: No such file or directory; `aiperf report` writes it",
    )
    assert failures_by_rule(reported(run)) == {}


@pytest.mark.parametrize("file", ["run.yaml", "report/report.json", "report/report.html"])
def test_the_manifest_of_a_report_must_name_the_report_and_what_it_was_asked(
    run: RunPaths, file: str
) -> None:
    change_manifest(reported(run), lambda files: tuple(each for each in files if each.path != file))
    assert failures_by_rule(run) == {"files": (f"manifest.json does not name {file}",)}


def restate_report(paths: RunPaths, change: Callable[[dict[str, Any]], object]) -> None:
    """Change ``report.json``, and its SHA-256 in the manifest with it."""
    report = json.loads(paths.report_json.read_text("utf-8"))
    change(report)
    restate(paths, paths.report_json, json.dumps(report).encode())


@pytest.mark.parametrize("case", CHANGES)
def test_a_report_that_was_changed_with_its_manifest_is_found(run: RunPaths, case: str) -> None:
    change, said = CHANGES[case]
    restate_report(reported(run), change)
    found = failures_by_rule(run)
    assert list(found) == ["report"]
    assert fnmatch(found["report"][0], f"{said}*")


def test_a_report_is_compared_to_the_last_digits_of_its_times(run: RunPaths) -> None:
    """They are sums over replicas, which a live reader may have met in another order."""
    restate_report(
        reported(run),
        lambda r: r["time"].update(elapsed_seconds=r["time"]["elapsed_seconds"] + 1e-10),
    )
    assert not check_rule("report", run).passed
    other_maker(run)
    assert failures_by_rule(run) == {}


def other_maker(paths: RunPaths) -> None:
    """Let the manifest say that another version made the report."""
    manifest = ReportManifest.model_validate_json(paths.report_manifest.read_bytes())
    made_by = {**manifest.made_by, "aiperf-hpc": "0.0.1"}
    content = manifest.model_copy(update={"made_by": made_by}).content()
    paths.report_manifest.write_bytes(content)


def test_what_no_value_is_read_of_is_compared_by_its_bytes(run: RunPaths) -> None:
    """It says VALID, say, and its hash was made again."""
    path = reported(run).report_schema
    restate(run, path, path.read_bytes()[:-9] + b"VALID" + path.read_bytes()[-9:])
    (said,) = check_rule("report", run).failures
    assert said.startswith(f"{path.name} differs from the records, starting at byte ")
    other_maker(run)
    found = check_rule("report", run)
    assert found.failures == ()
    (note,) = found.notes
    assert note.startswith("it was made by aiperf-hpc 0.0.1, here it is ")
    assert note.endswith(": its values were compared, not its bytes")


def test_a_section_on_other_runs_is_compared_as_stated(tmp_path: Path) -> None:
    runs = [synthetic_run.write_run(tmp_path / str(n), n, distinct=1).paths for n in (1, 2)]
    write_report(RunView(runs[1]), [reported(runs[0])])
    found = check_rule("report", runs[1])
    said = "its section on scaling is of other runs' reports, which were not looked at"
    assert (found.failures, found.notes) == ((), (said,))


def test_a_trial_that_began_after_the_end_may_be_missing_in_the_report(tmp_path: Path) -> None:
    paths, trial, end = end_amid_the_last_trial(tmp_path)
    write_late(reported(paths), trial, end + 1.0)
    later = trial.started.model_copy(update={"trial": "r0-late"})
    append(paths.replica_journal("r0"), end + 2.0, later)
    assert failures_by_rule(paths) == {}


def test_another_version_may_word_the_reasons_of_violated_rules_otherwise(run: RunPaths) -> None:
    restate_report(reported(run), lambda r: r["violations"][0].update(reason="in other words"))
    assert not check_rule("report", run).passed
    other_maker(run)
    assert failures_by_rule(run) == {}
    restate_report(run, lambda r: r["violations"].pop(0))
    assert "the 'violations' in report.json differs" in failures_by_rule(run)["report"][0]
