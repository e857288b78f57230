"""How the local launcher starts its replicas."""

from __future__ import annotations

import subprocess
from importlib import util
from pathlib import Path

import pytest
from tests.support.present import present
from tests.support.run_manifest import run_manifest
from tests.support.waiting import until

from aiperf_hpc.config import validate
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.launchers.base import (
    DEAF,
    ENGINE_BYTES,
    STOP_SIGNAL,
    WORKER_BYTES,
    crowding,
    rank_starter,
)
from aiperf_hpc.run.manifest import RunManifest


@pytest.mark.parametrize(("before", "status"), [(DEAF, 0), ((), -STOP_SIGNAL)])
def test_an_early_stop_signal_is_survived(before: tuple[str, ...], status: int) -> None:
    with subprocess.Popen([*before, "cat"], stdin=subprocess.PIPE) as process:
        name = Path(f"/proc/{process.pid}/comm")
        until(lambda: name.read_text("utf-8") == "cat\n")
        process.send_signal(STOP_SIGNAL)
    assert process.returncode == status  # Without a signal it ended with its input.


@pytest.mark.parametrize(
    ("collective", "words"),
    [
        ("mpi", r"needs the package 'mpi4py': .*pip install '.\[mpi\]' in /"),
        ("torch", r"needs the package 'torch': .*pip install '.\[torch\]' in /"),
        ("horovod", "needs the package 'horovod': build it with `make horovod`"),
    ],
)
def test_missing_collectives(collective: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert rank_starter(1, collective) == []
    with pytest.raises(UsageError, match=f"collective '{collective}' {words}"):
        rank_starter(2, collective)


def on_this_machine(replicas: int, **config: object) -> RunManifest:
    chosen = validate({"dataset": {"name": "digits"}, **config}, "test")
    return run_manifest(chosen, nodes=replicas)


ROOM = 24 * 2**30


def test_replicas_with_a_core_each_are_no_crowd() -> None:
    assert crowding(on_this_machine(1), 1, ROOM) is None
    assert crowding(on_this_machine(4), 4, ROOM) is None
    assert crowding(on_this_machine(2, replica={"ranks_per_node": 2}), 4, ROOM) is None


@pytest.mark.parametrize(
    ("replicas", "ranks", "cores", "words"),
    [
        (2, 1, 1, "2 replicas share 1 core: the score is that of an oversubscribed machine"),
        (9, 1, 2, "9 replicas share 2 cores: "),
        (2, 2, 2, "2 replicas of 2 ranks share 2 cores: "),
    ],
)
def test_shared_cores_are_reported(replicas: int, ranks: int, cores: int, words: str) -> None:
    said = crowding(on_this_machine(replicas, replica={"ranks_per_node": ranks}), cores, ROOM)
    assert present(said).startswith(words)


def test_replicas_that_do_not_fit_into_memory_are_refused_with_the_numbers() -> None:
    each = ENGINE_BYTES["tensorflow"] + WORKER_BYTES
    assert crowding(on_this_machine(10), 2, 10 * each) is not None
    with pytest.raises(UsageError, match=r"at least .* GiB of memory here, .* room for 9$"):
        crowding(on_this_machine(10), 2, 10 * each - 1)
    with pytest.raises(UsageError) as refused:
        crowding(on_this_machine(99), 2, ROOM)
    assert str(refused.value) == (
        "--nodes 99: 99 replicas need at least 55.69 GiB of memory here, 24 GiB are free: "
        "room for 42"
    )
    crowding(on_this_machine(99, engine={"name": "simulated"}), 2, ROOM)
