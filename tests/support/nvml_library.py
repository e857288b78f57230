"""NVIDIA's driver library with made-up accelerators, behind NVIDIA's own Python package.

Only the C functions are made up: names, arguments, units and errors are those that the real
package ``pynvml`` calls and raises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import pynvml
import pytest

Reference: TypeAlias = Any
"""What ctypes passes to a C function; it has no types."""

NOT_SUPPORTED = 3
INVALID_ARGUMENT = 2
DRIVER_NOT_LOADED = 9

H100: dict[str, Any] = {
    "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetUUID": b"GPU-5d4f7a9c-0b5e-4c5c-9a63-000000000000",
    "nvmlDeviceGetPciInfo_v3": b"00000000:18:00.0",
    "nvmlDeviceGetMemoryInfo": 85_520_809_984,
    "nvmlDeviceGetMaxClockInfo": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619},
    "nvmlDeviceGetPowerManagementLimit": 650_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": (200_000, 700_000),
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetMigMode": (0, 0),
    "nvmlDeviceGetNvLinkState": [1] * 18,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=40),
    "nvmlDeviceGetPowerUsage": 500_000,
    "nvmlDeviceGetTemperature": {pynvml.NVML_TEMPERATURE_GPU: 61},
    "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 2619},
    "nvmlDeviceGetTotalEnergyConsumption": 7_000_000,
}
"""An accelerator: what each function of the library answers; none for what it does not support."""


class NvmlLibrary:
    """What the C library answers: ``accelerators`` and a driver, or ``status`` to everything."""

    def __init__(
        self, accelerators: list[dict[str, Any]], *, cuda: int = 12040, status: int = 0
    ) -> None:
        self.accelerators = accelerators
        self.cuda = cuda
        self.status = status
        self.open = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the package call this library."""
        monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", self.function)

    def function(self, name: str) -> Callable[..., int]:
        fixed: dict[str, Callable[..., int]] = {
            "nvmlInitWithFlags": lambda flags: self._opened(1),
            "nvmlShutdown": lambda: self._opened(-1),
            "nvmlSystemGetDriverVersion": self._driver,
            "nvmlSystemGetCudaDriverVersion_v2": lambda out: _fill(out, self.cuda),
            "nvmlDeviceGetCount_v2": lambda out: _fill(out, len(self.accelerators)),
            "nvmlDeviceGetHandleByIndex_v2": self._handle,
        }
        return fixed.get(name) or (lambda handle, *rest: self._answer(name, handle, rest))

    def _opened(self, change: int) -> int:
        if not self.status:
            self.open += change
        return self.status

    def _driver(self, buffer: Reference, size: object) -> int:
        buffer.value = b"550.54.15"
        return 0

    def _handle(self, index: Reference, out: Reference) -> int:
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return 0

    def _answer(self, name: str, handle: Reference, rest: tuple[Reference, ...]) -> int:
        number = ctypes.cast(handle, ctypes.c_void_p).value
        assert number is not None
        answer = self.accelerators[number - 1].get(name)
        if answer is None:
            return NOT_SUPPORTED
        return _give(answer, rest)


def _give(answer: object, rest: tuple[Reference, ...]) -> int:
    match answer:
        case SimpleNamespace():
            for name, value in vars(answer).items():
                setattr(rest[0]._obj, name, value)
        case bytes() if len(rest) == 2:  # A buffer and its size.
            rest[0].value = answer
        case bytes():
            rest[0]._obj.busId = answer
        case dict():
            kind = rest[0] if isinstance(rest[0], int) else rest[0].value
            return _fill(rest[1], answer[kind])
        case list():
            if rest[0] >= len(answer):
                return INVALID_ARGUMENT
            return _fill(rest[1], answer[rest[0]])
        case tuple():
            for out, value in zip(rest, answer, strict=True):
                _fill(out, value)
        case int():
            return _fill(rest[0], answer)
    return 0


def _fill(out: Reference, value: int) -> int:
    target = out._obj
    if hasattr(target, "total"):
        target.total = value
    else:
        target.value = value
    return 0
