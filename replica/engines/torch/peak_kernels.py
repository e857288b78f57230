"""PyTorch kernels for measuring the peak rates of devices."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from aiperf_hpc.host.machine import cpu_model
from aiperf_hpc.replica.engines.peaks import Images, PeakDevice
from aiperf_hpc.replica.engines.torch.device import (
    DeviceKind,
    allow_tf32,
    choose_device,
    keep_freed_memory,
    release_freed_memory,
)
from aiperf_hpc.replica.engines.torch.network import TYPES

VERSIONS = {"torch": torch.__version__}
FAILURES = (RuntimeError,)
"""Errors of PyTorch if a kernel does not exist or does not fit in memory."""
_SCALE = 3.0
"""Factor of STREAM's triad."""


class TorchDevice(PeakDevice):
    """One device; see ``peaks.PeakDevice``."""

    arrays = {"copy": 2, "triad": 3}

    def __init__(self, kind: str, index: int, cores: int) -> None:
        self._device = torch.device(kind) if kind == "cpu" else torch.device(kind, index)
        self._module: Any = None if kind == "cpu" else torch.get_device_module(kind)
        model = self._module.get_device_name(self._device) if self._module else cpu_model()
        threads = None if self._module else cores
        super().__init__(str(self._device), str(model), threads, has_tf32=kind == "cuda")

    @property
    def memory_bytes(self) -> int | None:
        return None if self._module is None else int(self._module.mem_get_info(self._device)[0])

    def allows_tf32(self) -> bool:
        return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)

    def _random(self, shape: tuple[int, ...], precision: str) -> Tensor:
        """Return random numbers, because zeros would keep the processor cooler and thus faster."""
        if self._device.type == "cuda":
            allow_tf32(precision == "tf32")
        return torch.randn(shape, device=self._device).to(
            torch.float32 if precision == "tf32" else TYPES[precision]
        )

    def multiply(self, n: int, precision: str) -> Callable[[], object]:
        a, b = (self._random((n, n), precision) for _ in range(2))
        return partial(torch.mm, a, b, out=torch.empty_like(a))

    def convolve(self, images: Images, precision: str) -> Callable[[], object]:
        batch, channels, side = images
        shapes = (batch, channels, side, side), (channels, channels, 3, 3)
        x, kernel = (
            self._random(shape, precision).contiguous(memory_format=torch.channels_last)
            for shape in shapes
        )
        return partial(functional.conv2d, x, kernel, padding=1)

    def move(self, kernel: str, elements: int) -> Callable[[], object]:
        a, b, *rest = (
            torch.ones(elements, device=self._device) for _ in range(self.arrays[kernel])
        )
        if kernel == "copy":
            return partial(a.copy_, b)
        return partial(torch.add, b, *rest, alpha=_SCALE, out=a)

    def finish(self) -> None:
        if self._module is not None:
            self._module.synchronize(self._device)


def devices(cores: int) -> Iterator[TorchDevice]:
    """Yield the CPU, with the number of threads used in training, and each accelerator."""
    torch.set_num_threads(cores)
    keep_freed_memory()
    yield TorchDevice("cpu", 0, cores)
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True
        for index in range(torch.cuda.device_count()):
            yield TorchDevice("cuda", index, cores)
    if importlib.util.find_spec("torch_npu") is not None:
        importlib.import_module("torch_npu")
        for index in range(torch.get_device_module("npu").device_count()):
            yield TorchDevice("npu", index, cores)


@contextmanager
def device_of_rank(kind: DeviceKind, index: int, cores: int) -> Iterator[TorchDevice]:
    """Return a context with the device of a rank's engine, which restores all settings on exit.

    cuDNN times its kernels for each convolution, as in training.

    Args:
        kind: value of ``engine.device``.
        index: index of the rank's accelerator on the host.
        cores: number of threads, if the engine computes on CPUs.
    """
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    allowed, tuned = (cuda.allow_tf32, cudnn.allow_tf32), cudnn.benchmark
    chosen = choose_device(kind, index)
    device = TorchDevice(chosen.type, chosen.index or 0, cores)
    cudnn.benchmark = True
    try:
        yield device
    finally:
        cuda.allow_tf32, cudnn.allow_tf32 = allowed
        cudnn.benchmark = tuned
        release_freed_memory(chosen)
