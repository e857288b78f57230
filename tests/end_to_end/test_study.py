"""A study from its file to its result, interrupted on the way."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from tests.end_to_end.conftest import FAST
from tests.support.command import AIPERF, aiperf_process
from tests.support.waiting import PATIENCE_SECONDS, until_recorded

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths

STUDY = f"""
name: batches
config: {FAST}
hours: 0.001
launcher: local
factors:
  large: {{training.batch_size: 96}}
"""


def test_a_study_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY, "utf-8")
    first = tmp_path / "studies/batches/runs/none-1"
    with subprocess.Popen(
        [*AIPERF, "study", "study.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as study:
        until_recorded(lambda run: run.run_started is not None, RunHistory(RunPaths(first)), study)
        study.send_signal(signal.SIGINT)
        _, said = study.communicate(timeout=PATIENCE_SECONDS)
    assert study.returncode == 1
    assert "interrupted; run the same `aiperf study` again to resume it" in said.splitlines()[-1]
    again = aiperf_process("study", "study.yaml", "--json", cwd=tmp_path)
    result = json.loads(again.stdout)
    for system in result["systems"]:
        # On a machine that is busy enough, so short a run ends before it has begun to train.
        others = [why for why in system["missing"] if "no sample was executed" not in why]
        assert len(system["values"]) + len(system["missing"]) - len(others) == 1
        assert [why for why in others if "interrupted by the user" not in why] == []
    assert (again.returncode == 0) == all(system["values"] for system in result["systems"])
    made = ["none-1", "none-1-attempt-2", "only-large-1"]
    assert sorted(folder.name for folder in first.parent.iterdir()) == made
    assert all((first.parent / name / "report/report.html").exists() for name in made)
