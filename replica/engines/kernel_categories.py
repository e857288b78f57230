"""Which category a kernel is of, by its name: what all frameworks' accelerator kernels share.

The operators of a framework are in its engine's ``profiler.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aiperf_hpc.run.step_profile import KernelCategory

Rules = Sequence[tuple[KernelCategory, str]]
"""Categories with a regular expression each; the first that is found in a name decides."""

DEVICE_RULES: Rules = (
    (KernelCategory.COMMUNICATION, r"nccl|rccl|AllReduce|ncclDevKernel"),
    (KernelCategory.MEMORY_COPY, r"(?i)^mem(cpy|set)|copy_kernel|direct_copy|^CopyDevice"),
    (
        KernelCategory.NORMALISATION,
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
"""Kernels of cuDNN, cuBLAS, CUTLASS, MIOpen, NCCL, PyTorch, TensorFlow and Triton."""


def categorise(name: str, *tables: Rules) -> KernelCategory:
    """Return the category of a name by the first rule of the first table that knows it."""
    for rules in tables:
        for category, pattern in rules:
            if re.search(pattern, name):
                return category
    return KernelCategory.UNCATEGORISED
