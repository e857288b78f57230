"""AMD's accelerators at work, by amdsmi or, without it, by ``rocm-smi``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from aiperf_hpc.system.amd import VENDOR, amd_smi, rocm_smi_cards
from aiperf_hpc.system.tools import AbsentError, Handle, Library, output_of
from aiperf_hpc.telemetry.reading import AcceleratorSource, Asker, LibrarySource, Reading
from aiperf_hpc.telemetry.values import AcceleratorName

_ROCM_SMI = ("--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--json")


@contextmanager
def amd_source() -> Iterator[AcceleratorSource]:
    """Give all of this node, by AMD's numbers. Raises AbsentError where there are none."""
    with ExitStack() as stack:
        source: AcceleratorSource
        try:
            source = _AmdSmi(stack.enter_context(amd_smi()))
        except AbsentError as missing:
            try:
                source = _RocmSmi()
            except AbsentError as error:
                raise AbsentError(f"{missing}; {error}") from None
        yield source


class _AmdSmi(LibrarySource):
    tool, vendor = "amdsmi", VENDOR

    def __init__(self, library: Library) -> None:
        try:
            handles = list(library.amdsmi_get_processor_handles())
        except library.AmdSmiException as error:
            raise AbsentError(f"amdsmi: {' '.join(str(error).split())}") from None
        if not handles:
            raise AbsentError("amdsmi counts no accelerator")
        super().__init__(handles, library.AmdSmiException)
        self._library = library

    def reads(self, handle: Handle) -> Mapping[str, Callable[[], float]]:
        smi, power = self._library, ("current_socket_power", "average_socket_power")
        kinds = smi.AmdSmiClkType
        # Its counter of energy is not used: on some models it stands still (amdsmi's issue 22).
        return {
            "utilisation": lambda: _number(smi.amdsmi_get_gpu_activity(handle), "gfx_activity"),
            "memory": lambda: _number(smi.amdsmi_get_gpu_vram_usage(handle), "vram_used") * 2**20,
            "watts": lambda: _number(smi.amdsmi_get_power_info(handle), *power),
            "celsius": lambda: self._hottest(handle),
            "mhz": lambda: self._clock(handle, kinds.GFX),
            "memory_mhz": lambda: self._clock(handle, kinds.MEM),
        }

    def _hottest(self, handle: Handle) -> float:
        smi = self._library
        kind, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        return float(smi.amdsmi_get_temp_metric(handle, kind, metric))

    def _clock(self, handle: Handle, kind: object) -> float:
        return _number(self._library.amdsmi_get_clock_info(handle, kind), "clk", "cur_clk")


class _RocmSmi:
    tool = "rocm-smi"
    cheap = False

    def __init__(self) -> None:
        self.asker = Asker()
        self._numbers = sorted(self._cards())
        if not self._numbers:
            raise AbsentError("rocm-smi lists no accelerator")
        self.names = [AcceleratorName(vendor=VENDOR, index=index) for index in self._numbers]

    def read(self) -> list[Reading]:
        cards = self._cards()
        return [self._read(f"{VENDOR} {n}", cards.get(n, {})) for n in self._numbers]

    def _cards(self) -> dict[int, dict[str, str]]:
        return rocm_smi_cards(output_of("rocm-smi", *_ROCM_SMI))[0]

    def _read(self, name: str, card: Mapping[str, str]) -> Reading:
        return self.asker.reading(
            name,
            {
                "utilisation": lambda: _number(card, "gpu use (%)"),
                "memory": lambda: _number(card, "vram total used memory (b)"),
                "watts": lambda: _number(card, *_POWERS),
                "celsius": lambda: _number(card, *_TEMPERATURES),
                "mhz": _no_clock,
                "memory_mhz": _no_clock,
            },
        )


_POWERS = (
    "average graphics package power (w)",
    "current socket graphics package power (w)",
)
_TEMPERATURES = ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")


def _no_clock() -> float:
    raise AbsentError("rocm-smi is not asked for it; the package amdsmi tells it")


def _number(values: Mapping[str, Any], *names: str) -> float:
    """Return the first value that is a number. Raises AbsentError where none is."""
    for name in names:
        try:
            return float(values[name])
        except (KeyError, TypeError, ValueError):  # N/A, in AMD's words.
            continue
    raise AbsentError(f"AMD's tools do not tell '{names[0]}'")
