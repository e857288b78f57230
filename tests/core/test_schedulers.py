"""The variables of schedulers' jobs, and a run by a scheduler of the tests' own."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest
from tests.support.source_tree import ROOT, package_texts
from tests.support.toy_scheduler import JOB, PROGRAM

from aiperf_hpc.host.schedulers import Task, current, job_variable, node_name, task
from aiperf_hpc.primary.launchers.slurm.client import SITE_VARIABLES, outside_of_a_job
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths

OWN = (
    "deploy/",
    "primary/launchers/slurm/",
    "src/aiperf_hpc/config/slurm",
    "src/aiperf_hpc/simulation/",
)
"""What is about SLURM."""
MOST_NAMING_SLURM = 8


def test_few_files_name_slurm() -> None:
    named = [
        name
        for name, text in package_texts().items()
        if "slurm" in text.lower() and not name.startswith(OWN)
    ]
    assert len(named) <= MOST_NAMING_SLURM, named


def test_slurms_variables_are_read_in_one_place_alone() -> None:
    readers = {
        name
        for name, text in package_texts().items()
        if re.search(r"SLURMD?_[A-Z_]{3,}", text) and not name.startswith(OWN)
    }
    assert readers == {"src/aiperf_hpc/host/schedulers.py"}


def test_a_scheduler_is_one_module_and_one_row(tmp_path: Path) -> None:
    """The whole program launches by it: it names it, starts replicas and describes their job."""
    folder = tmp_path / "run"
    start = ["start", "--nodes", "1", "--hours", "0.0003", "--config", "simulated", "--yes"]
    command = [*start, "--launcher", "toy", "--run-dir", str(folder)]
    done = subprocess.run(
        [*PROGRAM, "aiperf_hpc.cli", *command],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    history = RunHistory.read(RunPaths(folder))
    started = history.replicas["r0"].started
    assert started is not None
    assert (RunManifest.load(history.paths).launcher, started.job) == ("toy", JOB)


def test_the_batch_script_repeats_no_exit_status() -> None:
    script = (ROOT / "deploy" / "slurm_array.sh").read_text("utf-8")
    assert re.findall(r"exit (\S+)", script) == ["$unseen_run_status", "$unseen_python_status"]


def test_outside_of_slurm_a_node_has_its_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    assert current() is None
    assert job_variable("restarts") is None
    assert node_name() == socket.gethostname()


def test_a_job_knows_itself_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "SLURM_JOB_ID": "41234",
        "SLURM_RESTART_COUNT": "2",
        "SLURMD_NODENAME": "n7",
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "8",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    }
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert (job_variable("id"), job_variable("restarts"), node_name()) == ("41234", "2", "n7")
    assert task() == Task(job=41234, rank=3, ranks=8, step=0, first_address="10.0.0.7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    outside = {name for name in outside_of_a_job() if name.startswith("SLURM_")}
    assert {"SLURM_CONF"} <= outside <= set(SITE_VARIABLES)
    monkeypatch.delenv("SLURM_NTASKS")
    with pytest.raises(KeyError, match="SLURM_NTASKS"):
        task()
