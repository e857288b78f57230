"""Collectives, and the buffers of their reductions."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.replica.parallel import contract
from tests.replica.parallel.threads import Table, Threads, run_on_ranks
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.parallel.collectives import (
    ALIGNED_BYTES,
    ALONE,
    CLASSES,
    BufferPool,
    aligned,
    load_collective,
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
def test_a_collective_that_is_not_installed_has_a_remedy(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'it'", name="it")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(EngineError, match=f"collective '{name}' needs the package 'it'") as caught:
        load_collective(name, 2)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("collective", CLASSES)
def test_every_collective_satisfies_the_contract(collective: str) -> None:
    """With three ranks, whose mean is not exact as that of two is."""
    assert run_on_ranks("contract.py", 3, collective) == "3 ranks"


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


def test_tensorflow_uses_onednn_also_if_horovod_is_imported_first() -> None:
    """Without oneDNN, TensorFlow has no gradient of a dilated convolution."""
    pytest.importorskip("horovod", reason="Horovod has no wheels: make horovod builds it")
    environment = {name: value for name, value in os.environ.items() if name != ONEDNN}
    command = [sys.executable, "-c", DILATED]
    subprocess.run(command, check=True, env=environment, timeout=PATIENCE_SECONDS)


def test_one_rank_and_ranks_in_threads_satisfy_the_contract() -> None:
    contract.check(ALONE)
    table = Table(3)
    with ThreadPoolExecutor(3) as pool:
        for rank in [pool.submit(contract.check, Threads(table, rank, 3)) for rank in range(3)]:
            rank.result()


def test_the_number_of_ranks_is_that_of_the_configuration() -> None:
    """MPI has one rank if it is started without mpirun or srun."""
    assert load_collective("mpi", 1) is ALONE
    load = "from aiperf_hpc.replica.parallel.collectives import load_collective as load"
    command = [sys.executable, "-c", f"{load}; load('mpi', 4)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert "EngineError: collective 'mpi' joins 1 ranks, the configuration requests 4" in last


def test_the_rendezvous_of_torch_is_that_of_torchrun_or_slurm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_tensors_on_the_host_are_not_copied() -> None:
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


def test_the_sums_of_a_step_are_separate_and_the_next_step_reuses_their_memory() -> None:
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
