"""One contract for all clients of SLURM: the same cluster gives the same answers.

The commands' outputs are those of SLURM 22.05.8. No pyslurm fits that SLURM, so its module is a
stand-in with the classes, attributes and values of pyslurm 25.11.2, read from its source.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_hpc.config import SlurmConfig
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.primary.launchers.slurm.backend import slurm_client
from aiperf_hpc.primary.launchers.slurm.client import Answer, SlurmClient
from aiperf_hpc.primary.launchers.slurm.jobs import Element, Nodes
from aiperf_hpc.primary.launchers.slurm.pyslurm_client import PyslurmClient

SINFO = (
    "bench*|up|idle|2|gpu:h100:8|infinite\nbench*|up|drained*|1|gpu:h100:8|infinite\n"
    "short|down|idle|2|gpu:h100:8|5:00\nshort|down|drained*|1|gpu:h100:8|5:00\n"
)
SQUEUE = (
    "17_0   |RUNNING   |None   |n1   |0      |100 |160 \n"
    "17_1   |FAILED   |NonZeroExitCode|n2   |35072 |100 |161 \n"
    "17_2   |FAILED   |JobLaunchFailure   |n1   |4021  |100 |162 \n"
    "17_3   |PENDING   |Resources   |   |0   |100 |N/A \n"
    "17_4   |PENDING   |Resources   |   |0     |100 |N/A \n"
    "17_6   |PENDING   |Resources   |   |0     |100 |N/A \n"
)
NO_CONTACT = "Unable to contact slurm controller (connect failure)"


class RPCError(Exception):
    """pyslurm's."""


def job(number: int, array: int | None, **changed: object) -> SimpleNamespace:
    """A pyslurm.Job, as far as it is looked at."""
    values: dict[str, object] = {
        "id": number, "array_id": array, "array_task_id": None, "array_tasks_waiting": None,
        "name": "aiperf-now", "user_id": os.getuid(), "state": "RUNNING", "state_reason": "None",
        "allocated_nodes": None, "exit_code": 0, "exit_code_signal": 0, "submit_time": 100,
        "start_time": 0,
    }  # fmt: skip
    return SimpleNamespace(**(values | changed))


JOBS = (
    job(9, None, name="another", state="RUNNING"),
    job(10, 10, array_task_id=0, user_id=os.getuid() + 1),
    job(11, 11, array_task_id=0, state="COMPLETED"),
    job(18, 17, array_task_id=0, allocated_nodes="n1", start_time=160),
    job(19, 17, array_task_id=1, state="FAILED", state_reason="NonZeroExitCode",
        allocated_nodes="n2", exit_code=9, start_time=161),
    job(20, 17, array_task_id=2, state="FAILED", state_reason="JobLaunchFailure",
        allocated_nodes="n1", exit_code_signal=53, start_time=162),
    job(17, 17, array_tasks_waiting="3-4,6", state="PENDING", state_reason="Resources"),
)  # fmt: skip


def collection(values: Sequence[object]) -> Any:  # noqa: ANN401 -- as pyslurm
    """A class of pyslurm whose ``load`` gives a mapping."""
    return SimpleNamespace(load=lambda: dict(enumerate(values)))


def fake_module() -> Any:  # noqa: ANN401 -- as pyslurm
    def node(state: str) -> SimpleNamespace:
        return SimpleNamespace(
            state=state, configured_gres={"gpu:h100": 8}, partitions=["bench", "short"]
        )

    def partition(name: str, state: str, default: bool, limit: object) -> SimpleNamespace:
        return SimpleNamespace(name=name, state=state, is_default=default, max_time_limit=limit)

    return SimpleNamespace(
        RPCError=RPCError,
        Jobs=collection(JOBS),
        Nodes=collection([node("IDLE"), node("IDLE"), node("DOWN+DRAIN+NOT_RESPONDING")]),
        Partitions=collection(
            [partition("bench", "UP", True, "UNLIMITED"), partition("short", "DOWN", False, 5)]
        ),
        slurmctld=SimpleNamespace(
            Config=SimpleNamespace(load=lambda: SimpleNamespace(max_array_size=1001))
        ),
    )


def commands(command: Sequence[str], _: Mapping[str, str] | None) -> Answer:
    """SLURM's commands, answering from the same cluster."""
    if command[0] == "squeue":
        out = "17\n" if "--name=aiperf-now" in command else SQUEUE
        return Answer(0, "" if "--name=nobody" in command else out, "")
    answers = {"sinfo": SINFO, "scontrol": "SlurmctldPort = 1\nMaxArraySize            = 1001\n"}
    return Answer(0, answers.get(command[0], ""), "")


