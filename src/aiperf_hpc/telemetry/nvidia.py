"""NVIDIA's accelerators at work, by NVML."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiperf_hpc.system.nvidia import VENDOR, nvml
from aiperf_hpc.system.tools import AbsentError, Handle, Library
from aiperf_hpc.telemetry.reading import AcceleratorSource, Asker, Reading
from aiperf_hpc.telemetry.values import AcceleratorName


@contextmanager
def nvidia_source() -> Iterator[AcceleratorSource]:
    """Give all of this node, by NVML's numbers. Raises AbsentError where there are none."""
    with nvml() as library:
        yield _Nvml(library)


class _Nvml:
    tool = "NVML"
    cheap = True

    def __init__(self, library: Library) -> None:
        self._library = library
        self.asker = Asker((library.NVMLError,))
        try:
            count = library.nvmlDeviceGetCount()
            self._handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except library.NVMLError as error:
            raise AbsentError(f"NVML: {error}") from None
        if not self._handles:
            raise AbsentError("NVML counts no accelerator")
        self.names = [AcceleratorName(vendor=VENDOR, index=index) for index in range(count)]

    def read(self) -> list[Reading]:
        return [
            self._read(str(name), handle)
            for name, handle in zip(self.names, self._handles, strict=True)
        ]

    def _read(self, name: str, handle: Handle) -> Reading:
        ask, nv = self.asker.ask, self._library
        return Reading(
            utilisation=ask(
                f"{name}: utilisation", lambda: float(nv.nvmlDeviceGetUtilizationRates(handle).gpu)
            ),
            memory=ask(f"{name}: memory", lambda: float(nv.nvmlDeviceGetMemoryInfo(handle).used)),
            watts=ask(f"{name}: power", lambda: nv.nvmlDeviceGetPowerUsage(handle) / 1000.0),
            celsius=ask(
                f"{name}: temperature",
                lambda: float(nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)),
            ),
            mhz=ask(
                f"{name}: clock",
                lambda: float(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)),
            ),
            memory_mhz=ask(
                f"{name}: memory clock",
                lambda: float(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_MEM)),
            ),
            millijoules=ask(
                f"{name}: energy counter",
                lambda: int(nv.nvmlDeviceGetTotalEnergyConsumption(handle)),
            ),
        )
