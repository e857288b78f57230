"""Joining ranks, and the memory that gradients cross to be summed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.replica.parallel import contract
from tests.replica.parallel.threads import Table, Threads
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import EngineError
from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.parallel.collectives import CLASSES, load_collective
from aiperf_hpc.replica.parallel.collectives.base import (
    ALIGNED_BYTES,
    ALONE,
    BufferPool,
    aligned,
    on_host,
)
from aiperf_hpc.replica.parallel.collectives.torch_distributed import meeting_point
from aiperf_hpc.replica.tensorflow_import import tf

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "41234",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SLURM, *TORCHRUN):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("mpi", "'.[mpi]'"), ("torch", "'.[torch]'"), ("horovod", "make horovod")],
)
def test_a_collective_that_is_not_installed_says_what_to_do(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'it'", name="it")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(EngineError, match=f"collective '{name}' needs the package 'it'") as caught:
        load_collective(name, 2)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("collective", CLASSES)
def test_every_collective_keeps_the_contract(collective: str) -> None:
    """Of three ranks, by which a mean is not exact as by two."""
    if collective == "horovod":
        pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    script = Path(__file__).with_name("contract.py")
    command = [*rank_starter(3, collective), sys.executable, str(script), collective]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 ranks"


ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
DILATED = """
import aiperf_hpc.replica.parallel.collectives.horovod
from aiperf_hpc.replica.tensorflow_import import tf
kernel = tf.Variable(tf.ones((3, 3, 3, 4)))
@tf.function
def gradient():
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.nn.conv2d(tf.ones((1, 8, 8, 3)), kernel, 1, "SAME", dilations=2))
    return tape.gradient(total, kernel)
assert gradient().shape == kernel.shape
"""


def test_tensorflow_is_what_it_is_elsewhere_where_horovod_is_imported_first() -> None:
    """Without oneDNN, which it takes by itself on some processors alone, there is no such one."""
    pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    environment = {name: value for name, value in os.environ.items() if name != ONEDNN}
    command = [sys.executable, "-c", DILATED]
    subprocess.run(command, check=True, env=environment, timeout=PATIENCE_SECONDS)


def test_one_rank_and_the_threads_of_these_tests_keep_the_contract_too() -> None:
    contract.check(ALONE)
    table = Table(3)
    with ThreadPoolExecutor(3) as pool:
        for rank in [pool.submit(contract.check, Threads(table, rank, 3)) for rank in range(3)]:
            rank.result()


def test_one_rank_needs_no_collective() -> None:
    assert load_collective("mpi", 1) is ALONE
    np.testing.assert_array_equal(ALONE.gather(np.arange(3)), [[0, 1, 2]])


def test_fewer_ranks_than_asked_for_are_one_line() -> None:
    """Started without mpirun or srun, MPI has one rank."""
    script = (
        "from aiperf_hpc.errors import EngineError\n"
        "from aiperf_hpc.replica.parallel.collectives import load_collective\n"
        "try: load_collective('mpi', 4)\n"
        "except EngineError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "joins 1 ranks, the configuration asks for 4" in done.stdout


def test_ranks_of_torch_meet_where_torchrun_or_slurm_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"neither RANK nor SLURM's SLURM_JOB_ID is set"):
        meeting_point()
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert meeting_point() == {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": str(20_000 + 41_234 % 20_000),
    }
    monkeypatch.setenv("MASTER_PORT", "31000")
    assert meeting_point()["MASTER_PORT"] == "31000"
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert meeting_point() == TORCHRUN


def test_tensors_on_the_host_are_reduced_from_where_they_are() -> None:
    array = np.arange(5, dtype=np.float32)
    assert on_host(array) is array
    of_torch = torch.arange(5.0)
    assert on_host(of_torch).ctypes.data == of_torch.data_ptr()
    of_tensorflow = tf.range(5.0)
    (address, _) = on_host(of_tensorflow).__array_interface__["data"]
    assert address == on_host(of_tensorflow).__array_interface__["data"][0]
    np.testing.assert_array_equal(on_host(of_tensorflow), array)


@pytest.mark.parametrize("elements", [1, 15, 16, 1001])
def test_memory_is_aligned(elements: int) -> None:
    for dtype in (np.float32, np.float16):
        array = aligned(elements, dtype)
        assert array.ctypes.data % ALIGNED_BYTES == 0
        assert array.shape == (elements,)
        assert array.dtype == np.dtype(dtype)


def test_the_sums_of_a_step_are_apart_and_those_of_the_next_step_in_the_same_memory() -> None:
    rounds = BufferPool()
    sizes = (7, 7, 20)

    def step(*sizes: int) -> list[int]:
        taken = [rounds.take(np.zeros(size, np.float32)) for size in sizes]
        assert [array.size for array in taken] == list(sizes)
        for _ in taken:
            rounds.release()
        return [array.ctypes.data for array in taken]

    first = step(*sizes)
    assert len(set(first)) == 3
    assert step(*sizes) == first
    assert step(7) == first[:1]
    step(9, 7)  # Another network.
    half = rounds.take(np.zeros(9, np.float16))
    assert half.dtype == np.float16
