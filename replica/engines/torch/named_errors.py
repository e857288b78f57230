"""PyTorch's errors as this package's, in one line each."""

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
"""What PyTorch, Triton and the vendors' libraries call a lack of memory: cuBLAS and cuDNN 8 have
``..._STATUS_ALLOC_FAILED``, cuDNN 9 ``..._DEVICE_ALLOCATION_FAILED``. Triton's ``out of resource``
is none: such a kernel needs too many registers or too much shared memory in any batch."""
_LOST = re.compile(
    "illegal memory access|illegal address|illegal instruction|misaligned address"
    "|invalid program counter|invalid address space|launch failure|device-side assert"
    "|hardware stack error|uncorrectable|launch timed out"
)
"""Errors of CUDA and HIP after which every call of the process fails, by CUDA's descriptions
(``cudaError_t`` in its runtime API): libraries pass them on in errors of their own types."""


@contextmanager
def named_errors() -> Iterator[None]:
    """Raise what PyTorch raises within the block as one of this package's errors.

    Raises:
        OutOfMemoryError: the memory of the host or of the device is full.
        DeviceLostError: this process can no longer use its device.
        EngineError: anything else that PyTorch, or Triton by way of it, raised.
    """
    try:
        yield
    except Exception as error:
        if not (isinstance(error, RuntimeError | MemoryError) or _is_of_triton(error)):
            raise
        raise _named(_cause(error)) from error


def _is_of_triton(error: Exception) -> bool:
    """Return whether Triton raised an error of its own types, which are no RuntimeError."""
    return type(error).__module__.partition(".")[0] == "triton"


def _cause(error: Exception) -> Exception:
    """Return the error that a compiler raised in PyTorch's own, which does not quote it."""
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
