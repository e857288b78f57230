"""A search worker as the process that it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.config import validate
from aiperf_hpc.replica.host import Host
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import Identity, Incarnation, RunPaths
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


COUNT_THREADS = """
import scipy.linalg, sys, threadpoolctl
from pathlib import Path
most = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
Path(sys.argv[1]).write_text(f"{most}\\n")
"""


def test_a_workers_linear_algebra_has_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")  # As a site may have it for the training.
    counted, program = tmp_path / "threads", tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{COUNT_THREADS}' '{counted}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    who = Identity("r0", Incarnation(0, 0))
    with Host(1).search(RunPaths(tmp_path), who, 1):
        until(lambda: counted.exists() and counted.read_text().endswith("\n"))
    assert counted.read_text() == "1\n"
