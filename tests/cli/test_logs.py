"""``aiperf logs``: events of all journals by their time, and what processes printed."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from tests.support.clock import START, Clock
from tests.support.command import printed
from tests.support.refusals import refused_line
from tests.support.run_factory import Plan, Primary, write_run
from tests.support.waiting import until

from aiperf_hpc.cli import main
from aiperf_hpc.run.paths import RunPaths

PLAN = Plan(replicas=2, trials=2, hpo_trials=0, failed=0, epochs=1)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run whose second replica printed three lines."""
    paths = write_run(tmp_path, PLAN)
    paths.replica_log("r1").write_text("one\ntwo\nthree\n")
    return paths


def test_events_are_in_the_order_of_time_behind_what_was_printed(paths: RunPaths) -> None:
    output, events = printed("logs", paths.root, "--lines", 1000).split("\n\n")
    assert output.splitlines() == [f"==> {paths.replica_log('r1')} <==", "one", "two", "three"]
    lines = events.splitlines()
    times = [line.split()[0] for line in lines]
    assert times == sorted(times)
    assert {line.split()[1] for line in lines} == {"primary", "r0", "r1"}
    assert lines[0].startswith("2025-06-15T15:06:40.000Z  primary  run started  run_id=digits")
    assert lines[-1].endswith("primary  run ended  reason=the run's time is over")
    assert not any("heartbeat" in line for line in lines)


def test_the_last_lines_of_one_replica(paths: RunPaths) -> None:
    lines = printed("logs", paths.root, "--replica", 1, "--lines", 2).splitlines()
    assert lines[1:3] == ["two", "three"]
    assert len(lines) == 6
    assert "has no replica r7" in refused_line("logs", paths.root, "--replica", 7)


def test_following_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(**{**vars(PLAN), "ended": False})
    paths, output = write_run(tmp_path, plan), io.StringIO()
    monkeypatch.setattr("sys.stdout", output)

    def end() -> None:
        until(lambda: "trial started" in output.getvalue())
        with Primary(RunPaths(paths.root), plan, Clock(START + 3600.0)) as primary:
            primary.end("enough")

    thread = threading.Thread(target=end)
    thread.start()
    assert main(["logs", str(tmp_path), "--follow", "--lines", "100"]) == 0
    thread.join()
    assert output.getvalue().endswith("primary  run ended  reason=enough\n")
