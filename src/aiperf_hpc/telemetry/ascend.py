"""Huawei's Ascend accelerators at work, by the table of ``npu-smi``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from aiperf_hpc.system.ascend import VENDOR, ChipRow, parse_table, table
from aiperf_hpc.system.tools import AbsentError
from aiperf_hpc.telemetry.reading import AcceleratorSource, Asker, Reading
from aiperf_hpc.telemetry.values import AcceleratorName

T = TypeVar("T")


@contextmanager
def ascend_source() -> Iterator[AcceleratorSource]:
    """Give all of this node. Raises AbsentError where there are none."""
    yield _NpuSmi()


class _NpuSmi:
    tool = "npu-smi"
    cheap = False

    def __init__(self) -> None:
        self.asker = Asker()
        self._chips = [(row.card, row.chip) for row in parse_table(table())]
        if not self._chips:
            raise AbsentError("npu-smi lists no accelerator")
        self.names = [AcceleratorName(vendor=VENDOR, index=n) for n in range(len(self._chips))]

    def read(self) -> list[Reading]:
        rows = {(row.card, row.chip): row for row in parse_table(table())}
        return [
            self._read(str(name), rows.get(chip))
            for name, chip in zip(self.names, self._chips, strict=True)
        ]

    def _read(self, name: str, row: ChipRow | None) -> Reading:
        ask = self.asker.ask
        if row is None:
            ask(name, lambda: _told(None, "this chip"))
            return Reading()
        ask(f"{name}: clock", lambda: _told(None, "its clock"))
        ask(f"{name}: memory clock", lambda: _told(None, "the clock of its memory"))
        memory = row.memory_used_bytes
        return Reading(
            utilisation=ask(f"{name}: utilisation", lambda: _told(row.load_percent, "the load")),
            memory=ask(f"{name}: memory", lambda: float(_told(memory, "the memory in use"))),
            watts=ask(f"{name}: power", lambda: _told(row.power_watts, "its power")),
            celsius=ask(
                f"{name}: temperature", lambda: _told(row.temperature_celsius, "its temperature")
            ),
        )


def _told(value: T | None, what: str) -> T:
    if value is None:
        raise AbsentError(f"npu-smi does not tell {what}")
    return value
