"""What lies behind the last record of a journal, which no record covers."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.hostile import appended, edited_lines, in_records

from aiperf_hpc.primary.monitor.run_view import RunView
from aiperf_hpc.primary.verify.evidence import Evidence
from aiperf_hpc.primary.verify.rules.records import journals
from aiperf_hpc.run.paths import RunPaths

BEGUN = b'{"v":1,"seq":99,"utc":17'


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", 1, distinct=1).paths


def wrong(paths: RunPaths) -> list[str]:
    return list(journals(Evidence(RunView(paths))))


@pytest.mark.parametrize("name", ["primary/journal.jsonl", "replicas/r0/0.0/journal.jsonl"])
@pytest.mark.parametrize("content", [BEGUN, b"\0" * 5000, b"x"])
def test_what_has_no_end_is_found_once_the_run_is_over(
    run: RunPaths, name: str, content: bytes
) -> None:
    assert wrong(run) == []
    appended(name, content)(run)
    assert wrong(run) == [f"{run.root / name}: the line behind the last record has no end"]


def test_a_line_that_is_being_written_is_none_of_a_run_that_lasts(run: RunPaths) -> None:
    edited_lines(run.primary_journal, lambda lines: lines[:-1])
    appended("replicas/r0/0.0/journal.jsonl", BEGUN)(run)
    assert wrong(run) == []


@pytest.mark.parametrize(("content", "passes"), [(BEGUN, True), (b"{", True), (b"x", False)])
def test_a_replica_that_died_may_leave_the_beginning_of_a_record(
    run: RunPaths, content: bytes, passes: bool
) -> None:
    in_records("job_state", lambda record: record["event"].update(phase="lost"), most=99)(run)
    appended("replicas/r0/0.0/journal.jsonl", content)(run)
    assert (wrong(run) == []) == passes
