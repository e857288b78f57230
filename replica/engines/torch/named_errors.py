"""Conversion of PyTorch's errors to this package's errors, in one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from aiperf_hpc.errors import DeviceLostError, EngineError, OutOfMemoryError
from aiperf_hpc.replica.engines.base import first_line

_FULL = re.compile(
    "out of memory|not enough memory|can't allocate memory|_ALLOC_FAILED|_ALLOCATION_FAILED"
)
"""Texts of out-of-memory errors of PyTorch, Triton and vendor libraries. cuBLAS and cuDNN 8 use
``..._STATUS_ALLOC_FAILED``, cuDNN 9 ``..._DEVICE_ALLOCATION_FAILED``. Triton's ``out of resource``
is excluded: such a kernel exceeds registers or shared memory for any batch size."""
_LOST = re.compile(
    "illegal memory access|illegal address|illegal instruction|misaligned address"
    "|invalid program counter|invalid address space|launch failure|device-side assert"
    "|hardware stack error|uncorrectable|launch timed out"
)
"""Texts of CUDA and HIP errors after which every call of the process fails, as described by CUDA
(``cudaError_t`` in its runtime API). Libraries raise them as errors of their own types."""


@contextmanager
def named_errors() -> Iterator[None]:
    """Convert PyTorch's errors in the block to this package's errors.

    Raises:
        OutOfMemoryError: the memory of the host or of the device is full.
        DeviceLostError: this process can no longer use its device.
        EngineError: any other error of PyTorch, or of Triton called by PyTorch.
    """
    try:
        yield
    except Exception as error:
        # Triton's types are not RuntimeErrors.
        package = type(error).__module__.partition(".")[0]
        if not (isinstance(error, RuntimeError | MemoryError) or package == "triton"):
            raise
        raise _named(_cause(error)) from error


def _cause(error: Exception) -> Exception:
    """Return the compiler's error inside an error of PyTorch, whose message omits it."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, Exception) else error


def _named(error: Exception) -> Exception:
    if isinstance(error, MemoryError):
        return OutOfMemoryError("the host has no memory left")
    message = first_line(error)
    if isinstance(error, torch.OutOfMemoryError) or _FULL.search(message):
        return OutOfMemoryError(message)
    if isinstance(error, torch.AcceleratorError) or _LOST.search(message):
        lost = "this process can no longer use its accelerator"
        return DeviceLostError(f"PyTorch: {message}; {lost}")
    return EngineError(f"PyTorch: {message}")
