"""The variables of a process that change how it computes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aiperf_hpc.host.schedulers import SCHEDULERS

PREFIXES: Final[tuple[str, ...]] = (
    "AIPERF_",
    # Threads and mathematics on the host.
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "ONEDNN_", "DNNL_", "MALLOC_",
    # Accelerators.
    "CUDA_", "NVIDIA_", "CUBLAS_", "CUDNN_", "HIP_", "ROCR_", "ROCM_", "HSA_", "MIOPEN_",
    "ASCEND_", "NPU_", "GPU_", "ROCBLAS_", "HIPBLAS", "ACL_",
    # Frameworks.
    "TF_", "XLA_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "IPEX_", "ITEX_", "NVTE_",
    # Communication.
    "NCCL_", "RCCL_", "HCCL_", "HOROVOD_", "GLOO_", "UCX_", "FI_", "PSM2_", "PSM3_",
    "OMPI_MCA_", "MPICH_", "MV2_", "I_MPI_",
    # Clocks that are made up.
    "FAKETIME", "FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC",
    # The scheduler.
    *(each.prefix for each in SCHEDULERS),
)  # fmt: skip
"""What the names of the recorded variables begin with. No others are recorded."""
NAMES: Final[frozenset[str]] = frozenset({"LD_PRELOAD", "PYTHONHASHSEED"})
"""Recorded ones besides."""
FOREIGN: Final[tuple[str, ...]] = ("TF_VAR_", "TF_CLI_")
"""What the names of Terraform's variables begin with, which are not TensorFlow's."""
KERNEL_CACHES: Final[Mapping[str, str]] = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "PYTORCH_KERNEL_CACHE_PATH": "torch",
    "PYTORCH_TUNABLEOP_FILENAME": "tunableop%d.csv",
    "CUDA_CACHE_PATH": "cuda",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen-kernels",
    "SYCL_CACHE_DIR": "sycl",
    "ASCEND_CACHE_PATH": "ascend",
}
"""Where frameworks and drivers keep what they have compiled and timed, and its name in a folder of
a process's own. Not recorded: each process of a run sets them anew.

Sources: PyTorch (torch/_inductor/runtime/cache_dir_utils.py, aten/src/ATen/cuda/jit_utils.cpp,
aten/src/ATen/cuda/tunable/README.md), Triton (python/triton/knobs.py), CUDA C++ Programming Guide
(environment variables), MIOpen's documentation (kernel and performance databases), oneAPI DPC++
(EnvironmentVariables.md), CANN (ASCEND_CACHE_PATH)."""
SECRET: Final[re.Pattern[str]] = re.compile(
    "TOKEN|KEY|SECRET|PASSW|PASSPHRASE|JWT|CREDENTIAL|COOKIE|://[^/\\s]*@", re.IGNORECASE
)
"""What no recorded name or value contains: words of secrets, and addresses with a user in them."""
MOST = 1000
"""The longest value that is recorded whole."""


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are recorded, by name; long values are cut."""
    return {
        name: value if len(value) <= MOST else f"{value[:MOST]}…"
        for name, value in sorted(environment.items())
        if _matters(name) and not SECRET.search(f"{name}={value}")
    }


def _matters(name: str) -> bool:
    if name in KERNEL_CACHES:
        return False
    return name in NAMES or (name.startswith(PREFIXES) and not name.startswith(FOREIGN))
