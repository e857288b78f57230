"""AMD's accelerators at work, by amdsmi or, without it, by ``rocm-smi``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from aiperf_hpc.system.amd import VENDOR, amd_smi
from aiperf_hpc.system.tools import AbsentError, Handle, Library, output_of
from aiperf_hpc.telemetry.reading import AcceleratorSource, Asker, Reading
from aiperf_hpc.telemetry.values import AcceleratorName

_CARD = re.compile(r"card(\d+)")
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


class _AmdSmi:
    tool = "amdsmi"
    cheap = True

    def __init__(self, library: Library) -> None:
        self._library = library
        self.asker = Asker((library.AmdSmiException,))
        try:
            self._handles = list(library.amdsmi_get_processor_handles())
        except library.AmdSmiException as error:
            raise AbsentError(f"amdsmi: {' '.join(str(error).split())}") from None
        if not self._handles:
            raise AbsentError("amdsmi counts no accelerator")
        count = len(self._handles)
        self.names = [AcceleratorName(vendor=VENDOR, index=index) for index in range(count)]

    def read(self) -> list[Reading]:
        return [
            self._read(str(name), handle)
            for name, handle in zip(self.names, self._handles, strict=True)
        ]

    def _read(self, name: str, handle: Handle) -> Reading:
        ask, smi = self.asker.ask, self._library
        kinds, where = smi.AmdSmiClkType, smi.AmdSmiTemperatureType
        # Its counter of energy is not used: on some models it stands still (amdsmi's issue 22).
        return Reading(
            utilisation=ask(
                f"{name}: utilisation",
                lambda: _number(smi.amdsmi_get_gpu_activity(handle), "gfx_activity"),
            ),
            memory=ask(
                f"{name}: memory",
                lambda: _number(smi.amdsmi_get_gpu_vram_usage(handle), "vram_used") * 2**20,
            ),
            watts=ask(
                f"{name}: power",
                lambda: _number(
                    smi.amdsmi_get_power_info(handle),
                    "current_socket_power",
                    "average_socket_power",
                ),
            ),
            celsius=ask(
                f"{name}: temperature",
                lambda: float(
                    smi.amdsmi_get_temp_metric(
                        handle, where.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
                    )
                ),
            ),
            mhz=ask(f"{name}: clock", lambda: self._clock(handle, kinds.GFX)),
            memory_mhz=ask(f"{name}: memory clock", lambda: self._clock(handle, kinds.MEM)),
        )

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
        text = output_of("rocm-smi", *_ROCM_SMI)
        try:
            document = json.loads(text)
            found = {int(m[1]): v for k, v in document.items() if (m := _CARD.fullmatch(k))}
        except (ValueError, AttributeError):
            raise AbsentError("rocm-smi did not print JSON") from None
        # Releases differ in the case of the names.
        return {n: {name.lower(): value for name, value in v.items()} for n, v in found.items()}

    def _read(self, name: str, card: Mapping[str, str]) -> Reading:
        ask = self.asker.ask
        ask(f"{name}: clock", _no_clock)
        ask(f"{name}: memory clock", _no_clock)
        return Reading(
            utilisation=ask(f"{name}: utilisation", lambda: _number(card, "gpu use (%)")),
            memory=ask(f"{name}: memory", lambda: _number(card, "vram total used memory (b)")),
            watts=ask(
                f"{name}: power",
                lambda: _number(
                    card,
                    "average graphics package power (w)",
                    "current socket graphics package power (w)",
                ),
            ),
            celsius=ask(
                f"{name}: temperature",
                lambda: _number(
                    card, "temperature (sensor junction) (c)", "temperature (sensor edge) (c)"
                ),
            ),
        )


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
