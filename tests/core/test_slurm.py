"""What SLURM's variables say, and that no other file reads them."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from aiperf_hpc import slurm

ROOT = Path(__file__).parents[2]
ROOMS = ("src/aiperf_hpc", "primary", "replica", "workloads", "morphism", "ops_counter")


def test_slurms_variables_are_read_in_one_place_alone() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"(?<!process\.)environ.*\bSLURM", path.read_text("utf-8"))
    }
    assert readers == {"src/aiperf_hpc/slurm.py"}


def test_the_batch_script_repeats_no_exit_status() -> None:
    script = (ROOT / "deploy" / "slurm_array.sh").read_text("utf-8")
    assert re.findall(r"exit (\S+)", script) == ["$unseen_run_status", "$unseen_python_status"]


def test_outside_of_slurm_a_node_has_its_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    assert slurm.job_id() is None
    assert slurm.restart_count() == 0
    assert slurm.node_name() == socket.gethostname()


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
    assert (slurm.job_id(), slurm.restart_count(), slurm.node_name()) == ("41234", 2, "n7")
    assert slurm.task() == slurm.SlurmTask(
        job=41234, rank=3, tasks=8, step=0, first_address="10.0.0.7"
    )
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    outside = {name for name in slurm.outside_of_a_job() if name.startswith("SLURM_")}
    assert {"SLURM_CONF"} <= outside <= set(slurm.SITE_VARIABLES)
    monkeypatch.delenv("SLURM_NTASKS")
    with pytest.raises(KeyError, match="SLURM_NTASKS"):
        slurm.task()
