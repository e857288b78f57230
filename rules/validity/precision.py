"""Rules on precision: the number formats of a run, and environment variables that override them.

Sources: oneDNN's developer guide (primitive attributes, fpmath mode); oneMKL's developer reference
(compute modes); the notes of cuBLAS and PyTorch on TF32; Triton's knobs; the variables of
TensorFlow, hipBLASLt and Intel's extensions; the notes of MIOpen and rocBLAS on alternative
implementations of FP16.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Final, NamedTuple

from aiperf_hpc.rules.rule import Findings, Found, Required, first_reasons
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.system.software import LOADERS, MOST_JUDGED, REDACTED, is_judged

BITS: Final[Mapping[str, int]] = {
    "fp32": 32,
    "tf32": 19,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "any": 0,
}
"""Bits of the multiplied numbers by format."""
PRECISIONS: Final = ("fp32", "bf16", "fp16")
"""Official precisions by their names in records: at least 16 bits."""

_ONEDNN: Final = {"bf16": "bf16", "f16": "fp16", "tf32": "tf32"}
_ON: Final = {"1": "fp16", "true": "fp16"}
_EXTENSION: Final = {"fp32": "fp32", "tf32": "tf32", "bf32": "bf16"}
_MKL: Final = {
    "complex_3m": "fp32", "float_to_tf32": "tf32",
    **dict.fromkeys(("float_to_bf16", "float_to_bf16x2", "float_to_bf16x3"), "bf16"),
}  # fmt: skip
_OVERRIDES: Final[Mapping[str, Mapping[str, str]]] = {
    "ONEDNN_DEFAULT_FPMATH_MODE": _ONEDNN,
    "DNNL_DEFAULT_FPMATH_MODE": _ONEDNN,
    "TF_SET_ONEDNN_FPMATH_MODE": _ONEDNN,
    "MKL_BLAS_COMPUTE_MODE": _MKL,
    "NVIDIA_TF32_OVERRIDE": {"1": "tf32"},
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": {"1": "tf32"},
    "TRITON_F32_DEFAULT": {"tf32": "tf32", "tf32x3": "tf32"},
    "HIPBLASLT_OVERRIDE_COMPUTE_TYPE_XF32": {"1": "tf32"},
    "TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32": _ON,
    "TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32": _ON,
    "TF_ENABLE_AUTO_MIXED_PRECISION": _ON,
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": _ON,
    "IPEX_FP32_MATH_MODE": _EXTENSION,
    "ITEX_FP32_MATH_MODE": _EXTENSION,
    "ITEX_AUTO_MIXED_PRECISION": {"1": "bf16", "true": "bf16"},
    "MIOPEN_DEBUG_CONVOLUTION_ATTRIB_FP16_ALT_IMPL": {"1": "bf16"},
    "ROCBLAS_INTERNAL_FP16_ALT_IMPL": {"1": "bf16"},
}
"""Environment variables that make a library compute in another format than requested, with the
format of each lower-case value. Any other value counts as the lowest format."""
_OFF: Final = frozenset({"", "0", "false", "off", "no", "strict", "ieee", "standard"})
"""Values by which these variables leave the format unchanged."""
_FLAGS: Final = ("XLA_FLAGS", "TF_XLA_FLAGS")
"""Variables of several flags."""
_HARMLESS: Final = (
    # Of several libraries.
    "*_VERSION", "*_NUM_THREADS", "*_VERBOSE", "*_LOG_LEVEL", "*_LOG_FILE", "*_LOG_MASK", "*_HOME",
    # Math libraries on the host.
    "MKL_DYNAMIC", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_SERVICE_*",
    "MKL_INTERFACE_LAYER", "MKL_THREADING_LAYER", "MKL_*_MEMORY", "MKL_VERBOSE_*",
    "ONEDNN_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "ONEDNN_JIT_*", "ONEDNN_VERBOSE_*", "DNNL_MAX_CPU_ISA", "DNNL_CPU_ISA_HINTS",
    "DNNL_PRIMITIVE_CACHE_CAPACITY", "DNNL_JIT_*", "DNNL_VERBOSE_*",
    # NVIDIA's containers and libraries.
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_*", "NVIDIA_BUILD_ID",
    "NVIDIA_DISABLE_REQUIRE", "NVIDIA_PRODUCT_NAME", "NVIDIA_GDRCOPY", "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_API_KEY", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_LOG*",
    "CUBLASLT_LOG*", "CUDNN_LOG*", "CUDNN_PATH", "CUDNN_ROOT", "CUDNN_INCLUDE_DIR",
    "CUDNN_LIBRARY*", "NVTE_DEBUG*", "NVTE_FRAMEWORK",
    # AMD's libraries.
    "MIOPEN_FIND_MODE", "MIOPEN_FIND_ENFORCE", "MIOPEN_ENABLE_LOGGING*", "MIOPEN_DISABLE_CACHE",
    "MIOPEN_COMPILE_PARALLEL_LEVEL", "MIOPEN_DEBUG_DISABLE_FIND_DB", "ROCBLAS_LAYER",
    "ROCBLAS_LOG_*", "ROCBLAS_DEVICE_MEMORY_SIZE", "ROCBLAS_USE_HIPBLASLT",
    "ROCBLAS_DEFAULT_ATOMICS_MODE", "HIPBLASLT_ENABLE_MARKER",
    # TensorFlow, and Terraform's variables of the same prefix.
    "TF_CPP_*", "TF_ENABLE_ONEDNN_OPTS", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_FORCE_UNIFIED_MEMORY",
    "TF_GPU_*", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_USE_LEGACY_KERAS",
    "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "TF_CUDNN_USE_AUTOTUNE", "TF_CONFIG",
    "TF_CUDNN_USE_FRONTEND", "TF_USE_CUDNN_BATCHNORM_*", "TF_ENABLE_WINOGRAD_NONFUSED",
    "TF_AUTOTUNE_THRESHOLD", "TF_ADJUST_*_FUSED",
    "TF_PER_DEVICE_MEMORY_LIMIT_MB", "TF_DISABLE_MKL", "TF_LOG*", "TF_WORKSPACE",
    "TF_DATA_DIR", "TF_INPUT", "TF_IN_AUTOMATION", "TF_PLUGIN_CACHE_DIR",
    "ITEX_CPP_MIN_LOG_LEVEL", "ITEX_TILE_AS_DEVICE", "ITEX_LAYOUT_OPT", "XLA_PYTHON_CLIENT_*",
    # PyTorch.
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NVML_BASED_CUDA_CHECK", "PYTORCH_ROCM_ARCH",
    "PYTORCH_TUNABLEOP_*", "PYTORCH_BUILD_*", "TORCH_NCCL_*", "TORCH_GLOO_*", "TORCH_FR_*",
    "TORCH_CUDA_ARCH_LIST", "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS*", "TORCH_TRACE",
    "TORCH_SHOW_CPP_STACKTRACES", "TORCH_EXTENSIONS_DIR", "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_CUDNN_V8_API_*", "TORCH_BLAS_PREFER_*", "TORCH_COMPILE_DEBUG", "TORCHINDUCTOR_*CACHE",
    "TORCHINDUCTOR_*AUTOTUNE*", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_UNIQUE_KERNEL_*",
    "TORCHINDUCTOR_COORDINATE_DESCENT_*", "TRITON_*_PATH", "TRITON_PRINT_AUTOTUNING",
    "TRITON_DEBUG", "IPEX_TILE_AS_DEVICE",
)  # fmt: skip
"""Names of variables that leave the number format unchanged. Any other variable of a library that
computes may not be set: it may belong to a later version."""
_FEW_BITS: Final = re.compile(r"fp?8|f8e|int[48]", re.IGNORECASE)
_CACHED_KERNELS: Final = re.compile(
    "xla_persistent_cache_directory|xla_gpu_kernel_cache_file|xla_gpu_load_autotune_results_from"
    "|xla_gpu_per_fusion_autotune_cache_dir"
)
"""XLA flags that load compiled kernels or autotuning results of earlier runs."""
STATED: Final = ("LD_AUDIT", "LD_PRELOAD", "PYTHONPATH")
"""Environment variables that replace code. Their effect is unknown, so they are always stated."""
_CLOCKS: Final = ("FAKETIME", "FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC")
"""Prefixes of environment variables that fake a process's clock."""


