"""The energy of processors and memory by RAPL, as Linux shows it in ``/sys/class/powercap``.

The counters are Intel's and AMD's own. Since Linux 5.10 they are readable by root alone unless a
site says otherwise (CVE-2020-8694).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.system.kernel_files import ROOT, entries, number_of, text_of
from aiperf_hpc.system.tools import AbsentError
from aiperf_hpc.telemetry.values import Part


class Zone(NamedTuple):
    """A counter of energy in microjoules."""

    name: str
    """Such as ``package-0``, or ``package-0 dram``."""
    part: Part
    path: Path
    greatest: int
    """The value after which the counter begins anew at 0."""

    def read(self) -> int:
        """Return the counter. Raises OSError and ValueError."""
        return number_of(self.path)


def rapl_zones(root: Path = ROOT) -> list[Zone]:
    """Return the zones whose energies add up: each package, and memory where it is told apart.

    Cores and graphics are in their package; memory is not. The whole platform, which few have, has
    all of them in it.

    Raises:
        AbsentError: there is none, or none that may be read.
        OSError, ValueError: the kernel's files are not as they should be.
    """
    # Not intel-rapl-mmio, which counts the same package again.
    found = [
        zone
        for package in entries(root / "sys/class/powercap")
        if package.name.startswith("intel-rapl:") and package.name.count(":") == 1
        for zone in _zones(package)
    ]
    if not found:
        raise AbsentError("the kernel shows no counters of RAPL")
    try:
        for zone in found:
            zone.read()
    except PermissionError:
        raise AbsentError(
            f"{found[0].path}: Permission denied; root may let others read it"
        ) from None
    return found


def _zones(package: Path) -> Iterator[Zone]:
    name = text_of(package / "name")
    if name.startswith("package"):
        yield _zone(package, name, Part.PROCESSORS)
        for below in entries(package):
            if below.name.startswith(f"{package.name}:") and text_of(below / "name") == "dram":
                yield _zone(below, f"{name} dram", Part.MEMORY)


def _zone(folder: Path, name: str, part: Part) -> Zone:
    return Zone(name, part, folder / "energy_uj", number_of(folder / "max_energy_range_uj"))
