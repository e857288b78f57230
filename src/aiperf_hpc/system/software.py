"""Versions of the software that accelerators need, and variables that affect computation."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.system.accelerators import nvidia
from aiperf_hpc.system.tools import ROOT, AbsentError, Probe, text_of

_CANN = re.compile(r"^version=(.+)$", re.MULTILINE)


def installed(
    root: Path = ROOT, environment: Mapping[str, str] = os.environ
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions of installed software by name, and the reasons for missing ones."""
    probe = Probe(OSError, ValueError, LookupError)
    told = {
        "CUDA driver": probe.read("CUDA driver", nvidia.cuda_version),
        "CUDA": probe.read("CUDA", lambda: _cuda(root, environment)),
        "ROCm": probe.read("ROCm", lambda: _rocm(root, environment)),
        "CANN": probe.read("CANN", lambda: _cann(root, environment)),
    }
    return {name: version for name, version in told.items() if version}, probe.absent


def _cuda(root: Path, environment: Mapping[str, str]) -> str:
    home = _home(root, environment, ("CUDA_HOME", "CUDA_PATH"), "usr/local/cuda")
    return str(json.loads(text_of(home / "version.json"))["cuda"]["version"])


def _rocm(root: Path, environment: Mapping[str, str]) -> str:
    return text_of(_home(root, environment, ("ROCM_PATH",), "opt/rocm") / ".info/version")


def _cann(root: Path, environment: Mapping[str, str]) -> str:
    names = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
    home = _home(root, environment, names, "usr/local/Ascend/ascend-toolkit/latest")
    for file in sorted(home.glob("*/ascend_toolkit_install.info")):
        if said := _CANN.search(text_of(file)):
            return said[1].strip()
    raise AbsentError(f"{home} does not state its version")


def _home(root: Path, environment: Mapping[str, str], names: tuple[str, ...], usual: str) -> Path:
    """Return an installation folder, from environment variables or else the default location."""
    named = (environment[name] for name in names if environment.get(name))
    home = Path(next(named, str(root / usual)))
    if not home.is_dir():
        raise AbsentError(f"nothing is installed in {home}")
    return home


def loaded(modules: Mapping[str, ModuleType] = sys.modules) -> dict[str, str]:
    """Return the versions of libraries as reported by frameworks and MPI.

    Only modules that this process already imported are queried.
    """
    found: dict[str, str] = {}
    for name, report in _REPORTS.items():
        if (module := modules.get(name)) is not None:
            found |= {key: said for key, said in report(module).items() if said}
    return found


def arithmetic(modules: Mapping[str, ModuleType] = sys.modules) -> dict[str, str]:
    """Return the arithmetic of fp32 matrix products in the loaded frameworks."""
    found = {}
    if (torch := modules.get("torch")) is not None:
        found["PyTorch"] = _PRODUCTS[torch.get_float32_matmul_precision()]
        if torch.version.cuda:
            found["cuDNN"] = "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"
    if (tensorflow := modules.get("tensorflow")) is not None:
        allowed = tensorflow.config.experimental.tensor_float_32_execution_enabled()
        found["TensorFlow"] = "tf32" if allowed else "fp32"
    return found


_PRODUCTS = {"highest": "fp32", "high": "tf32", "medium": "bf16"}
"""Arithmetic allowed by PyTorch's precision settings."""


