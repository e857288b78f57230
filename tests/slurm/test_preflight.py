"""Unfit nodes on a real cluster of separate hosts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.slurm.conftest import FAST, ROOT, Cluster
from tests.support.imagenet_source import write_source

from aiperf_hpc.deploy.local_cluster import pid_of
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths

START = ["start", "--config", FAST, "--yes", "--hours", 1, "--nodes", 2, "--launcher", "slurm"]
LATE = """\
import os, time
if os.environ.get("SLURM_ARRAY_TASK_ID") == "1":
    now = time.time
    time.time = lambda: now() - 4.0
"""
"""A sitecustomize by which the clock of one replica is behind."""


def on_node(cluster: Cluster, node: str, *command: object) -> None:
    """Run a command where a node's daemon and its steps see the file system."""
    entered = ["nsenter", f"--target={pid_of(cluster.folder, node)}", "--mount"]
    subprocess.run([*entered, *(str(part) for part in command)], check=True)


@contextmanager
def hidden(cluster: Cluster, node: str, folder: Path) -> Iterator[None]:
    """Let a node not see what is in a folder."""
    folder.mkdir(exist_ok=True)
    on_node(cluster, node, "mount", "-t", "tmpfs", "none", folder)
    try:
        yield
    finally:
        on_node(cluster, node, "umount", folder)


def nothing_runs(cluster: Cluster) -> bool:
    return cluster.run("squeue", "-h", "-t", "PD,R,CG,S").stdout.strip() == ""


def test_a_run_directory_unseen_by_a_node(hosts: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with hidden(hosts, "n2", shared):
        done = hosts.aiperf_process(*START, "--run-dir", shared / "run")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert " on n2: its node cannot access the run directory" in said
    assert "name a folder on a shared file system with --run-dir" in said
    assert nothing_runs(hosts)
    status = json.loads(hosts.aiperf("status", shared / "run", "--json").stdout)
    assert status["state"] == "ended"
    assert status["reason"] in said


@pytest.mark.chaos
def test_a_dataset_unseen_by_a_node(hosts: Cluster, tmp_path: Path) -> None:
    data = tmp_path / "data"
    source = write_source(tmp_path / "photographs")
    prepared = hosts.aiperf("data", "prepare", "imagenet", "--from", source, "--to", data)
    assert prepared.returncode == 0, prepared.stderr
    asked = ["--set", "dataset.name=imagenet", "--set", f"dataset.path={data}"]
    asked += ["--set", "engine.name=tensorflow"]
    with hidden(hosts, "n1", data):
        done = hosts.aiperf_process(*START, *asked, "--run-dir", tmp_path / "run")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert f"node n1: dataset 'imagenet': {data} has no dataset.json" in said
    assert nothing_runs(hosts)


@pytest.mark.chaos
def test_a_late_clock_is_reported_and_recorded(hosts: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LATE)
    template = tmp_path / "site.sh"
    text = (ROOT / "deploy" / "slurm_array.sh").read_text()
    path = f"export PYTHONPATH={tmp_path}:$${{PYTHONPATH:-}}"
    template.write_text(text.replace("exec srun", f"{path}\nexec srun"))
    done = hosts.aiperf_process(
        *START, "--hours", 0.005, "--set", f"slurm.template={template}",
        "--run-dir", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "problem: the clock of n" in done.stdout
    history = RunHistory.read(RunPaths(tmp_path / "run"))
    found = [replica.checked for replica in history.replicas.values() if replica.checked]
    ahead = {each.replica: each.clock_ahead_seconds for each in found}
    assert ahead == {"r0": pytest.approx(0.0, abs=0.1), "r1": pytest.approx(-4.0, abs=0.2)}
    (problem,) = (problem for each in found for problem in each.problems)
    assert "(r1) is 4.0 s behind the primary's" in problem
