"""What lies behind the last record of a journal, which no record covers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import synthetic_run
from tests.support.host_clocks import clocks
from tests.support.hostile import appended, edited_lines, in_records
from tests.support.rules import append, check_rule

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import (
    Event,
    JournalDigestsRecord,
    RanksLost,
    SearchEnded,
    SearchStarted,
)

NULS = bytes(5000)
"""What file systems leave behind the last line where the power was cut."""
DIGESTS = JournalDigestsRecord(
    new_primary=True, new_journals=(), appended_bytes=(), digest_prefixes="", sha256="0" * 64
)
BEGUN = b'{"v":2,"seq":99,"utc":17'


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", 1, distinct=1).paths


def wrong(paths: RunPaths) -> list[str]:
    return [line for rule in ("journals", "writers") for line in check_rule(rule, paths).failures]


def test_a_line_that_is_being_written_is_none_of_a_run_that_lasts(run: RunPaths) -> None:
    edited_lines(run.primary_journal, lambda lines: lines[:-1])
    edited_lines(run.replica_journal("r0"), lambda lines: lines[:-1])
    appended("replicas/r0/0.0/journal.jsonl", BEGUN)(run)
    assert wrong(run) == []


@pytest.mark.parametrize(
    ("content", "passes"),
    [(BEGUN, True), (b"{", True), (NULS, True), (BEGUN + NULS, True), (b"x", False),
     (b"x" + NULS, False)],
)  # fmt: skip
def test_a_writer_that_did_not_end_may_leave_the_beginning_of_a_record_or_nuls(
    run: RunPaths, content: bytes, passes: bool
) -> None:
    """Killed, or without power: the run may have been ended by `aiperf stop` since."""
    edited_lines(run.replica_journal("r0"), lambda lines: lines[:-1])
    appended("replicas/r0/0.0/journal.jsonl", content)(run)
    assert (wrong(run) == []) == passes


def test_a_rank_may_report_in_its_own_journal_that_the_first_was_lost(run: RunPaths) -> None:
    path, lost = run.replica_journal("r0"), RanksLost(ranks=(0,), reason="rank 0 on n1 died")
    append(path.with_name("rank-1.jsonl"), RunHistory.read(run).last_utc, lost)
    assert wrong(run) == []
    append(path.with_name("telemetry-1.jsonl"), RunHistory.read(run).last_utc, lost)
    (found,) = wrong(run)
    assert found.endswith("telemetry-1.jsonl: it does not begin with the start of a sampler")


def test_only_primaries_and_trainers_read_clocks(run: RunPaths) -> None:
    """Elsewhere, a reading would explain a clock that was set back."""
    path = run.replica_journal("r0").with_name("rank-1.jsonl")
    utc = RunHistory.read(run).last_utc
    append(path, utc, RanksLost(ranks=(0,), reason="rank 0 on n1 died"))
    append(path, utc, clocks(utc, 1.0))
    name = path.relative_to(run.root)
    assert wrong(run) == [f"{name}: record 1: clocks_read must not be written by a rank"]


@pytest.mark.parametrize(
    ("name", "event", "writer"),
    [
        ("replicas/r0/0.0/journal.jsonl", SearchEnded(reason="a test"), "a trainer"),
        ("primary/journal.jsonl", DIGESTS, "the primary"),
    ],
)
def test_others_record_neither_a_search_nor_digests(
    run: RunPaths, name: str, event: Event, writer: str
) -> None:
    append(run.root / name, RunHistory.read(run).last_utc, event)
    assert any(f"must not be written by {writer}" in line for line in wrong(run))


def test_a_search_worker_records_its_search(run: RunPaths) -> None:
    path = run.replica_journal("r0").with_name("search-9.jsonl")
    utc = RunHistory.read(run).last_utc
    append(path, utc, SearchStarted(replica="r0", worker=9, pid=1, searcher="random"))
    append(path, utc, SearchEnded(reason="a test"))
    assert wrong(run) == []


def test_a_line_with_nuls_is_named_and_the_others_count(run: RunPaths) -> None:
    path = run.replica_journal("r0")
    edited_lines(path, lambda lines: [*lines[:4], bytes(64) + lines[4][64:], *lines[5:]])
    assert f"{path}, line 5: not a record: it has NUL bytes" in wrong(run)


def test_a_primary_that_was_suspended_beyond_the_end_is_noted(run: RunPaths) -> None:
    """As SIGSTOP, a paused virtual machine or a laptop's lid leave it: silent, then the end."""

    def later(record: dict[str, Any]) -> None:
        record["utc"] += 3600.0
        record["mono"] += 3600.0

    in_records("run_ended", later)(run)
    (said,) = check_rule("heartbeats", run).notes
    assert re.fullmatch(r"the primary recorded nothing for 3\d{3} s", said)
