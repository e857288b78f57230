"""NVIDIA accelerators, through NVIDIA's management library (nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from aiperf_hpc.errors import raising, restated
from aiperf_hpc.system.accelerators.source import AcceleratorSource, Reads, numbered
from aiperf_hpc.system.description import Accelerator
from aiperf_hpc.system.tools import AbsentError, Handle, Library, Probe

VENDOR = "NVIDIA"


@contextmanager
def nvml() -> Iterator[Library]:
    """Initialize the module ``pynvml`` for the duration of the block.

    Raises:
        AbsentError: the module is not installed, there is no driver, or a call in the block fails.
    """
    with raising(AbsentError("the package nvidia-ml-py is not installed"), ImportError):
        import pynvml
    with restated("NVML", AbsentError, caught=pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()


def accelerators() -> tuple[Accelerator, ...]:
    """Return all accelerators of this node, in NVML's order. Raises AbsentError if none."""
    with nvml() as library:
        handles = handles_of(library)
        driver = library.nvmlSystemGetDriverVersion()
        return tuple(
            _describe(library, handle, index, driver) for index, handle in enumerate(handles)
        )


def handles_of(library: Library) -> list[Handle]:
    """Return the handles of all accelerators. Raises AbsentError if there are none."""
    count = library.nvmlDeviceGetCount()
    handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    if not handles:
        raise AbsentError("NVML lists no accelerator")
    return handles


def cuda_version() -> str:
    """Return the newest CUDA version that the driver supports, e.g. 12.4. Raises AbsentError."""
    with nvml() as library:
        version = library.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


def _describe(library: Library, handle: Handle, index: int, driver: str) -> Accelerator:
    nv, probe = library, Probe(library.NVMLError)
    told = probe.read_each(
        {
            "uuid": lambda: str(nv.nvmlDeviceGetUUID(handle)),
            "pci_address": lambda: str(nv.nvmlDeviceGetPciInfo(handle).busId),
            "memory_bytes": lambda: int(nv.nvmlDeviceGetMemoryInfo(handle).total),
            "max_clock_mhz": lambda: _clock(nv, handle, nv.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: _clock(nv, handle, nv.NVML_CLOCK_MEM),
            "power_limit_watts": lambda: nv.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
            "default_power_limit_watts": (
                lambda: nv.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000
            ),
            "max_power_limit_watts": (
                lambda: nv.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1] / 1000
            ),
            "pcie": lambda: _pcie(nv, handle),
            "links": lambda: _links(nv, handle),
            "partitioned": lambda: _partitioned(nv, handle),
        }
    )
    return Accelerator(
        vendor=VENDOR,
        model=nv.nvmlDeviceGetName(handle),
        index=index,
        driver=driver,
        absent=probe.absent,
        **told,
    )


def _clock(library: Library, handle: Handle, kind: int) -> float:
    return float(library.nvmlDeviceGetMaxClockInfo(handle, kind))


def _pcie(library: Library, handle: Handle) -> str:
    generation = library.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    return f"PCIe {generation}.0 x{library.nvmlDeviceGetMaxPcieLinkWidth(handle)}"


def _partitioned(library: Library, handle: Handle) -> bool:
    """Return whether MIG is enabled; False if the device does not support MIG."""
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE)
    except library.NVMLError_NotSupported:
        return False


def _links(library: Library, handle: Handle) -> int:
    """Return the number of active NVLinks; 0 if the device has none."""
    up = 0
    for link in range(library.NVML_NVLINK_MAX_LINKS):
        try:
            up += library.nvmlDeviceGetNvLinkState(handle, link)
        except (library.NVMLError_NotSupported, library.NVMLError_InvalidArgument):
            break
    return up


@contextmanager
def nvidia_source() -> Iterator[AcceleratorSource]:
    """Open the telemetry of all accelerators, in NVML's order. Raises AbsentError if none."""
    with nvml() as library:
        handles = handles_of(library)
        each = [partial(_reads, library, handle) for handle in handles]
        names, failures = numbered(VENDOR, range(len(handles))), (library.NVMLError,)
        yield AcceleratorSource("NVML", names, lambda: each, cheap=True, failures=failures)


def _reads(nv: Library, handle: Handle) -> Reads:
    return {
        "utilization": lambda: float(nv.nvmlDeviceGetUtilizationRates(handle).gpu),
        "memory": lambda: float(nv.nvmlDeviceGetMemoryInfo(handle).used),
        "watts": lambda: nv.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        "celsius": lambda: float(nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)),
        "mhz": lambda: float(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)),
        "memory_mhz": lambda: float(nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_MEM)),
        "millijoules": lambda: int(nv.nvmlDeviceGetTotalEnergyConsumption(handle)),
    }
