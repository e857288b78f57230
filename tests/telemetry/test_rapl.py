from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.support.powercap import powercap

from aiperf_hpc.system.tools import AbsentError
from aiperf_hpc.telemetry import energy
from aiperf_hpc.telemetry.values import Part


def test_packages_and_memory_add_up_and_nothing_counts_twice(tmp_path: Path) -> None:
    powercap(tmp_path)
    found = energy.rapl_zones(tmp_path)
    assert [(zone.name, zone.part) for zone in found] == [
        ("package-0", Part.PROCESSORS),
        ("package-0 dram", Part.MEMORY),
        ("package-1", Part.PROCESSORS),
        ("package-1 dram", Part.MEMORY),
    ]
    assert found[0].greatest == 262_143_328_850
    assert found[0].read() == 1_000_000


def test_without_counters_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="no counters of RAPL"):
        energy.rapl_zones(tmp_path)


def test_counters_that_only_root_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    powercap(tmp_path)

    def refused(zone: energy.Zone) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(zone.path))

    monkeypatch.setattr(energy.Zone, "read", refused)
    with pytest.raises(AbsentError, match=r"energy_uj: Permission denied; root may"):
        energy.rapl_zones(tmp_path)
