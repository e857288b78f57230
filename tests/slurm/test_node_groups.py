"""A run on nodes of two kinds, in two partitions of a real cluster: a job and a kind each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.slurm.conftest import FAST, Cluster, Start, phase
from tests.slurm.test_cluster import START

from aiperf_hpc.trial import JobPhase

HOURS = 0.004
GROUPS = "slurm.node_groups=[{partition: bench, nodes: 2}, {partition: short, nodes: 1}]"
ALLOCATION = ["--launcher", "allocation"]
NVML = '''\
"""NVIDIA's library as it answers on a node of one partition, and on others has no driver."""

import os


class NVMLError(Exception):
    pass


NVMLError_NotSupported = NVMLError_InvalidArgument = NVMLError
NVML_NVLINK_MAX_LINKS = 0


def nvmlInit():
    if os.environ.get("SLURM_JOB_PARTITION") != "short":
        raise NVMLError("Driver Not Loaded")


def __getattr__(name):
    answers = {
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "550.54.15",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100",
    }
    return answers.get(name, refused)


def refused(*_):
    raise NVMLError("Not Supported")
'''


@pytest.fixture
def two_kinds(cluster: Cluster, tmp_path: Path) -> Cluster:
    """The cluster, with two accelerators in each node of the partition `short`."""
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(NVML)
    path = [str(tmp_path / "nvml"), os.environ.get("PYTHONPATH", "")]
    return Cluster(cluster.folder, PYTHONPATH=":".join(filter(None, path)))


def test_a_run_on_two_kinds_of_nodes(two_kinds: Cluster, slurm_run: Start) -> None:
    shorter = ["slurm.time_margin_minutes=3", "slurm.signal_seconds=60"]  # As `short` allows.
    settings = [word for each in [GROUPS, *shorter] for word in ("--set", each)]
    run = slurm_run(
        "--nodes", 3, "--hours", HOURS, *ALLOCATION, *settings, config=FAST, on=two_kinds
    )
    assert run.finish() == ""
    assert {phase(run.history, r) for r in run.history.replicas} == {JobPhase.DONE}
    partitions = {
        name: described.process.job and described.process.job.partition
        for name, replica in run.history.replicas.items()
        for described in replica.described.values()
    }
    assert partitions == {"r0": "bench", "r1": "bench", "r2": "short"}
    jobs = [run.history.replicas[name].job for name in ("r0", "r1", "r2")]
    assert jobs[0] == jobs[1] != jobs[2]
    assert two_kinds.programs().count("salloc") == 2
    report = json.loads(run.paths.report_json.read_text("utf-8"))
    kinds = {kind["kind"]: kind for kind in report["kinds"]}
    (cpus,) = set(kinds) - {"2 × NVIDIA H100"}
    assert (kinds[cpus]["nodes"], kinds["2 × NVIDIA H100"]["nodes"]) == (2, 1)
    operations = [kind["operations"] for kind in kinds.values()]
    assert sum(operations) == report["score"]["operations"]
    assert min(operations) > 0
    assert two_kinds.run("squeue", "-h").stdout == ""
    refused = [*START, "--nodes", 3, *ALLOCATION, "--set", GROUPS.replace("short", "long")]
    line = two_kinds.refusal(*refused, "--run-dir", run.paths.root.with_name("refused"))
    assert "slurm.node_groups.1.partition: SLURM has no partition 'long'" in line
