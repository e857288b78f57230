"""``/sys/class/powercap`` of a machine of two processors, as Linux makes it."""

from __future__ import annotations

from pathlib import Path

GREATEST = 262_143_328_850
"""Microjoules after which Intel's counters begin anew."""


def powercap(root: Path) -> None:
    """Write the zones of two packages with cores and memory, a platform and a double."""
    _zone(root, "intel-rapl", None)  # The kind of control, which is a folder too.
    for number in (0, 1):
        _zone(root, f"intel-rapl:{number}", f"package-{number}")
        for below, name in enumerate(("core", "dram")):
            _zone(root, f"intel-rapl:{number}/intel-rapl:{number}:{below}", name)
            _zone(root, f"intel-rapl:{number}:{below}", name)
    _zone(root, "intel-rapl:2", "psys")
    _zone(root, "intel-rapl-mmio:0", "package-0")


def count(root: Path, zone: str, microjoules: int) -> None:
    """Set the counter of a zone, such as ``intel-rapl:0``."""
    (root / "sys/class/powercap" / zone / "energy_uj").write_text(f"{microjoules}\n")


def _zone(root: Path, folder: str, name: str | None) -> None:
    path = root / "sys/class/powercap" / folder
    path.mkdir(parents=True, exist_ok=True)
    if name is not None:
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{GREATEST}\n")
        (path / "energy_uj").write_text("1000000\n")
