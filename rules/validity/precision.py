"""Rules on precision: the number formats of a run, and environment variables that override them.

Sources: oneDNN's developer guide (primitive attributes, fpmath mode); the notes of cuBLAS and
PyTorch on TF32; the variables of TensorFlow and of Intel's extensions; the notes of MIOpen and
rocBLAS on alternative implementations of FP16.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from aiperf_hpc.rules.rule import Findings, Found, Required, first_reasons
from aiperf_hpc.rules.validity.evidence import RunEvidence

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

_ONEDNN: Final = {"bf16": "bf16", "f16": "fp16", "tf32": "tf32", "any": "any"}
_ON: Final = {"1": "fp16", "true": "fp16"}
_OVERRIDES: Final[Mapping[str, Mapping[str, str]]] = {
    "ONEDNN_DEFAULT_FPMATH_MODE": _ONEDNN,
    "DNNL_DEFAULT_FPMATH_MODE": _ONEDNN,
    "TF_SET_ONEDNN_FPMATH_MODE": _ONEDNN,
    "NVIDIA_TF32_OVERRIDE": {"1": "tf32"},
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": {"1": "tf32"},
    "TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32": _ON,
    "TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32": _ON,
    "TF_ENABLE_AUTO_MIXED_PRECISION": _ON,
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": _ON,
    "IPEX_FP32_MATH_MODE": {"tf32": "tf32", "bf32": "bf16"},
    "ITEX_FP32_MATH_MODE": {"tf32": "tf32", "bf32": "bf16"},
    "ITEX_AUTO_MIXED_PRECISION": {"1": "bf16", "true": "bf16"},
    "MIOPEN_DEBUG_CONVOLUTION_ATTRIB_FP16_ALT_IMPL": {"1": "bf16"},
    "ROCBLAS_INTERNAL_FP16_ALT_IMPL": {"1": "bf16"},
}
"""Environment variables that make a library compute in another format than requested, with the
format of each lower-case value."""
_FEW_BITS: Final = re.compile(r"fp?8|f8e|int[48]", re.IGNORECASE)
_CACHED_KERNELS: Final = re.compile(
    "xla_persistent_cache_directory|xla_gpu_kernel_cache_file|xla_gpu_load_autotune_results_from"
    "|xla_gpu_per_fusion_autotune_cache_dir"
)
"""XLA flags that load compiled kernels or autotuning results of earlier runs."""
PRELOADED: Final = "LD_PRELOAD"
"""Environment variable of preloaded libraries. Their effect is unknown, so it is always stated."""
_CLOCKS: Final = ("FAKETIME", "FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC")
"""Prefixes of environment variables that fake a process's clock."""


def override_of(name: str, value: str) -> str | None:
    """Return the number format that a variable forces on a library, or None if it has no effect."""
    if name == "XLA_FLAGS" or name.startswith("NVTE_FP8"):
        eight = bool(_FEW_BITS.search(value if name == "XLA_FLAGS" else name))
        return "fp8" if eight and value not in ("", "0") else None
    return _OVERRIDES.get(name, {}).get(value.strip().lower())


def reads_cached_kernels(name: str, value: str) -> bool:
    """Return whether a variable enables kernels or autotuning results of an earlier run.

    Variables that only set the cache folder do not count: each process of a run sets them itself.
    """
    if name in ("XLA_FLAGS", "TF_XLA_FLAGS"):
        return bool(_CACHED_KERNELS.search(value))
    remote = name.startswith("TORCHINDUCTOR_") and name.endswith("_REMOTE_CACHE")
    return remote and value.strip() not in ("", "0")


def lowering(variables: Mapping[str, str], precision: str) -> Iterator[str]:
    """Yield a message for each variable that lowers the precision, fakes the clock, or loads
    kernels of an earlier run.

    Args:
        variables: environment variables of a process.
        precision: precision stated in the records.
    """
    for name, value in sorted(variables.items()):
        lower = override_of(name, value)
        if lower is not None and BITS[lower] < BITS.get(precision, 0):
            yield f"{name}={value} computes in {lower}, and {precision} is stated; unset it"
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
        (
            description.process.environment
            for replica in run.replicas
            for description in replica.described.values()
        ),
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
        f"{n}={v}" for each in distinct for n, v in each if n == PRELOADED or override_of(n, v)
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
