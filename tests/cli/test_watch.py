"""``aiperf watch``: a run that somebody else conducts, on a terminal and in a file."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.run_factory import Plan, Primary, write_manifest, write_run
from tests.support.waiting import until

from aiperf_hpc.cli import main
from aiperf_hpc.results.terminal import progress
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths

PLAN = Plan(replicas=1)


def watched(run: Path, output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> int:
    """Watch a run, with as many lines as looks."""
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    return main(["watch", str(run)])


def meanwhile(do: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def begun(paths: RunPaths) -> Primary:
    """Let a run begin just now, by a primary elsewhere."""
    write_manifest(paths, PLAN)
    primary = Primary(paths, PLAN, Clock(time.time()))
    primary.start()
    return primary


def test_a_run_is_shown_until_it_ends_and_then_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, output = begun(RunPaths(tmp_path)), io.StringIO()

    def end() -> None:
        until(lambda: "of 15 min 00 s" in output.getvalue())
        primary.end()

    thread = meanwhile(end)
    assert watched(tmp_path, output, monkeypatch) == 0
    thread.join()
    assert "\nScore            0 OPS" in output.getvalue()
    assert "\nResult           INVALID: this run is not official: " in output.getvalue()


def test_ctrl_c_ends_the_watching_and_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    primary, output = begun(RunPaths(tmp_path)), io.StringIO()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def interrupt() -> None:
        until(lambda: "of 15 min 00 s" in output.getvalue())
        os.kill(os.getpid(), signal.SIGINT)

    thread = meanwhile(interrupt)
    assert watched(tmp_path, output, monkeypatch) == 130
    thread.join()
    said = capsys.readouterr().err
    assert (
        said
        == f"aiperf: no longer watched; the run continues, and `aiperf stop {tmp_path}` ends it\n"
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    primary.journal.close()


def test_what_happened_before_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, output = write_run(tmp_path, PLAN), io.StringIO()
    assert watched(tmp_path, output, monkeypatch) == 0
    assert str(paths.report) not in output.getvalue()
    assert "r0-t000" not in output.getvalue()
    assert "Score" in output.getvalue()


def test_a_run_whose_primary_failed_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with begun(RunPaths(tmp_path)) as primary:
        primary.write(records.PrimaryFailed(reason="no space"))
    output = io.StringIO()
    assert watched(tmp_path, output, monkeypatch) == 1
    said = capsys.readouterr().err
    assert f"the primary failed: no space; `aiperf resume {tmp_path}` resumes" in said
