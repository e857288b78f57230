"""Interface to the frameworks' profilers, and categories of kernels by name.

The operators of each framework are in the ``profiler.py`` of its engine.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast

from aiperf_hpc.errors import EngineError
from aiperf_hpc.extras import ENGINES
from aiperf_hpc.run.replica_requests import KernelCategory, KernelTime

Rules = Sequence[tuple[KernelCategory, str]]
"""Categories with their regular expressions; the first match of a name applies."""

DEVICE_RULES: Rules = (
    (KernelCategory.COMMUNICATION, r"nccl|rccl|AllReduce|ncclDevKernel"),
    (KernelCategory.MEMORY_COPY, r"(?i)^mem(cpy|set)|copy_kernel|direct_copy|^CopyDevice"),
    (
        KernelCategory.NORMALIZATION,
        r"batch_?norm|(^|[^a-z])bn_|layer_?norm|BatchNorm|bnorm|welford",
    ),
    (KernelCategory.POOLING, r"pool"),
    (
        KernelCategory.CONVOLUTION,
        r"conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit_gemm|igemm|cudnn.*_(fwd|bwd)|miopen.*conv|"
        r"Im2d|cf_cn|depthwise",
    ),
    (KernelCategory.GEMM, r"gemm|gemv|Cijk_|cutlass.*(mm|tensorop)|splitK|xmma|(^|[^a-z])dot_"),
    (
        KernelCategory.DATA_ARRANGEMENT,
        r"nchwTo|nhwcTo|convertTensor|transpose|permute|CatArray|concat|(^|[^a-z])pad|gather|"
        r"scatter|reorder|im2col|col2im|index(_select|ing)?_|slice|Swap.*Dimension",
    ),
    (KernelCategory.RELU, r"relu|threshold|clamp_(min|scalar)"),
    (KernelCategory.REDUCTION, r"softmax|reduce|nll_loss|cross_?entropy|ArgMax|triton_(per|red)"),
    (
        KernelCategory.ELEMENT_WISE,
        r"element_?wise|multi_tensor_apply|foreach|Eigen.*EigenMetaKernel|FillFunctor|"
        r"BinaryFunctor|CUDAFunctor|op_tensor|OpTensor|dropout|distribution|triton_poi|"
        r"Apply\w*Kernel|(Add|Mul|Sub|Cast|Sqrt)_GPU",
    ),
)
"""Rules for kernels of cuDNN, cuBLAS, CUTLASS, MIOpen, NCCL, PyTorch, TensorFlow and Triton."""


class Recording(NamedTuple):
    """A profiler's recording of a workload."""

    kernels: tuple[KernelTime, ...]
    total_seconds: float
    """Total reported by the profiler, not the sum over ``kernels``."""
    timed: Literal["operators", "kernels"]
    trace: str
    """Path of the file written by the profiler."""


Record = Callable[[Callable[[], None], Path], Recording]
"""Function that profiles a workload and writes the profiler's file to a folder."""


def load_profiler(engine: str) -> Record:
    """Load and return the profiler of an engine.

    Raises:
        EngineError: the engine has no profiler.
    """
    if engine not in ENGINES:
        raise EngineError(
            f"engine '{engine}' computes nothing that could be profiled; "
            "use --engine torch or --engine tensorflow"
        )
    module = importlib.import_module(f"aiperf_hpc.replica.engines.{engine}.profiler")
    return cast("Record", module.record)


class Launch(NamedTuple):
    """Executions of a kernel on a device."""

    kernel: str
    operator: str
    """Operator that launched the kernel; empty if the profiler does not report it."""
    calls: int
    seconds: float


def kernel_times(launches: Iterable[Launch], rules: Rules) -> tuple[KernelTime, ...]:
    """Return the time of each kernel, longest first, in the category of its operator.

    An operator is more specific than a kernel's name: a matrix product may be part of a
    convolution. Kernels without a known operator are categorized by their names.

    Args:
        launches: executions of kernels, or of operators as kernels of the same name.
        rules: categories of the framework's operators.
    """
    calls: defaultdict[tuple[str, str], int] = defaultdict(int)
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for launch in launches:
        calls[launch.kernel, launch.operator] += launch.calls
        seconds[launch.kernel, launch.operator] += launch.seconds
    kernels = [
        KernelTime(
            name=kernel if operator in ("", kernel) else f"{operator} > {kernel}",
            category=_category(kernel, operator, rules),
            calls=calls[kernel, operator],
            seconds=time,
        )
        for (kernel, operator), time in seconds.items()
    ]
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.seconds, kernel.name)))


def _category(kernel: str, operator: str, rules: Rules) -> KernelCategory:
    """Return the category of a kernel; views and autograd nodes launch no kernel themselves."""
    found = categorize(operator, rules)
    if kernel != operator and found in (KernelCategory.FRAMEWORK, KernelCategory.UNCATEGORIZED):
        return categorize(kernel, DEVICE_RULES)
    return found


def categorize(name: str, rules: Rules) -> KernelCategory:
    """Return the category of a name by the first matching rule."""
    for category, pattern in rules:
        if re.search(pattern, name):
            return category
    return KernelCategory.UNCATEGORIZED