def override_of(name: str, value: str) -> str | None:
    """Return the number format that a variable forces on a library, or None if it has no effect."""
    if name in _FLAGS:
        return "fp8" if _FEW_BITS.search(value) else None
    formats = _OVERRIDES.get(name)
    if formats is None:
        return None
    values = {each for each in re.split(r"[,;\s]+", value.lower()) if each not in _OFF}
    return min((formats.get(each, "any") for each in values), key=BITS.__getitem__, default=None)


def reads_cached_kernels(name: str, value: str) -> bool:
    """Return whether a variable enables kernels or autotuning results of an earlier run.

    Variables that only set the cache folder do not count: each process of a run sets them itself.
    """
    if name in _FLAGS:
        return bool(_CACHED_KERNELS.search(value))
    remote = name.startswith("TORCHINDUCTOR_") and name.endswith("_REMOTE_CACHE")
    return remote and value.strip() not in ("", "0")


@cache
def is_harmless(name: str) -> bool:
    """Return whether any value of a judged variable leaves the number format unchanged."""
    return any(fnmatchcase(name, pattern) for pattern in _HARMLESS)


def _is_unknown(name: str) -> bool:
    known = name in (*_OVERRIDES, *_FLAGS, *LOADERS) or is_harmless(name)
    return is_judged(name) and not known


