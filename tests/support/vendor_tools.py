"""AMD's Python package and vendors' programs with made-up accelerators."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

RECORDED = Path(__file__).parents[1] / "data" / "accelerators"
"""What vendors' programs printed on real machines."""


class AmdSmi(ModuleType):
    """The package ``amdsmi``, with what it returns on a machine of one accelerator."""

    class AmdSmiException(Exception): ...  # noqa: N818 -- the package's name

    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="HOTSPOT")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="CURRENT")
    open = 0

    def amdsmi_init(self) -> None:
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [7]

    def amdsmi_get_temp_metric(self, _: int, kind: str, metric: str) -> int:
        assert (kind, metric) == ("HOTSPOT", "CURRENT")
        return 55

    def amdsmi_get_clock_info(self, _: int, kind: str) -> dict[str, object]:
        return dict.fromkeys(("clk", "max_clk"), 2100 if kind == "GFX" else "N/A")

    def __getattr__(self, function: str) -> object:
        return lambda _: ANSWERS[function]


ANSWERS: dict[str, object] = {
    "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "vendor_name": "N/A"},
    "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.7.0"},
    "amdsmi_get_gpu_vram_info": {"vram_size": 196_592},
    "amdsmi_get_gpu_device_uuid": "f1ff74a1-0000-1000-8049-c6094fb3fd25",
    "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
    "amdsmi_get_power_cap_info": dict.fromkeys(
        ("power_cap", "default_power_cap", "max_power_cap"), 750_000_000
    ),
    "amdsmi_get_gpu_activity": {"gfx_activity": 97, "umc_activity": "N/A", "mm_activity": "N/A"},
    "amdsmi_get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 3},
    "amdsmi_get_power_info": {"current_socket_power": 600, "average_socket_power": "N/A"},
}
"""What the package's other functions return for an accelerator."""


def install_program(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, script: str | Path
) -> None:
    """Put a program on the path: a shell script, or one that prints a file."""
    program = folder / name
    text = f"exec /bin/cat {script}" if isinstance(script, Path) else script
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
