"""A single changed record, or a damaged report, is found by the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forgery.forger import ForgedRun

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.verification.audit import verify


def failed_rules(paths: RunPaths) -> set[str]:
    return {finding.rule for finding in verify(RunView(paths)) if not finding.passed}


def edit(path: Path, kind: str, old: str, new: str) -> None:
    """Replace ``old`` in the first record of ``kind`` that has it."""
    lines = path.read_text().splitlines(keepends=True)
    place = next(i for i, li in enumerate(lines) if f'"type":"{kind}"' in li and old in li)
    lines[place] = lines[place].replace(old, new, 1)
    path.write_text("".join(lines))


@pytest.mark.parametrize(
    ("kind", "old", "new", "rules"),
    [
        ("time_spent", '"start":', '"start":99', {"time", "files"}),
        ("progress", '{"v":1,"seq":', '{"v":1,"seq":7', {"journals", "files"}),
        ("progress", '{"v":1,', '{"v":1,"x":2,', {"journals", "samples", "report", "files"}),
        ("trial_started", '"precision":"bf16"', '"precision":"fp8"', {"rounds", "files"}),
    ],
)
def test_an_edited_record(
    copied: Callable[[str], ForgedRun], kind: str, old: str, new: str, rules: set[str]
) -> None:
    paths = copied("reported").paths
    edit(paths.replica_journal("r0"), kind, old, new)
    assert rules <= failed_rules(paths)


def test_a_damaged_or_missing_report(copied: Callable[[str], ForgedRun]) -> None:
    paths = copied("reported").paths
    paths.report_json.write_text("{")
    assert failed_rules(paths) >= {"report", "files"}
    paths.report_manifest.write_text("{}")
    paths.report_json.unlink()
    assert failed_rules(paths) >= {"report", "files"}


def test_an_unfinished_line_behind_the_last_record(copied: Callable[[str], ForgedRun]) -> None:
    paths = copied("reported").paths
    with paths.replica_journal("r0").open("a") as file:
        file.write('{"v":1,"seq":99999,"utc":17')
    assert failed_rules(paths) >= {"files", "writers"}