def _torch(torch: ModuleType) -> dict[str, str]:
    said = {
        "PyTorch": torch.__version__,
        "CUDA runtime": torch.version.cuda,
        "HIP": torch.version.hip,
        "oneDNN": _one_dnn(torch.__config__.show()),
    }
    if torch.version.cuda:
        said["cuDNN"] = _cudnn(torch.backends.cudnn.version())
        said["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    elif torch.version.hip:
        said["MIOpen"] = _cudnn(torch.backends.cudnn.version())
        said["RCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {name: str(version) for name, version in said.items() if version}


def _one_dnn(configuration: str) -> str | None:
    found = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", configuration)
    return found[1] if found else None


def _cudnn(number: int | None) -> str | None:
    """Return a version such as 9.1.0 from 90100, or 8.9.2 from 8902 (the encoding before 9)."""
    if number is None:
        return None
    if number < 10_000:
        return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"


def _tensorflow(tensorflow: ModuleType) -> dict[str, str]:
    build = tensorflow.sysconfig.get_build_info()
    return {
        "TensorFlow": str(tensorflow.__version__),
        "CUDA runtime": str(build.get("cuda_version", "")),
        "cuDNN": str(build.get("cudnn_version", "")),
    }


def _mpi(package: ModuleType) -> dict[str, str]:
    return {"MPI": str(package.Get_library_version()).split(",")[0].strip().strip("\0")}


_REPORTS: dict[str, Callable[[ModuleType], dict[str, str]]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "torch_npu": lambda package: {"torch_npu": str(package.__version__)},
    "horovod": lambda package: {"Horovod": str(package.__version__)},
    "mpi4py.MPI": _mpi,
}


LIBRARIES: Final[tuple[str, ...]] = (
    "MKL_", "ONEDNN_", "DNNL_", "NVIDIA_", "CUBLAS", "CUDNN_", "MIOPEN_", "ROCBLAS_", "HIPBLAS",
    "TF_", "XLA_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "IPEX_", "ITEX_", "NVTE_",
)  # fmt: skip
"""Prefixes of variables that may change the number format in which a library computes."""
PREFIXES: Final[tuple[str, ...]] = (
    *LIBRARIES,
    "AIPERF_",
    # Threads and math libraries on the host.
    "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "BLIS_", "MALLOC_",
    # Accelerators.
    "CUDA_", "HIP_", "ROCR_", "ROCM_", "HSA_", "ASCEND_", "NPU_", "GPU_", "ACL_",
    # Communication.
    "NCCL_", "RCCL_", "HCCL_", "HOROVOD_", "GLOO_", "UCX_", "FI_", "PSM2_", "PSM3_",
    "OMPI_MCA_", "MPICH_", "MV2_", "I_MPI_",
    # Faked clocks.
    "FAKETIME", "FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC",
    # The scheduler.
    *(each.prefix for each in SCHEDULERS),
)  # fmt: skip
"""Prefixes of recorded variables. Others are not recorded, except ``NAMES``."""
LOADERS: Final = ("LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
"""Variables that can replace the code of a process."""
NAMES: Final[frozenset[str]] = frozenset({*LOADERS, "PYTHONHASHSEED"})
"""Further recorded variables."""
FOREIGN: Final[tuple[str, ...]] = ("TF_VAR_", "TF_CLI_", "TF_TOKEN_", "TF_CLOUD_", "TF_REGISTRY_")
"""Prefixes of Terraform's variables, which are not TensorFlow's."""
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
"""Variables for the caches of compiled and tuned kernels of frameworks and drivers, with the name
of each cache in a process's private folder. Not recorded, because each process sets them anew.

Sources: PyTorch (torch/_inductor/runtime/cache_dir_utils.py, aten/src/ATen/cuda/jit_utils.cpp,
aten/src/ATen/cuda/tunable/README.md), Triton (python/triton/knobs.py), CUDA C++ Programming Guide
(environment variables), MIOpen's documentation (kernel and performance databases), oneAPI DPC++
(EnvironmentVariables.md), CANN (ASCEND_CACHE_PATH)."""
CREDENTIALS: Final[re.Pattern[str]] = re.compile(r"://[^/\s]*@")
"""Pattern of URLs with a user or password."""
SECRET: Final[re.Pattern[str]] = re.compile(
    f"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|JWT|CREDENTIAL|COOKIE|{CREDENTIALS.pattern}", re.IGNORECASE
)
"""Patterns of secrets and of URLs with credentials."""
REDACTED: Final = "(redacted)"
"""Recorded value of a judged variable with a secret."""
MOST: Final = 1000
"""Maximum length of a recorded value in characters; longer ones are truncated."""
MOST_JUDGED: Final = 20_000
"""Maximum length of the value of a judged variable."""


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to record, by name; long values are truncated.

    Variables with potential secrets are left out. Those that the divisions' rules judge are always
    recorded: redacted if the name is that of a secret or the value has credentials.
    """
    found = {}
    for name, value in sorted(environment.items()):
        if not _matters(name):
            continue
        judged = is_judged(name)
        if judged and (SECRET.search(name) or CREDENTIALS.search(value)):
            found[name] = REDACTED
        elif judged or not SECRET.search(f"{name}={value}"):
            most = MOST_JUDGED if judged else MOST
            found[name] = value if len(value) <= most else f"{value[:most]}…"
    return found


def is_judged(name: str) -> bool:
    """Return whether the divisions' rules judge a variable."""
    return name in LOADERS or name.startswith(LIBRARIES)


def _matters(name: str) -> bool:
    if name in KERNEL_CACHES:
        return False
    return name in NAMES or (name.startswith(PREFIXES) and not name.startswith(FOREIGN))