def lowering(variables: Mapping[str, str], precision: str) -> Iterator[str]:
    """Yield a message for each variable that may lower the precision, fakes the clock, or loads
    kernels of an earlier run.

    Args:
        variables: environment variables of a process.
        precision: precision stated in the records.
    """
    for name, value in sorted(variables.items()):
        lower = override_of(name, value)
        if is_judged(name) and not is_harmless(name):
            if value == REDACTED or len(value) > MOST_JUDGED:
                yield f"{name} was not recorded completely and cannot be judged; unset it"
            elif _is_unknown(name):
                yield f"{name} is not known to leave the precision unchanged; unset it"
            elif lower is not None and BITS[lower] < BITS.get(precision, 0):
                yield f"{name}={value} computes in {lower}, but {precision} is recorded; unset it"
        if name.startswith(_CLOCKS):
            yield f"{name} sets a fake clock; unset it"
        if reads_cached_kernels(name, value):
            yield f"{name}={value} uses kernels of an earlier run; unset it"


class Environment(NamedTuple):
    """The environment variables of a run's processes."""

    variables: Iterable[Mapping[str, str]]
    """Environment variables of each process."""
    precision: str
    """Precision stated in the records."""
    missing: Iterable[str] = ()
    """Reasons why some variables are unknown."""


class Precisions(NamedTuple):
    """The number formats in which a run computed."""

    stated: Iterable[str]
    """The precisions that trials recorded."""
    products: Mapping[str, str] = {}
    """Number formats of frameworks' fp32 products, by library."""


def environment_of(run: RunEvidence) -> Environment:
    """Return the environment variables of a run's processes."""
    stated = {trial.started.hyperparameters.precision for trial in run.trials}
    silent = (
        f"{each.id} did not record its variables"
        for each in run.replicas
        if each.started is not None and not each.described
    )
    return Environment(
        (each for replica in run.replicas for each in replica.environments),
        stated.pop() if len(stated) == 1 else run.config.training.precision,
        first_reasons(silent),
    )


def precisions_of(run: RunEvidence) -> Precisions:
    """Return the number formats in which a run computed."""
    stated = {trial.started.hyperparameters.precision for trial in run.trials}
    products: dict[str, set[str]] = {}
    for replica in run.replicas if "fp32" in stated else ():
        for description in replica.described.values():
            for library, numbers in description.process.arithmetic.items():
                products.setdefault(library, set()).add(numbers)
    return Precisions(
        stated, {library: " and ".join(sorted(each)) for library, each in products.items()}
    )


def environment(run: Environment) -> Findings:
    """No variable lowers the precision, sets the clock or reads kernels of an earlier run."""
    distinct = {tuple(sorted(each.items())) for each in run.variables}
    overrides = {
        f"{n}={v}"
        for each in distinct
        for n, v in each
        if n in STATED or override_of(n, v) or _is_unknown(n)
    }
    yield Found(", ".join(sorted(overrides)) or "no override")
    yield Required(f"nothing below {run.precision}")
    yield from run.missing
    yield from dict.fromkeys(
        line for each in sorted(distinct) for line in lowering(dict(each), run.precision)
    )


def precision(run: Precisions) -> Findings:
    """All computation uses at least 16 bits."""
    stated = sorted(set(run.stated))
    products = sorted(f"{name} {numbers}" for name, numbers in run.products.items())
    yield Found("; ".join([", ".join(stated) or "none", *products]))
    yield from (f"{each}; at least FP16 is required" for each in stated if each not in PRECISIONS)
