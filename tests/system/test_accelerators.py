"""Accelerators by their vendors' tools: a fake NVML, and recorded output of the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.nvml_library import DRIVER_NOT_LOADED, H100, NvmlLibrary
from tests.support.vendor_tools import RECORDED, AmdSmi, install_program

from aiperf_hpc.system.accelerators import amd, ascend, find_accelerators, least_memory, nvidia
from aiperf_hpc.system.description import Accelerator
from aiperf_hpc.system.tools import AbsentError


def test_each_vendor_without_an_accelerator_has_a_reason() -> None:
    found = find_accelerators()
    vendors = {each.vendor for each in found.accelerators}
    assert vendors | found.absent.keys() == {"NVIDIA", "AMD", "Huawei"}
    assert all(found.absent.values())


def test_each_unknown_property_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    NvmlLibrary([{"nvmlDeviceGetName": b"NVIDIA T4"}]).install(monkeypatch)
    table = f'[ "$2" = -t ] && exit 1; exec /bin/cat {RECORDED / "npu-smi-310p.txt"}'
    install_program(monkeypatch, tmp_path, "npu-smi", table)
    install_program(monkeypatch, tmp_path, "rocm-smi", RECORDED / "rocm-smi-rx7900.json")
    found = find_accelerators()
    assert [each.model for each in found.accelerators] == [
        "NVIDIA T4", "Radeon RX 7900 XT", "Ascend 310P3", "Ascend 310P3",
    ]  # fmt: skip
    for each in found.accelerators:
        unknown = {name for name in Accelerator.model_fields if getattr(each, name) is None}
        assert unknown == each.absent.keys()
        assert all(each.absent.values())


def test_least_memory_is_unknown_without_accelerators_or_with_partitioned_ones() -> None:
    one, other = (Accelerator(vendor="V", model="A", index=n, memory_bytes=n) for n in (2, 1))
    divided = other.model_copy(update={"partitioned": True})
    assert least_memory([one, other]) == 1
    assert [least_memory(each) for each in ([], [one, divided])] == [None, None]


def test_nvidia_accelerators_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    library = NvmlLibrary([H100, {**H100, "nvmlDeviceGetMigMode": (1, 1)}])
    library.install(monkeypatch)
    first, second = nvidia.accelerators()
    assert first == Accelerator(
        vendor="NVIDIA",
        model="NVIDIA H100 80GB HBM3",
        index=0,
        uuid="GPU-5d4f7a9c-0b5e-4c5c-9a63-000000000000",
        pci_address="00000000:18:00.0",
        memory_bytes=85_520_809_984,
        driver="550.54.15",
        max_clock_mhz=1980.0,
        max_memory_clock_mhz=2619.0,
        power_limit_watts=650.0,
        default_power_limit_watts=700.0,
        max_power_limit_watts=700.0,
        pcie="PCIe 5.0 x16",
        links=18,
        partitioned=False,
    )
    assert second.index == 1
    assert second.partitioned is True
    assert nvidia.cuda_version() == "12.4"
    assert library.open == 0


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (NvmlLibrary([], status=DRIVER_NOT_LOADED), "NVML: Driver Not Loaded"),
        (NvmlLibrary([]), "lists no accelerator"),
        (None, "nvidia-ml-py is not installed"),
    ],
)
def test_nvidia_without_package_driver_or_accelerators(
    monkeypatch: pytest.MonkeyPatch, library: NvmlLibrary | None, why: str
) -> None:
    if library is None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        library.install(monkeypatch)
    with pytest.raises(AbsentError, match=why):
        nvidia.accelerators()


def test_tables_of_ascend_chips() -> None:
    """Two chips of a card share its power; chips without HBM have DDR."""
    rows = ascend.parse_table((RECORDED / "npu-smi-910b1.txt").read_text("utf-8"))
    assert [row.card for row in rows] == [0, 1, 7]
    assert rows[2] == ascend.ChipRow(
        7, 0, "910B1", 92.7, 48.0, "0000:42:00.0", 0.0, 4174 * 2**20, 65536 * 2**20
    )
    rows = ascend.parse_table((RECORDED / "npu-smi-910c.txt").read_text("utf-8"))
    assert [(r.card, r.chip, r.power_watts) for r in rows] == [
        (0, 0, 178.5), (0, 1, None), (1, 0, 186.3)
    ]  # fmt: skip
    rows = ascend.parse_table((RECORDED / "npu-smi-310p.txt").read_text("utf-8"))
    assert [(r.memory_used_bytes, r.memory_bytes, r.power_watts) for r in rows] == [
        (1397 * 2**20, 44280 * 2**20, None), (1520 * 2**20, 43693 * 2**20, None)
    ]  # fmt: skip


def test_ascend_accelerators_by_npu_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = (
        'case "$3" in\n'
        f"  common) exec /bin/cat {RECORDED}/npu-smi-910b1-common.txt ;;\n"
        f"  board) exec /bin/cat {RECORDED}/npu-smi-board.txt ;;\n"
        f"  *) exec /bin/cat {RECORDED}/npu-smi-910b1.txt ;;\nesac"
    )
    install_program(monkeypatch, tmp_path, "npu-smi", script)
    first, *others = ascend.accelerators()
    assert [each.index for each in others] == [1, 2]
    assert (first.model, first.driver) == ("Ascend 910B1", "23.0.rc2")
    assert first.uuid == "42C711D4 20B03704 4A10C8D4 14CC040A D2102003"
    assert (first.max_clock_mhz, first.memory_bytes) == (1800.0, 64 * 2**30)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'dcmi module initialize failed. ret is -8005'; exit 1", "status 1: dcmi .* -8005"),
        ("exec sleep 60", "did not respond"),
    ],
)
def test_a_vendor_whose_tool_fails_or_hangs_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, why: str
) -> None:
    install_program(monkeypatch, tmp_path, "npu-smi", script)
    monkeypatch.setattr("aiperf_hpc.system.tools.TOOL_SECONDS", 0.5)
    with pytest.raises(AbsentError, match=why):
        ascend.accelerators()


def test_amd_accelerators_by_rocm_smi() -> None:
    first, second = amd.parse_rocm_smi((RECORDED / "rocm-smi-mi250.json").read_text("utf-8"))
    assert (first.model, first.driver) == ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "6.2.4")
    assert (first.uuid, first.pci_address) == ("0x719d230578348e8c", "0000:2F:00.0")
    assert (first.max_power_limit_watts, first.memory_bytes, second.index) == (560.0, None, 1)
    (third,) = amd.parse_rocm_smi((RECORDED / "rocm-smi-rx7900.json").read_text("utf-8"))
    assert (third.model, third.driver) == ("Radeon RX 7900 XT", None)
    assert third.memory_bytes == 21_458_059_264
    for text in ("", "not JSON", "[]", "3"):
        with pytest.raises(AbsentError, match="rocm-smi did not print JSON"):
            amd.parse_rocm_smi(text)


def test_amd_accelerators_by_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    library = AmdSmi("amdsmi")
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    (found,) = amd.accelerators()
    assert (found.model, found.driver) == ("AMD Instinct MI300X", "6.7.0")
    assert found.memory_bytes == 196_592 * 2**20
    assert (found.max_clock_mhz, found.max_memory_clock_mhz) == (2100.0, None)
    assert found.absent["max_memory_clock_mhz"] == "AMD's tools do not report 'max_clk'"
    assert found.power_limit_watts == 750.0
    assert library.open == 0


@pytest.mark.parametrize("function", ["amdsmi_init", "amdsmi_get_processor_handles"])
def test_an_error_of_amdsmi_is_the_reason(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    library = AmdSmi("amdsmi")

    def refuse() -> None:
        raise library.AmdSmiException("no\n\tdriver")

    monkeypatch.setattr(library, function, refuse, raising=False)
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    with pytest.raises(AbsentError, match="^amdsmi: no driver; rocm-smi is not installed$"):
        amd.accelerators()
    with pytest.raises(AbsentError, match="^amdsmi: no driver; rocm-smi"), amd.amd_source():
        pass
    assert library.open == 0


def test_amdsmi_without_its_shared_object_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As release 7.0.2 behaves.
    package = "print('Unable to find libamd_smi.so library')\n{}['libamd_smi.so']\n"
    (tmp_path / "amdsmi.py").write_text(package)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AbsentError, match=r"no AMD library: 'libamd_smi.so'; rocm-smi is not"):
        amd.accelerators()
    assert capsys.readouterr().out == ""
