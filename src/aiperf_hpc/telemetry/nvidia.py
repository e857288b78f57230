"""NVIDIA's accelerators at work, by NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from aiperf_hpc.system.nvidia import VENDOR, handles_of, nvml
from aiperf_hpc.system.tools import Handle, Library
from aiperf_hpc.telemetry.reading import AcceleratorSource, LibrarySource


@contextmanager
def nvidia_source() -> Iterator[AcceleratorSource]:
    """Give all of this node, by NVML's numbers. Raises AbsentError where there are none."""
    with nvml() as library:
        yield _Nvml(library)


class _Nvml(LibrarySource):
    tool, vendor = "NVML", VENDOR

    def __init__(self, library: Library) -> None:
        super().__init__(handles_of(library), library.NVMLError)
        self._library = library

    def reads(self, handle: Handle) -> Mapping[str, Callable[[], float]]:
        nv = self._library
        return {
            "utilisation": lambda: float(nv.nvmlDeviceGetUtilizationRates(handle).gpu),
            "memory": lambda: float(nv.nvmlDeviceGetMemoryInfo(handle).used),
            "watts": lambda: nv.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "celsius": lambda: float(nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)),
            "mhz": lambda: float(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)),
            "memory_mhz": lambda: float(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_MEM)),
            "millijoules": lambda: int(nv.nvmlDeviceGetTotalEnergyConsumption(handle)),
        }
