"""Repeated runs, with real signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.end_to_end.conftest import FAST
from tests.support.command import AIPERF, aiperf
from tests.support.processes import in_a_group
from tests.support.waiting import PATIENCE_SECONDS, until_recorded

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths


def test_ctrl_c_ends_the_run_under_way_in_order_and_starts_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    command = [*AIPERF, "start", "--nodes", "1", "--hours", "1", "--config", str(FAST), "--yes"]
    command += ["--launcher", "local", "--run-dir", str(folder), "--repeat", "3"]
    paths = RunPaths(folder / "1")
    with in_a_group(*command) as process:
        history = RunHistory(paths)
        until_recorded(lambda seen: len(seen.executions) > 2, history, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "run 1 of 3 was stopped (interrupted by the user); no further run is started" in err
    assert "Repeatability" in out
    assert "left out" in out
    assert sorted(path.name for path in folder.iterdir()) == ["1", "repeat.json"]
    (outcome,) = json.loads((folder / "repeat.json").read_text())["runs"]
    assert outcome["stopped_by"] == "interrupted by the user"
    assert aiperf("verify", paths.root).returncode == 0
