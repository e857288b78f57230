"""A search worker as the process that it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.config import validate
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import SearchEnded


def test_a_worker_whose_replica_was_gone_before_it_came_up_ends(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    config = validate({"dataset": {"name": "digits"}}, "test")
    manifest = RunManifest(
        run_id="run", nodes=1, hours=1.0, launcher="local", versions={}, commit=None, config=config
    )
    manifest.save(paths)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "aiperf_hpc.replica.search.worker", str(tmp_path)]
    command += ["--replica", "r0", "--incarnation", "0.0", "--worker", "0"]
    subprocess.run([*command, "--parent", str(gone.pid)], check=True, timeout=PATIENCE_SECONDS)
    *_, last = JournalReader(paths.search_journal("r0", 0)).read()
    assert last.event == SearchEnded(reason="the replica is gone")
