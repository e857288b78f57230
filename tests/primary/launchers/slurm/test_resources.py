"""Requested resources, their check against the cluster, and the choice of the launcher."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.primary.launchers.slurm.fake_slurm import SILENCE, ArrayCluster

from aiperf_hpc.config import RunConfig, SlurmConfig
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.primary.launchers.backend import Request, choose_launcher
from aiperf_hpc.primary.launchers.slurm import backend
from aiperf_hpc.primary.launchers.slurm.backend import SlurmBackend
from aiperf_hpc.primary.launchers.slurm.client import Answer, RateLimit, SlurmClient, run_command
from aiperf_hpc.primary.launchers.slurm.jobs import Nodes, limit_minutes
from aiperf_hpc.primary.launchers.slurm.resources import check_cluster, offers

INFINITY = float("inf")
BENCH = Nodes("bench", True, True, "idle", 3, "gpu:h100:8(S:0-1)", INFINITY)


@pytest.fixture
def cluster() -> ArrayCluster:
    return ArrayCluster()


@pytest.mark.parametrize(
    ("asked", "nodes", "found", "said"),
    [
        ({"partition": "nope"}, 1, [BENCH], "no partition 'nope', but bench"),
        ({}, 1, [], "no default partition; set slurm.partition, of: none"),
        ({}, 4, [BENCH], "--nodes 4: partition 'bench' has 3 nodes that can be used, of 3"),
        ({"gres": "gpu:16"}, 1, [BENCH], "slurm.gres gpu:16: 0 nodes of partition 'bench' offer"),
        ({"gres": "gpu:a100:8"}, 1, [BENCH], "its nodes offer: gpu:h100:8"),
    ],
)
def test_missing_resources(
    asked: dict[str, Any], nodes: int, found: list[Nodes], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_cluster(SlurmConfig(**asked), nodes, 1.0, found)
    assert said in str(caught.value)


def test_elements_that_may_share_a_node_have_room_by_its_accelerators() -> None:
    found = [replace(BENCH, count=2, gres="gpu:h100:8"), replace(BENCH, count=1, gres="gpu:h100:4")]
    for gres, most, said in (
        ("gpu:1", 20, "room for 20 replicas on nodes that can be used, of 3"),
        ("gpu:h100:3", 5, "room for 5 replicas"),
        ("gpu:8", 2, "2 nodes of partition 'bench' offer it"),
    ):
        shared = SlurmConfig(gres=gres, exclusive=False)
        check_cluster(shared, most, 1.0, found)
        with pytest.raises(UsageError, match=said):
            check_cluster(shared, most + 1, 1.0, found)
    for alone in (
        SlurmConfig(gres="gpu:1"),
        SlurmConfig(gres="gpu:1", exclusive=False, mode="allocation"),
        SlurmConfig(exclusive=False),
    ):
        with pytest.raises(UsageError, match="--nodes 4: partition 'bench' has 3 nodes"):
            check_cluster(alone, 4, 1.0, found)


def test_nodes_that_run_nothing_do_not_count() -> None:
    found = [
        Nodes("bench", True, True, state, 1, "", 90.0)
        for state in ("idle", "allocated", "mixed-", "idle~", "down*", "idle*", "drained", "inval")
    ]
    check_cluster(SlurmConfig(), 4, 1.0, found)
    with pytest.raises(UsageError, match="has 4 nodes that can be used, of 8"):
        check_cluster(SlurmConfig(), 5, 1.0, found)
    with pytest.raises(UsageError, match=r"is 100 minutes; partition 'bench' allows 90"):
        check_cluster(SlurmConfig(), 4, 1.5, found)
    down = [Nodes("bench", True, False, "idle", 9, "", INFINITY)]
    with pytest.raises(UsageError, match="'bench' is not up"):
        check_cluster(SlurmConfig(), 4, 1.0, down)


@pytest.mark.parametrize(
    ("gres", "asked", "fits"),
    [
        ("gpu:h100:8(S:0-1)", "gpu:8", True),
        ("gpu:h100:8(S:0,1),nvme:2", "gpu:h100:8,nvme", True),
        ("gpu:a:4,gpu:b:4", "gpu:8", True),
        ("gpu:a:4,gpu:b:4", "gpu:a:8", False),
        ("gpu:8", "gpu:h100:8", False),
        ("", "gpu", False),
        ("bandwidth:2K", "bandwidth:2048", True),
    ],
)
def test_accelerators_are_compared(gres: str, asked: str, fits: bool) -> None:
    assert offers(gres, asked) is fits


def test_time_limits_are_read() -> None:
    read = {text: limit_minutes(text) for text in ("infinite", "1-06:30", "30:00", "1:30:00")}
    assert read == {"infinite": INFINITY, "1-06:30": 1830, "30:00": 30, "1:30:00": 90}


def choose(asked: str, cluster: ArrayCluster) -> str:
    config = RunConfig.model_validate({"dataset": {"name": "synthetic"}})
    with pytest.MonkeyPatch.context() as patch:
        slurm = SlurmBackend(SlurmClient(cluster), RateLimit(cluster))
        patch.setattr(backend, "BACKEND", slurm)
        return choose_launcher(Request(asked, config, 3, 3, 1.0)).launcher


def test_auto_is_slurm_where_its_client_is(
    cluster: ArrayCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers["sinfo"] = [Answer(0, "bench*|up|idle|3|(null)|infinite\n", "")]
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/sbatch")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert choose("auto", cluster) == "array"
    why = "SLURM responds, and this process is in none of its jobs"
    assert capsys.readouterr().err == f"aiperf: --launcher auto: array: {why}\n"
    assert choose("slurm", cluster) == "array"
    assert choose("local", cluster) == "local"
    cluster.answers["sinfo"] = [SILENCE]
    with pytest.raises(UsageError, match="--launcher slurm: SLURM does not respond"):
        choose("slurm", cluster)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert choose("auto", cluster) == "local"
    with pytest.raises(UsageError, match="there is no sbatch on the PATH"):
        choose("slurm", cluster)


@pytest.mark.parametrize("cores", [3, 2])
def test_auto_is_local_where_slurm_does_not_answer_unless_that_cannot_be_meant(
    cluster: ArrayCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cores: int,
) -> None:
    cluster.answers["sinfo"] = [SILENCE]
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/sbatch")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    if cores >= 3:
        assert choose("auto", cluster) == "local"
        assert "on this machine, because SLURM does not respond" in capsys.readouterr().err
    else:
        with pytest.raises(UsageError, match="or use --launcher local"):
            choose("auto", cluster)


def test_commands_are_really_run() -> None:
    done = run_command([sys.executable, "-c", "import sys; print('a'); sys.exit(3)"], None)
    assert (done.status, done.out) == (3, "a\n")
    with pytest.raises(SchedulerSilentError, match="no-such-program is not on the PATH"):
        run_command(["no-such-program"], None)


def test_an_error_without_words_is_still_an_error(cluster: ArrayCluster) -> None:
    cluster.answers["sinfo"] = [Answer(3, "", "")]
    with pytest.raises(SchedulerError, match="sinfo: exit status 3 without a message"):
        SlurmClient(cluster).partitions()
