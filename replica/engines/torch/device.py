"""The device of the ``torch`` engine: selection, memory and copies of batches."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections import deque
from collections.abc import Iterable, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn import functional

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.replica.data.base import Batch, Pixels, PixelScaling

DeviceKind = Literal["auto", "cpu", "cuda", "npu"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Numbers of glibc's parameters (see mallopt(3))."""
_TOP_PAD = 256 * 2**20
_NEVER = -1
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_HUGE_PAGE, _MADV_HUGEPAGE = 2 * 2**20, 14
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables with options of PyTorch's allocator of accelerator memory."""
_IN_FLIGHT = 2
"""Maximum number of steps in an accelerator's queue; each occupies the memory of its batch."""


def choose_device(kind: DeviceKind, index: int) -> torch.device:
    """Return the device of a rank.

    Args:
        kind: requested kind; auto prefers an accelerator to the CPU.
        index: index of the accelerator on the host, modulo their number.

    Raises:
        EngineError: there is no device of the requested kind.
    """
    if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()):
        return _accelerator("cuda", index, "CUDA or ROCm")
    if kind == "npu" or (kind == "auto" and importlib.util.find_spec("torch_npu") is not None):
        if importlib.util.find_spec("torch_npu") is None:
            raise EngineError("engine.device=npu needs the package torch_npu; install it")
        importlib.import_module("torch_npu")
        return _accelerator("npu", index, "Ascend")
    return torch.device("cpu")


def _accelerator(kind: str, index: int, what: str) -> torch.device:
    module = torch.get_device_module(kind)
    if not module.is_available():
        raise EngineError(
            f"engine.device={kind}: PyTorch {torch.__version__} sees no {what} device here; "
            "install a build that does, or set engine.device=cpu"
        )
    device = torch.device(kind, index % module.device_count())
    if kind == "cuda":
        use_expandable_segments(os.environ)
    compute_on(device)
    return device


def compute_on(device: torch.device) -> None:
    """Select the device of this thread; the default of every thread is the first device."""
    if device.type != "cpu":
        torch.get_device_module(device.type).set_device(device)


def use_expandable_segments(environment: MutableMapping[str, str]) -> None:
    """Enable expandable segments in PyTorch's allocator, unless the user has set its options.

    Consecutive networks differ in size, which fragments segments of fixed size. PyTorch reads the
    variable at the first allocation.
    """
    if not any(name in environment for name in ALLOCATOR_SETTINGS):
        environment[ALLOCATOR_SETTINGS[0]] = "expandable_segments:True"


def allow_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 for fp32 convolutions and matrix products on NVIDIA GPUs.

    By default, it is allowed for cuDNN and not for cuBLAS.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory; return whether this is supported, as by glibc.

    By default, glibc returns large blocks to the kernel immediately. The kernel clears every page
    again when the next step allocates it, which uses up to a third of the time of a training step
    (docs/decisions/engines.md).
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_M_TOP_PAD, _TOP_PAD)
    _use_huge_pages(library)
    return True


def _use_huge_pages(library: ctypes.CDLL) -> None:
    """Back the heap by huge pages, each of which needs only one entry of the TLB.

    This reserves addresses for half of the host's memory at the end of the heap, which uses no
    memory unless the kernel forbids overcommitting. If it does, or if a limit of the process
    forbids the reservation, the heap remains unchanged.
    """
    if OVERCOMMIT.read_text("ascii").strip() == "2":
        return
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = library.malloc(size)
    if block is not None:
        start = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        length = (block + size - start) // _HUGE_PAGE * _HUGE_PAGE
        library.madvise(start, length, _MADV_HUGEPAGE)
        library.free(block)


def release_freed_memory(device: torch.device) -> None:
    """Return a device's freed memory to the system between networks, because their sizes differ."""
    if device.type != "cpu":
        torch.get_device_module(device.type).empty_cache()
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
        _use_huge_pages(library)  # The reservation was also returned.


