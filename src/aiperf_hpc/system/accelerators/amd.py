"""AMD accelerators, through AMD's management library (amdsmi) or, without it, ``rocm-smi``."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from typing import Any, TypeVar

from aiperf_hpc.errors import raising, restated
from aiperf_hpc.system.accelerators.source import AcceleratorSource, Reads, numbered
from aiperf_hpc.system.description import Accelerator
from aiperf_hpc.system.tools import AbsentError, Handle, Library, Probe, output_of

T = TypeVar("T")
VENDOR = "AMD"
_CARD = re.compile(r"card(\d+)")
_NOT_TOLD = ("", "N/A", "None")
"""Output of AMD's tools for unknown values."""


@contextmanager
def amd_smi() -> Iterator[Library]:
    """Initialize the module ``amdsmi`` for the duration of the block.

    Raises:
        AbsentError: the module or its library is not installed, there is no driver, or a call in
            the block fails.
    """
    try:
        with redirect_stdout(io.StringIO()):  # It prints a message if its library is missing.
            import amdsmi
    except ImportError:
        raise AbsentError("the package amdsmi is not installed") from None
    except (KeyError, OSError, AttributeError) as error:  # Depends on the version.
        raise AbsentError(f"amdsmi finds no AMD library: {error}") from None
    with restated("amdsmi", AbsentError, caught=amdsmi.AmdSmiException):
        amdsmi.amdsmi_init()
        try:
            yield amdsmi
        finally:
            amdsmi.amdsmi_shut_down()


def accelerators() -> tuple[Accelerator, ...]:
    """Return all accelerators of this node in AMD's order. Raises AbsentError if there are none."""
    found = _first(_by_library, lambda: parse_rocm_smi(output_of("rocm-smi", *_ROCM_SMI)))
    if not found:
        raise AbsentError("AMD's tools list no accelerator")
    return found


def _by_library() -> tuple[Accelerator, ...]:
    with amd_smi() as library:
        handles = library.amdsmi_get_processor_handles()
        return tuple(_describe(library, handle, index) for index, handle in enumerate(handles))


def _describe(library: Library, handle: Handle, index: int) -> Accelerator:
    smi, probe = library, Probe(library.AmdSmiException)
    kinds = smi.AmdSmiClkType
    caps: Mapping[str, Any] = (
        probe.read("caps", lambda: smi.amdsmi_get_power_cap_info(handle)) or {}
    )
    if why := probe.absent.pop("caps", None):
        probe.absent |= dict.fromkeys(_CAPS, why)
    told = probe.read_each(
        {
            "uuid": lambda: str(smi.amdsmi_get_gpu_device_uuid(handle)),
            "pci_address": lambda: str(smi.amdsmi_get_gpu_device_bdf(handle)),
            "driver": lambda: _told(smi.amdsmi_get_gpu_driver_info(handle), "driver_version"),
            "memory_bytes": (
                lambda: int(_told(smi.amdsmi_get_gpu_vram_info(handle), "vram_size")) * 2**20
            ),
            "max_clock_mhz": lambda: _clock(smi, handle, kinds.GFX),
            "max_memory_clock_mhz": lambda: _clock(smi, handle, kinds.MEM),
        }
    )
    told |= {name: caps[key] / 1e6 if key in caps else None for name, key in _CAPS.items()}
    return Accelerator(
        vendor=VENDOR,
        model=_told(smi.amdsmi_get_gpu_asic_info(handle), "market_name"),
        index=index,
        absent=_UNASKED | probe.absent,
        **told,
    )


_UNASKED = dict.fromkeys(("pcie", "links", "partitioned"), "AMD's tools are not queried for it")
_CAPS = {
    "power_limit_watts": "power_cap",
    "default_power_limit_watts": "default_power_cap",
    "max_power_limit_watts": "max_power_cap",
}
"""Power caps, which amdsmi reports in microwatts."""


def _clock(library: Library, handle: Handle, kind: object) -> float:
    return float(_told(library.amdsmi_get_clock_info(handle, kind), "max_clk"))


def _told(values: Mapping[str, Any], key: str) -> str:
    """Return a value as text. Raises AbsentError if it is unknown."""
    value = str(values.get(key, ""))
    if value in _NOT_TOLD:
        raise AbsentError(f"AMD's tools do not report '{key}'")
    return value


_ROCM_SMI = (
    "--showproductname",
    "--showmeminfo",
    "vram",
    "--showdriverversion",
    "--showuniqueid",
    "--showbus",
    "--showmaxpower",
    "--json",
)


def parse_rocm_smi(text: str) -> tuple[Accelerator, ...]:
    """Return the accelerators in the output of ``rocm-smi --json``.

    Raises:
        AbsentError: the output is not a JSON object.
    """
    cards, driver = rocm_smi_cards(text)
    return tuple(_of_card(number, card, driver) for number, card in cards.items())


