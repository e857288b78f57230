"""Runs of earlier versions are read, reported and verified with the score that they had.

Their folders are in ``tests/data/runs``, without weights and logs.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.support.rules import verify

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.earlier_versions import in_this_version
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

ARCHIVES = sorted((Path(__file__).parents[1] / "data" / "runs").glob("*.tar.gz"))


def test_two_nodes_a_resumed_run_and_several_ranks_are_kept() -> None:
    names = {path.name.removesuffix(".tar.gz") for path in ARCHIVES}
    assert names >= {"two-nodes", "resumed", "several-ranks"}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_an_earlier_run_has_the_score_that_it_had(archive: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    (folder,) = tmp_path.iterdir()
    paths = RunPaths(folder)
    findings = verify(RunView(paths))
    assert [failure for finding in findings for failure in finding.failures] == []
    stated = paths.report_json.read_bytes()
    paths.report.rename(tmp_path / "report")
    write_report(RunView(paths))
    made, then = json.loads(paths.report_json.read_bytes()), in_this_version(json.loads(stated))
    for key in ("score", "series", "operations", "best", "time"):
        assert made[key] == then[key]
    made_violations, then_violations = made["violations"], then["violations"]
    assert [each["rule"] for each in made_violations] == [each["rule"] for each in then_violations]
    assert _without_duration(made_violations) == _without_duration(then_violations)
    assert _score(paths.report_json.read_bytes()) == _score(stated)


def _without_duration(violations: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return all violations but that of the duration, which earlier versions gave more digits."""
    return [each for each in violations if each["rule"] != "duration"]


def _score(report: bytes) -> bytes:
    """Return the bytes of a report's score."""
    begin = report.index(b'"score": {')
    return report[begin : report.index(b"}", begin) + 1]
