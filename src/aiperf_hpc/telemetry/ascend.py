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
        if row is None:
            self.asker.ask(name, lambda: _told(None, "this chip"))
            return Reading()
        return self.asker.reading(
            name,
            {
                "utilisation": lambda: _told(row.load_percent, "the load"),
                "memory": lambda: float(_told(row.memory_used_bytes, "the memory in use")),
                "watts": lambda: _told(row.power_watts, "its power"),
                "celsius": lambda: _told(row.temperature_celsius, "its temperature"),
                "mhz": lambda: _told(None, "its clock"),
                "memory_mhz": lambda: _told(None, "the clock of its memory"),
            },
        )


def _told(value: T | None, what: str) -> T:
    if value is None:
        raise AbsentError(f"npu-smi does not tell {what}")
    return value