def rocm_smi_cards(text: str) -> tuple[dict[int, dict[str, str]], str | None]:
    """Return the values of each card by number, and the driver version.

    Names of values are lower case, because releases differ. Raises the same errors as
    ``parse_rocm_smi``.
    """
    with raising(AbsentError("rocm-smi did not print JSON"), ValueError, AttributeError):
        document = json.loads(text)
        found = {int(m[1]): v for k, v in document.items() if (m := _CARD.fullmatch(k))}
    cards = {n: {name.lower(): value for name, value in v.items()} for n, v in found.items()}
    return cards, document.get("system", {}).get("Driver version")


def _of_card(index: int, values: Mapping[str, str], driver: str | None) -> Accelerator:
    probe = Probe(ValueError)
    read = probe.read
    probe.absent |= dict.fromkeys(
        ("max_clock_mhz", "max_memory_clock_mhz", "power_limit_watts", "default_power_limit_watts"),
        "rocm-smi is not queried for it; the package amdsmi reports it",
    )
    return Accelerator(
        vendor=VENDOR,
        model=values.get("card series") or values.get("device name") or "unknown",
        index=index,
        driver=driver or read("driver", lambda: _told({}, "driver version")),
        uuid=read("uuid", lambda: _told(values, "unique id")),
        pci_address=read("pci_address", lambda: _told(values, "pci bus")),
        memory_bytes=read("memory_bytes", lambda: int(_told(values, "vram total memory (b)"))),
        max_power_limit_watts=read(
            "max_power_limit_watts",
            lambda: float(_told(values, "max graphics package power (w)")),
        ),
        absent=_UNASKED | probe.absent,
    )


_ROCM_SMI_USE = ("--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--json")


@contextmanager
def amd_source() -> Iterator[AcceleratorSource]:
    """Open the telemetry of all accelerators, in AMD's order. Raises AbsentError if none."""
    with ExitStack() as stack:
        yield _first(lambda: _by_amd_smi(stack.enter_context(amd_smi())), _by_rocm_smi)


def _first(one: Callable[[], T], other: Callable[[], T]) -> T:
    """Return the result of the first available tool of two. Raises AbsentError if none is."""
    try:
        return one()
    except AbsentError as missing:
        try:
            return other()
        except AbsentError as error:
            raise AbsentError(f"{missing}; {error}") from None


def _by_amd_smi(library: Library) -> AcceleratorSource:
    with restated("amdsmi", AbsentError, caught=library.AmdSmiException):
        handles = list(library.amdsmi_get_processor_handles())
    if not handles:
        raise AbsentError("amdsmi lists no accelerator")
    each = [partial(_reads, library, handle) for handle in handles]
    names, failures = numbered(VENDOR, range(len(handles))), (library.AmdSmiException,)
    return AcceleratorSource("amdsmi", names, lambda: each, cheap=True, failures=failures)


def _reads(smi: Library, handle: Handle) -> Reads:
    kinds, power = smi.AmdSmiClkType, ("current_socket_power", "average_socket_power")

    def clock(kind: object) -> float:
        return _number(smi.amdsmi_get_clock_info(handle, kind), "clk", "cur_clk")

    def hottest() -> float:
        kind, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        return float(smi.amdsmi_get_temp_metric(handle, kind, metric))

    # The energy counter is not used, because it is stuck on some models (issue 22 of amdsmi).
    return {
        "utilization": lambda: _number(smi.amdsmi_get_gpu_activity(handle), "gfx_activity"),
        "memory": lambda: _number(smi.amdsmi_get_gpu_vram_usage(handle), "vram_used") * 2**20,
        "watts": lambda: _number(smi.amdsmi_get_power_info(handle), *power),
        "celsius": hottest,
        "mhz": lambda: clock(kinds.GFX),
        "memory_mhz": lambda: clock(kinds.MEM),
    }


def _by_rocm_smi() -> AcceleratorSource:
    def cards() -> dict[int, dict[str, str]]:
        return rocm_smi_cards(output_of("rocm-smi", *_ROCM_SMI_USE))[0]

    def look() -> list[Callable[[], Reads]]:
        found = cards()
        return [partial(_reads_of_card, found.get(number, {})) for number in numbers]

    numbers = sorted(cards())
    if not numbers:
        raise AbsentError("rocm-smi lists no accelerator")
    return AcceleratorSource("rocm-smi", numbered(VENDOR, numbers), look, cheap=False)


def _reads_of_card(card: Mapping[str, str]) -> Reads:
    return {
        "utilization": lambda: _number(card, "gpu use (%)"),
        "memory": lambda: _number(card, "vram total used memory (b)"),
        "watts": lambda: _number(card, *_POWERS),
        "celsius": lambda: _number(card, *_TEMPERATURES),
        "mhz": _no_clock,
        "memory_mhz": _no_clock,
    }


_POWERS = (
    "average graphics package power (w)",
    "current socket graphics package power (w)",
)
_TEMPERATURES = ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")


def _no_clock() -> float:
    raise AbsentError("rocm-smi is not queried for it; the package amdsmi reports it")


def _number(values: Mapping[str, Any], *names: str) -> float:
    """Return the first numeric value. Raises AbsentError if there is none."""
    for name in names:
        try:
            return float(values[name])
        except (KeyError, TypeError, ValueError):  # AMD's tools print N/A.
            continue
    raise AbsentError(f"AMD's tools do not report '{names[0]}'")