@pytest.fixture(params=["commands", "pyslurm"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SlurmClient:
    """Each of the clients."""
    if request.param == "commands":
        return SlurmClient(commands)
    monkeypatch.setitem(sys.modules, "pyslurm", fake_module())
    return PyslurmClient(commands)


def test_partitions(client: SlurmClient) -> None:
    found = sorted(client.partitions(), key=lambda n: (n.partition, n.state != "idle"))
    unlimited = float("inf")
    assert found == [
        Nodes("bench", True, True, "idle", 2, "gpu:h100:8", unlimited),
        Nodes("bench", True, True, "drained*", 1, "gpu:h100:8", unlimited),
        Nodes("short", False, False, "idle", 2, "gpu:h100:8", 5.0),
        Nodes("short", False, False, "drained*", 1, "gpu:h100:8", 5.0),
    ]


def test_elements(client: SlurmClient) -> None:
    assert client.elements("17") == [
        Element(0, "RUNNING", "", "n1", 0, 0, 100.0, 160.0),
        Element(1, "FAILED", "NonZeroExitCode", "n2", 137, 0, 100.0, 161.0),
        Element(2, "FAILED", "JobLaunchFailure", "n1", 0, 53, 100.0, 162.0),
        Element(3, "PENDING", "Resources", submitted_utc=100.0),
        Element(4, "PENDING", "Resources", submitted_utc=100.0),
        Element(6, "PENDING", "Resources", submitted_utc=100.0),
    ]


def test_a_job_is_found_by_its_name(client: SlurmClient) -> None:
    assert client.find("aiperf-now") == "17"
    assert client.find("nobody") is None


def test_the_largest_array(client: SlurmClient) -> None:
    assert client.largest_array() == 1001


@pytest.mark.parametrize(
    ("said", "kind"),
    [(NO_CONTACT, SchedulerSilentError), ("Access/permission denied", SchedulerError)],
)
def test_silence_and_refusal(
    said: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = fake_module()

    def refuse() -> None:
        raise RPCError(said)

    module.Jobs = module.Partitions = SimpleNamespace(load=refuse)
    monkeypatch.setitem(sys.modules, "pyslurm", module)
    clients: list[SlurmClient] = [
        SlurmClient(lambda *_: Answer(1, "", f"slurm_load_jobs error: {said}")),
        PyslurmClient(commands),
    ]
    asked: list[Callable[[SlurmClient], object]] = [
        lambda client: client.elements("17"),
        lambda client: client.partitions(),
    ]
    for one in clients:
        for ask in asked:
            with pytest.raises(SchedulerError, match=said.split("(")[0]) as caught:
                ask(one)
            assert type(caught.value) is kind


def test_the_configured_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(slurm_client(SlurmConfig())) is SlurmClient
    monkeypatch.setitem(sys.modules, "pyslurm", None)
    with pytest.raises(UsageError, match=r"pyslurm cannot be loaded .*set slurm.client=commands"):
        slurm_client(SlurmConfig(client="pyslurm"))
    monkeypatch.setitem(sys.modules, "pyslurm", fake_module())
    assert type(slurm_client(SlurmConfig(client="pyslurm"))) is PyslurmClient


NO_CONFIGURATION = (
    "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "sinfo: error: fetch_config: DNS SRV lookup failed\n"
    "sinfo: error: _establish_config_source: failed to fetch config\n"
    "sinfo: fatal: Could not establish a configuration source\n"
)
NO_MUNGE = (
    "sinfo: error: If munged is up, restart with --num-threads=10\n"
    'sinfo: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"\n'
    "sinfo: error: slurm_send_node_msg: auth_g_create: REQUEST_PARTITION_INFO has authentication "
    "error\nslurm_load_partitions: Protocol authentication error\n"
)
REFUSED = (
    "sbatch: error: Memory specification can not be satisfied\n"
    "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (NO_CONFIGURATION, "sinfo: Could not establish a configuration source"),
        (NO_MUNGE, "sinfo: slurm_load_partitions: Protocol authentication error"),
        (f"slurm_load_partitions: {NO_CONTACT}", f"sinfo: slurm_load_partitions: {NO_CONTACT}"),
    ],
)
def test_silence_is_told_by_its_last_word(said: str, told: str) -> None:
    with pytest.raises(SchedulerSilentError) as caught:
        SlurmClient(lambda *_: Answer(1, "", said)).partitions()
    assert str(caught.value) == told


def test_silence_is_short_and_a_refusal_is_whole() -> None:
    long = f"slurm_load_partitions: {NO_CONTACT} of {'many ' * 100}"
    with pytest.raises(SchedulerSilentError) as caught:
        SlurmClient(lambda *_: Answer(1, "", long)).partitions()
    assert len(str(caught.value)) < 100
    with pytest.raises(SchedulerError) as refused:
        SlurmClient(lambda *_: Answer(1, "", REFUSED)).submit(Path("batch.sh"))
    assert str(refused.value) == (
        "sbatch: Memory specification can not be satisfied; Batch job submission failed: "
        "Requested node configuration is not available"
    )
