"""The description of a process: variables without secrets, its job, its libraries."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tests.system.trees import write

from aiperf_hpc.system.node import describe_node, describe_process, describe_rank, job_of
from aiperf_hpc.system.software import MOST, installed, loaded, recorded_variables


def test_only_variables_that_affect_computation_are_recorded() -> None:
    expected = {
        "CUDA_VISIBLE_DEVICES": "0,1", "LD_PRELOAD": "libjemalloc.so", "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "8", "OMP_WAIT_POLICY": "PASSIVE", "SLURM_JOB_ID": "7",
    }  # fmt: skip
    others = {"HOME": "/home/me", "PATH": "/bin", "MY_NCCL_DEBUG": "x"}
    found = recorded_variables(others | dict(reversed(expected.items())))
    assert list(found.items()) == list(expected.items())


def test_secrets_are_never_recorded_and_long_values_are_truncated() -> None:
    secrets = {
        "SLURM_JWT": "eyJhbGciOi", "NCCL_TOKEN": "x", "HOROVOD_SECRET_KEY": "x",
        "OMPI_MCA_password": "x", "TF_VAR_admin": "x", "CUDA_CACHE_PATH": "/tmp/secret-things",
        "AIPERF_PROXY": "http://me:hunter2@proxy:3128",
    }  # fmt: skip
    found = recorded_variables({**secrets, "SLURM_NODELIST": "n" * 5000})
    assert found == {"SLURM_NODELIST": f"{'n' * MOST}…"}


def test_what_the_rules_judge_is_recorded_in_any_case() -> None:
    given = {
        "LD_LIBRARY_PATH": "/opt/keys", "LD_PRELOAD": "/opt/keylib.so",
        "NVIDIA_API_KEY": "hunter2", "PYTHONPATH": "/mine", "TRITON_F32_DEFAULT": "tf32",
        "XLA_FLAGS": "x" * 5000,
    }  # fmt: skip
    assert recorded_variables(given) == given | {"NVIDIA_API_KEY": "(redacted)"}


def test_the_job_of_slurm() -> None:
    job = job_of({
        "SLURM_JOB_ID": "4711", "SLURM_JOB_PARTITION": "booster", "SLURM_JOB_NUM_NODES": "16",
        "SLURM_JOB_NODELIST": "jwb[0001-0016]", "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CLUSTER_NAME": "juwels",
    })  # fmt: skip
    assert job is not None
    assert (job.id, job.partition, job.nodes) == ("4711", "booster", "jwb[0001-0016]")
    assert (job.node_count, job.gpus, job.cluster) == (16, "4", "juwels")
    assert job_of({"SLURM_CONF": "/etc/slurm.conf"}) is None


def test_the_libraries_of_pytorch() -> None:
    found = loaded({"torch": torch})
    assert found["PyTorch"] == torch.__version__
    assert found["oneDNN"] in torch.__config__.show()
    assert found.get("CUDA runtime") == torch.version.cuda


def module_of(**values: object) -> ModuleType:
    module = ModuleType("framework")
    module.__dict__.update(values)
    return module


TORCH = module_of(
    __version__="2.5.1+cu124",
    version=SimpleNamespace(cuda="12.4", hip=None),
    __config__=SimpleNamespace(show=lambda: "  - Intel(R) MKL-DNN v3.5.3 (Git Hash 66f0cb9)"),
    backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 90100)),
    cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 21, 5))),
)
BUILD = {"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": True}
TENSORFLOW = module_of(
    __version__="2.18.1", sysconfig=SimpleNamespace(get_build_info=lambda: BUILD)
)


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({}, {}),
        ({"torch": TORCH}, {"PyTorch": "2.5.1+cu124", "CUDA runtime": "12.4", "oneDNN": "3.5.3",
                            "cuDNN": "9.1.0", "NCCL": "2.21.5"}),
        ({"tensorflow": TENSORFLOW}, {"TensorFlow": "2.18.1", "CUDA runtime": "12.5.1",
                                      "cuDNN": "9"}),
    ],
)  # fmt: skip
def test_the_libraries_of_frameworks_with_cuda(
    modules: dict[str, ModuleType], found: dict[str, str]
) -> None:
    assert loaded(modules) == found


def test_a_framework_with_another_interface_is_recorded_as_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    found = describe_process({})
    assert found.libraries == {}
    assert "__version__" in found.absent["libraries"]


def test_installed_software(tmp_path: Path) -> None:
    write(tmp_path, {
        "usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}',
        "opt/rocm/.info/version": "6.2.0-66",
        "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info":
            "package_name=Ascend-cann-toolkit\nversion=8.0.RC2\ninnerversion=V100R001C18SPC001B251",
    })  # fmt: skip
    versions, absent = installed(tmp_path, {})
    assert versions == {"CUDA": "12.4.1", "ROCm": "6.2.0-66", "CANN": "8.0.RC2"}
    assert absent.keys() == {"CUDA driver"}
    write(tmp_path, {"modules/cuda/version.json": "damaged"})
    named = {"CUDA_HOME": str(tmp_path / "modules/cuda")}
    assert "Expecting value" in installed(tmp_path, named)[1]["CUDA"]


def test_an_empty_machine_is_described_without_failure(tmp_path: Path) -> None:
    found = describe_node({"run": tmp_path}, tmp_path)
    assert (found.processors, found.memory) == (None, None)
    assert found.operating_system is not None
    parts = {"processors", "memory", "file_systems", "pci_accelerators"}
    assert parts <= found.absent.keys()
    assert all(found.absent.values())


def test_a_description_is_equal_after_its_record(tmp_path: Path) -> None:
    found = describe_rank({"run": tmp_path})
    assert type(found).model_validate_json(found.model_dump_json()) == found
    assert set(found.process.cores) == os.sched_getaffinity(0)
    assert found.node is not None
    assert found.node.processors is not None
    assert describe_rank({}, with_node=False).node is None
