"""What PyTorch, Triton and the vendors' libraries raise, as a trial or a replica ends by it."""

from __future__ import annotations

import pytest
import torch

from aiperf_hpc.errors import DeviceLostError, EngineError, OutOfMemoryError
from aiperf_hpc.replica.engines.torch.named_errors import named_errors

HINTS = "\nCUDA kernel errors might be asynchronously reported at some other API call."
Accelerator = torch.AcceleratorError


class OutOfResources(Exception):  # noqa: N818 -- its name in Triton
    """Triton's own: no RuntimeError."""

    __module__ = "triton.runtime.errors"


class BackendCompilerFailed(RuntimeError):  # noqa: N818 -- its name in PyTorch
    """As PyTorch's compiler raises it, which names the back end alone."""

    def __init__(self, inner: Exception) -> None:
        super().__init__("backend='inductor' raised:")
        self.inner_exception = inner


def named(error: Exception) -> Exception:
    """Return what an error is raised as."""
    with pytest.raises(Exception) as raised, named_errors():
        raise error
    return raised.value


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        # A call of CUDA's runtime or driver, outside of PyTorch's allocator.
        RuntimeError("CUDA error: out of memory" + HINTS),
        Accelerator("CUDA error: out of memory" + HINTS),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        BackendCompilerFailed(RuntimeError("Triton Error [CUDA]: out of memory")),
        MemoryError(),
    ],
    ids=lambda error: str(error).partition("\n")[0][-40:],
)
def test_out_of_memory(error: Exception) -> None:
    assert type(named(error)) is OutOfMemoryError


@pytest.mark.parametrize(
    "error",
    [
        Accelerator("CUDA error: an illegal memory access was encountered" + HINTS),
        # Any of that type: PyTorch raises it for what a call of the device's runtime returned.
        Accelerator("CUDA error: unknown error" + HINTS),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("CUDA driver error: unspecified launch failure"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: misaligned address"),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    ],
    ids=lambda error: str(error).partition("\n")[0][-40:],
)
def test_lost_devices(error: Exception) -> None:
    lost = named(error)
    assert type(lost) is DeviceLostError
    first = str(error).partition("\n")[0]
    assert str(lost) == f"PyTorch: {first}; this process can no longer use its accelerator"


@pytest.mark.parametrize(
    "error",
    [
        # As many registers and as much shared memory are wanted in smaller batches.
        OutOfResources("out of resource: shared memory, Required: 270336, Hardware limit: 232448."),
        BackendCompilerFailed(OutOfResources("out of resource: shared memory, Required: 270336")),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(handle`"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    ],
    ids=lambda error: str(error)[-40:],
)
def test_anything_else_fails_a_trial(error: Exception) -> None:
    assert type(named(error)) is EngineError


@pytest.mark.parametrize("error", [KeyError("no such node"), OutOfMemoryError("named before")])
def test_other_errors_are_unchanged(error: Exception) -> None:
    assert named(error) is error
