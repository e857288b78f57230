"""Kernels of PyTorch whose rates are a device's peaks."""

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
from aiperf_hpc.replica.engines.peak_work import Images, Work, product_operations
from aiperf_hpc.replica.engines.torch.device import (
    DeviceKind,
    allow_tf32,
    choose_device,
    give_back_freed_memory,
    keep_freed_memory,
)

VERSIONS = {"torch": torch.__version__}
FAILURES = (RuntimeError,)
"""What PyTorch raises where a kernel does not exist, or does not fit."""
_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_ELEMENT = 4
_SCALE = 3.0
"""What STREAM's triad multiplies by."""


class TorchDevice:
    """One device; see ``peak_work.PeakDevice``."""

    def __init__(self, kind: str, index: int, cores: int) -> None:
        self._device = torch.device(kind) if kind == "cpu" else torch.device(kind, index)
        self._module: Any = None if kind == "cpu" else torch.get_device_module(kind)
        self.name = str(self._device)
        self.threads = cores if kind == "cpu" else None
        self.precisions = ("fp32", "tf32", "bf16", "fp16") if kind == "cuda" else (
            "fp32", "bf16", "fp16"
        )  # fmt: skip

    @property
    def model(self) -> str:
        if self._module is None:
            return cpu_model()
        return str(self._module.get_device_name(self._device))

    @property
    def memory_bytes(self) -> int | None:
        return None if self._module is None else int(self._module.mem_get_info(self._device)[0])

    def _random(self, shape: tuple[int, ...], precision: str) -> Tensor:
        """Return what is not zeros: these would let a processor run cooler, and so faster."""
        if self._device.type == "cuda":
            allow_tf32(precision == "tf32")
        return torch.randn(shape, device=self._device).to(_TYPES[precision])

    def product(self, n: int, precision: str) -> Work:
        a, b = (self._random((n, n), precision) for _ in range(2))
        out = torch.empty_like(a)
        return Work(f"{n} x {n}", product_operations(n), partial(torch.mm, a, b, out=out))

    def convolution(self, images: Images, precision: str) -> Work:
        batch, channels, side = images
        x = self._random((batch, channels, side, side), precision)
        kernel = self._random((channels, channels, 3, 3), precision)
        last = {"memory_format": torch.channels_last}
        x, kernel = x.contiguous(**last), kernel.contiguous(**last)
        return Work(
            str(images), images.operations, partial(functional.conv2d, x, kernel, padding=1)
        )

    def memory(self) -> list[tuple[str, Callable[[int], Work]]]:
        return [("copy", self._copy), ("triad", self._triad)]

    def _arrays(self, size: int, count: int) -> list[Tensor]:
        return [torch.ones(size // _ELEMENT, device=self._device) for _ in range(count)]

    def _copy(self, size: int) -> Work:
        a, b = self._arrays(size, 2)
        return Work(_mib(size), 2 * size, partial(a.copy_, b))

    def _triad(self, size: int) -> Work:
        a, b, c = self._arrays(size, 3)
        return Work(_mib(size), 3 * size, partial(torch.add, b, c, alpha=_SCALE, out=a))

    def finish(self) -> None:
        if self._module is not None:
            self._module.synchronize(self._device)

    def give_back_memory(self) -> None:
        """Give what is free back to the device, or to the kernel."""
        if self._module is None:
            give_back_freed_memory()
        else:
            self._module.empty_cache()


def devices(cores: int) -> Iterator[TorchDevice]:
    """Yield the CPU, on so many threads as a run's training has, and each accelerator."""
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
    """Give the device that a rank's engine has chosen, and leave everything as it was.

    cuDNN times its kernels for each convolution, as it does for a training's.

    Args:
        kind: ``engine.device``.
        index: which of the host's accelerators is the rank's.
        cores: the threads that it computes on, where it computes on CPUs.
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
        device.give_back_memory()


def used_precision(device: TorchDevice, precision: str) -> str:
    """Return what a device multiplies when it is to train in a precision: tf32 where allowed."""
    allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    is_tf32 = precision == "fp32" and allowed and "tf32" in device.precisions
    return "tf32" if is_tf32 else precision


def _mib(size: int) -> str:
    return f"{size / 2**20:g} MiB"