class Feed:
    """Copies batches to a device, concurrently with its computation if it is an accelerator.

    The host can prepare one step while the device computes the previous one, but no more.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = None
        if device.type != "cpu":
            self._module = torch.get_device_module(device.type)
            self._stream = self._module.Stream(device)
            self._done: deque[Any] = deque()

    def inputs(self, batch: Batch, names: Iterable[str]) -> list[Tensor]:
        """Return the inputs ``names``, in this order, channels first."""
        given = [batch.inputs[name] for name in names]
        if self._module is None:
            return [channels_first(_tensor(each)) for each in given]
        there = self._there([each.bytes if isinstance(each, Pixels) else each for each in given])
        whole = (
            scaled(tensor, each.scaling) if isinstance(each, Pixels) else tensor
            for tensor, each in zip(there, given, strict=True)
        )
        return [channels_first(tensor) for tensor in whole]

    def targets(self, batch: Batch) -> dict[str, Tensor]:
        """Return the targets, with integers as int64, which PyTorch's losses need."""
        there = self._there(list(batch.targets.values()))
        wide = [t.long() if t.dtype is torch.int32 else t for t in there]
        return dict(zip(batch.targets, wide, strict=True))

    def to_device(self, *buffers: Tensor) -> list[Tensor]:
        """Return host buffers on the device, without a copy if it is the CPU.

        Copies to an accelerator use pinned memory and a separate stream, so that a network can be
        built during training without waiting for the steps in the queue.
        """
        if self._module is None or any(isinstance(buffer, FakeTensor) for buffer in buffers):
            return [buffer.to(self._device) for buffer in buffers]
        copies = self._copied(*buffers)
        self._stream.synchronize()
        return list(copies)

    def _there(self, arrays: list[Any]) -> tuple[Tensor, ...]:
        tensors = tuple(_tensor(array) for array in arrays)
        if self._module is None:
            return tensors
        self.await_room()
        copies = self._copied(*tensors)
        self._module.current_stream(self._device).wait_stream(self._stream)
        return copies

    def await_room(self) -> None:
        """Wait until the device's queue has room for one more step."""
        if self._module is not None and len(self._done) == _IN_FLIGHT:
            self._done.popleft().synchronize()

    def _copied(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Start copying tensors; return the copies, for use in the current stream."""
        with self._module.stream(self._stream):
            copies = tuple(
                (t.pin_memory() if t.device.type == "cpu" else t).to(
                    self._device, non_blocking=True
                )
                for t in tensors
            )
        current = self._module.current_stream(self._device)
        for copy in copies:
            copy.record_stream(current)
        return copies

    def done(self) -> None:
        """Record that a step has been completely enqueued on the device."""
        if self._module is not None:
            event = self._module.Event(blocking=True)
            event.record(self._module.current_stream(self._device))
            self._done.append(event)


def scaled(pixels: Tensor, scaling: PixelScaling) -> Tensor:
    """Return bytes as float32 values on the same device, with the two roundings of ``Pixels``.

    NumPy is faster on CPUs and returns the same bits.
    """
    scale, shift = _lines(scaling, pixels.shape[-2], pixels.device)
    return pixels.flatten(-2).mul(scale).add_(shift).view(pixels.shape)


@lru_cache(maxsize=16)
def _lines(scaling: PixelScaling, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    scale, shift = (torch.from_numpy(line).to(device) for line in scaling.line(width))
    return scale, shift


def channels_first(images: Tensor) -> Tensor:
    """Return channels-last images and volumes as (samples, channels, ...), in the same memory."""
    return images.movedim(-1, 1) if images.ndim >= 4 else images


def padded(samples: Tensor, size: int) -> Tensor:
    """Return samples padded with zeros to a batch size, in the memory order of a batch."""
    last = samples.movedim(1, -1) if samples.ndim >= 4 else samples
    missing = (0, 0) * (last.ndim - 1) + (0, size - len(samples))
    return channels_first(functional.pad(last, missing))


def sample_inputs(
    graph: Graph, samples: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return uninitialized inputs of a graph, channels first, with real numbers in a given type."""
    inputs = []
    for name in graph.inputs:
        own = torch.from_numpy(np.zeros(0, graph.dtype(name))).dtype
        shape = (samples, *graph.shapes[name])
        own = dtype if own.is_floating_point else own
        inputs.append(channels_first(torch.empty(shape, dtype=own, device=device)))
    return inputs


def _tensor(values: Any) -> Tensor:  # noqa: ANN401 -- an array or a tensor of any framework
    if isinstance(values, Tensor):
        return values
    return torch.from_numpy(np.require(np.asarray(values), requirements=["C", "W"]))
