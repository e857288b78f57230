"""Verification by two processes finds what one does."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.rules import verify

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.verification import audit
from aiperf_hpc.verification.audit import forked

TWO_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a fork works beside where there are two cores"
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have one thread, as far as it can see; test workers have two."""
    monkeypatch.setattr("threading.active_count", lambda: 1)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """Return a run whose report states another score."""
    paths = synthetic_run.write_run(tmp_path_factory.mktemp("run"), 2).paths
    write_report(RunView(paths))
    stated = paths.report_json.read_text("utf-8")
    changed = stated.replace('"nodes_requested": 2', '"nodes_requested": 3', 1)
    assert changed != stated
    paths.report_json.write_text(changed, "utf-8")
    return paths


def test_findings_are_the_same_in_the_same_order(
    reported: RunPaths, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_one = verify(RunView(reported))
    monkeypatch.setattr(audit, "MANY_RECORDS", 0)
    by_two = verify(RunView(reported))
    assert by_two == by_one
    assert {finding.rule for finding in by_two if not finding.passed} >= {"report", "files"}


@TWO_CORES
def test_the_work_is_done_by_another_process(alone: None) -> None:
    with forked(os.getpid) as result:
        assert result() != os.getpid()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("threads", "cores"), [(2, {0, 1}), (1, {0})])
def test_a_process_with_threads_or_one_core_is_not_forked(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: set[int]
) -> None:
    monkeypatch.setattr("threading.active_count", lambda: threads)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    with forked(os.getpid) as result:
        assert result() == os.getpid()


def test_what_is_wrong_in_the_fork_is_said_by_who_asked(alone: None) -> None:
    def work() -> None:
        raise ValueError("it cannot be done")

    with forked(work) as result, pytest.raises(ValueError, match="it cannot be done"):
        result()


def test_a_fork_that_was_killed_costs_no_result(alone: None, tmp_path: Path) -> None:
    here = os.getpid()

    def work() -> str:
        if os.getpid() != here:
            os._exit(9)
        return "done"

    with forked(work) as result:
        assert result() == "done"
