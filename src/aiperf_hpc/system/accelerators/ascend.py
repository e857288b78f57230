"""Huawei Ascend accelerators, from the output of ``npu-smi``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from aiperf_hpc.errors import raising
from aiperf_hpc.system.accelerators.source import AcceleratorSource, Reads, numbered
from aiperf_hpc.system.description import Accelerator
from aiperf_hpc.system.tools import AbsentError, Probe, output_of

VENDOR = "Huawei"
_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)")
_CARD = re.compile(r"\|\s*(\d+)\s+(\S+)\s*\|\s*(\S+)\s*\|\s*(\S+)\s+(\S+)\s")
"""First row of a chip: card, name, health, power and temperature."""
_CHIP = re.compile(r"\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*([0-9A-Fa-f:.x]+)\s*\|\s*(\S+)\s+(.*?)\s*\|")
"""Second row of a chip: chip, physical number, address, load, pairs of used and total memory."""
_USED_OF_TOTAL = re.compile(r"(\d+)\s*/\s*(\d+)")


class ChipRow(NamedTuple):
    """A chip in the table of ``npu-smi info``; None for values that are not a number."""

    card: int
    chip: int
    model: str
    power_watts: float | None
    temperature_celsius: float | None
    pci_address: str
    load_percent: float | None
    """Utilization of the AI cores in percent."""
    memory_used_bytes: int | None
    """Used device memory: HBM or, if there is none, DDR."""
    memory_bytes: int | None


def table() -> str:
    """Return the table of all chips. Raises AbsentError."""
    return output_of("npu-smi", "info")


def parse_table(text: str) -> list[ChipRow]:
    """Return the chips in the table of ``npu-smi info``."""
    found = []
    first: re.Match[str] | None = None
    # The table of processes that follows has no addresses.
    for line in text.splitlines():
        second = _CHIP.match(line)
        if first is not None and second is not None:
            found.append(_row(first, second))
            first = None
        else:
            first = _CARD.match(line)
    return found


def driver_version(text: str) -> str | None:
    """Return the version in the table header, which is the driver's: npu-smi is part of it."""
    said = _VERSION.search(text)
    return said[1] if said else None


def fields(text: str) -> dict[str, str]:
    """Return the ``name : value`` lines of the first chip in the output of ``npu-smi info -t``.

    The first repeated name starts the section of another chip or of the board controller.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = (part.strip() for part in line.partition(" : "))
        if colon and name in found:
            break
        if colon:
            found[name] = value
    return found


def accelerators() -> tuple[Accelerator, ...]:
    """Return all accelerators of this node. Raises AbsentError if there are none."""
    text = table()
    driver = driver_version(text)
    return tuple(_describe(row, index, driver) for index, row in enumerate(_chips(text)))


def _chips(text: str) -> list[ChipRow]:
    if not (rows := parse_table(text)):
        raise AbsentError("npu-smi lists no accelerator")
    return rows


def _describe(row: ChipRow, index: int, driver: str | None) -> Accelerator:
    probe = Probe()
    where = ("-i", str(row.card), "-c", str(row.chip))
    probe.absent |= dict.fromkeys(_NOT_TOLD, "npu-smi does not report it")
    if driver is None:
        probe.absent["driver"] = "npu-smi did not print its version"
    if row.memory_bytes is None:
        probe.absent["memory_bytes"] = "npu-smi printed no size"
    return Accelerator(
        vendor=VENDOR,
        model=row.model if row.model.startswith("Ascend") else f"Ascend {row.model}",
        index=index,
        driver=driver,
        pci_address=row.pci_address,
        memory_bytes=row.memory_bytes,
        uuid=probe.read("uuid", lambda: _field("board", "VDie ID", where)),
        max_clock_mhz=probe.read(
            "max_clock_mhz", lambda: _number(_field("common", "Aicore Freq(MHZ)", where[:2]))
        ),
        absent=probe.absent,
    )


_NOT_TOLD = (
    "max_memory_clock_mhz",
    "power_limit_watts",
    "default_power_limit_watts",
    "max_power_limit_watts",
    "pcie",
    "links",
    "partitioned",
)


def _field(kind: str, name: str, where: tuple[str, ...]) -> str:
    said = fields(output_of("npu-smi", "info", "-t", kind, *where))
    if said.get(name, "NA") == "NA":
        raise AbsentError(f"npu-smi does not report '{name}'")
    return said[name]


def _number(text: str) -> float:
    with raising(AbsentError(f"npu-smi reports '{text}'"), ValueError):
        return float(text)


def _row(first: re.Match[str], second: re.Match[str]) -> ChipRow:
    card, model, _, power, temperature = first.groups()
    chip, _, address, load, memory = second.groups()
    sizes = [(int(used), int(total)) for used, total in _USED_OF_TOTAL.findall(memory)]
    used, total = next(((u, t) for u, t in reversed(sizes) if t), (None, None))
    return ChipRow(
        card=int(card),
        chip=int(chip),
        model=model,
        power_watts=_measured(power),
        temperature_celsius=_measured(temperature),
        pci_address=address,
        load_percent=_measured(load),
        memory_used_bytes=None if used is None else used * 2**20,
        memory_bytes=None if total is None else total * 2**20,
    )


def _measured(text: str) -> float | None:
    """Return a number, or None for placeholders such as ``NA`` and ``-``."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


T = TypeVar("T")


@contextmanager
def ascend_source() -> Iterator[AcceleratorSource]:
    """Open the telemetry of all accelerators. Raises AbsentError if there are none."""
    chips = [(row.card, row.chip) for row in _chips(table())]

    def look() -> list[Callable[[], Reads]]:
        rows = {(row.card, row.chip): row for row in parse_table(table())}
        return [partial(_reads, rows.get(chip)) for chip in chips]

    yield AcceleratorSource("npu-smi", numbered(VENDOR, range(len(chips))), look, cheap=False)


def _reads(found: ChipRow | None) -> Reads:
    row = _known(found, "this chip")
    return {
        "utilization": lambda: _known(row.load_percent, "the load"),
        "memory": lambda: float(_known(row.memory_used_bytes, "the memory in use")),
        "watts": lambda: _known(row.power_watts, "its power"),
        "celsius": lambda: _known(row.temperature_celsius, "its temperature"),
        "mhz": lambda: _known(None, "its clock"),
        "memory_mhz": lambda: _known(None, "the clock of its memory"),
    }


def _known(value: T | None, what: str) -> T:
    if value is None:
        raise AbsentError(f"npu-smi does not report {what}")
    return value
