"""Samplers of simulated nodes: vendor tools, file trees and a clock."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from tests.support.clock import Clock
from tests.support.nvml_library import H100, NvmlLibrary
from tests.support.powercap import GREATEST, count, powercap
from tests.support.vendor_tools import RECORDED, AmdSmi, install_program

from aiperf_hpc.system.tools import AbsentError
from aiperf_hpc.telemetry import energy
from aiperf_hpc.telemetry.energy import Counter, Trapezoid
from aiperf_hpc.telemetry.sampler import Sampler, sampler
from aiperf_hpc.telemetry.values import AcceleratorUse, Meter, Part

GPU: dict[str, Any] = H100 | {"nvmlDeviceGetMemoryInfo": SimpleNamespace(total=2**36, used=2**33)}


class Processes:
    """Processes that use two cores."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def totals(self) -> tuple[float, int]:
        return 2.0 * self._clock.monotonic(), 2**30


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> NvmlLibrary:
    library = NvmlLibrary([dict(GPU), dict(GPU)])
    library.install(monkeypatch)
    return library


@pytest.fixture
def own(nvml: NvmlLibrary, clock: Clock, tmp_path: Path) -> Iterator[Sampler]:
    powercap(tmp_path)
    with sampler(Processes(clock), seconds=30.0, clock=clock, root=tmp_path) as each:
        yield each


def test_the_equipment_of_a_node(own: Sampler) -> None:
    found = own.equipment
    assert [str(name) for name in found.accelerators] == ["NVIDIA 0", "NVIDIA 1"]
    assert found.meters[0] == Meter(
        part=Part.ACCELERATORS, name="NVIDIA 0", source="NVML: energy counter", label="measured"
    )
    zones = ["package-0", "package-0 dram", "package-1", "package-1 dram"]
    assert [meter.name for meter in found.meters[2:]] == zones
    assert found.absent["AMD"] == "the package amdsmi is not installed; rocm-smi is not installed"
    assert own.quick


def test_energy_of_counters_including_one_that_wraps_around(
    own: Sampler, nvml: NvmlLibrary, clock: Clock, tmp_path: Path
) -> None:
    count(tmp_path, "intel-rapl:0", GREATEST)
    clock.advance(1.0)
    own.read()
    nvml.accelerators[0]["nvmlDeviceGetTotalEnergyConsumption"] += 1_400_000
    count(tmp_path, "intel-rapl:0", 49_999_999)
    count(tmp_path, "intel-rapl:1/intel-rapl:1:1", 21_000_000)
    clock.advance(1.0)
    sample = own.take()
    first = (GREATEST - 1_000_000) / 1e6  # Until it wraps around.
    assert sample.joules == pytest.approx((1400.0, 0.0, first + 50.0, 0.0, 0.0, 20.0))
    assert sample.covered == (2.0,) * 6
    assert sample.seconds == 2.0
    assert sum(own.take().joules) == 0.0


def test_a_sample_has_means_and_the_highest_temperature(
    own: Sampler, nvml: NvmlLibrary, clock: Clock
) -> None:
    own.take()
    for percent, celsius in ((100, 70), (50, 60)):
        nvml.accelerators[0] |= {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=percent, memory=1),
            "nvmlDeviceGetTemperature": {pynvml.NVML_TEMPERATURE_GPU: celsius},
        }
        clock.advance(1.0)
        own.read()
    sample = own.take()
    assert sample.accelerators == AcceleratorUse(
        utilization=(66.67, 100.0),  # The mean of 100, 50 and the sample's own 50.
        memory=(2.0**33, 2.0**33),
        watts=(500.0, 500.0),
        celsius=(70.0, 61.0),
        mhz=(1755.0, 1755.0),
        memory_mhz=(2619.0, 2619.0),
    )
    assert sample.node.processes_cpu == 200.0
    assert sample.node.processes_memory == 2**30


def test_power_is_integrated_if_there_is_no_counter(nvml: NvmlLibrary, clock: Clock) -> None:
    del nvml.accelerators[1]["nvmlDeviceGetTotalEnergyConsumption"]
    with sampler(Processes(clock), seconds=30.0, clock=clock) as own:
        second = own.equipment.meters[1]
        assert (second.source, second.label) == ("NVML: power", "measured")
        nvml.accelerators[1]["nvmlDeviceGetPowerUsage"] = 300_000
        clock.advance(1.0)
        own.read()
        clock.advance(1.0)
        # (500 + 300) / 2 W for a second, then 300 W for one.
        assert own.take().joules[1] == 700.0


def test_a_value_that_becomes_unavailable_is_recorded_once_and_so_is_its_return(
    own: Sampler, nvml: NvmlLibrary, clock: Clock
) -> None:
    counter = nvml.accelerators[0].pop("nvmlDeviceGetTotalEnergyConsumption")
    clock.advance(10.0)
    refused = own.take()
    assert refused.absent == {"NVIDIA 0: energy counter": "Not Supported"}
    assert refused.covered[:2] == (0.0, 10.0)
    clock.advance(10.0)
    assert own.take().absent == {}
    nvml.accelerators[0]["nvmlDeviceGetTotalEnergyConsumption"] = counter + 15_000_000
    clock.advance(10.0)
    back = own.take()
    assert back.absent == {"NVIDIA 0: energy counter": ""}
    # The counter ran on meanwhile, so no energy is lost.
    assert (back.joules[0], back.covered[0]) == (15_000.0, 30.0)


def test_an_unexpected_error_of_a_tool_is_recorded_and_retried_after_the_sample(
    own: Sampler, nvml: NvmlLibrary, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def broken(handle: object) -> int:
        calls.append(handle)
        raise ZeroDivisionError("what nobody thought of")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", broken)
    own.read()
    clock.advance(1.0)
    sample = own.take()
    assert len(calls) == 2, "once for each accelerator"
    own.read()
    assert len(calls) == 4
    why = "unexpected ZeroDivisionError: what nobody thought of"
    assert sample.absent == {"NVIDIA 0: power": why, "NVIDIA 1: power": why}
    assert sample.accelerators.watts == (500.0, 500.0), "the reading at the start"


def test_without_any_tool_the_node_is_sampled(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with sampler(Processes(clock), seconds=30.0, clock=clock, root=tmp_path) as own:
        assert not own.quick
        found = own.equipment
        clock.advance(30.0)
        sample = own.take()
    assert found.meters == ()
    assert found.absent["NVIDIA"] == "the package nvidia-ml-py is not installed"
    assert found.absent["RAPL"] == "the kernel provides no RAPL counters"
    assert found.absent["fabric"].startswith("the node has no port of InfiniBand")
    assert (sample.joules, sample.covered) == ((), ())
    assert sample.node.cpu is None or 0.0 <= sample.node.cpu <= 100.0


def test_infiniband_counters_are_in_words_of_four_bytes(clock: Clock, tmp_path: Path) -> None:
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("1000\n")
    (counters / "port_xmit_data").write_text("2000\n")
    with sampler(Processes(clock), seconds=30.0, clock=clock, root=tmp_path) as own:
        (counters / "port_rcv_data").write_text("1500\n")
        node = own.take().node
    assert (node.fabric_received, node.fabric_sent) == (2000.0, 0.0)


def test_amd_by_its_library(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", AmdSmi("amdsmi"))
    with sampler(Processes(clock), seconds=30.0, clock=clock) as own:
        assert own.quick
        meter = own.equipment.meters[0]
        assert (meter.source, meter.label) == ("amdsmi: power", "measured")
        clock.advance(2.0)
        sample = own.take()
    assert sample.accelerators == AcceleratorUse(
        utilization=(97.0,), memory=(3.0 * 2**20,), watts=(600.0,),
        celsius=(55.0,), mhz=(2100.0,), memory_mhz=(None,),
    )  # fmt: skip
    assert sample.joules == (1200.0,)
    assert own.equipment.absent["AMD 0: memory clock"] == "AMD's tools do not report 'clk'"


def test_amd_by_rocm_smi_is_an_estimate(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path
) -> None:
    install_program(monkeypatch, tmp_path, "rocm-smi", RECORDED / "rocm-smi-mi250.json")
    with sampler(Processes(clock), seconds=30.0, clock=clock) as own:
        assert not own.quick
        meter = own.equipment.meters[0]
        assert (meter.source, meter.label) == ("rocm-smi: power, read every 30 s", "estimated")
        clock.advance(30.0)
        sample = own.take()
    assert sample.accelerators.utilization == (10.0, 20.0)
    assert sample.joules == (89.0 * 30.0,) * 2


def test_ascend_by_its_program_is_an_estimate(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path
) -> None:
    install_program(monkeypatch, tmp_path, "npu-smi", RECORDED / "npu-smi-910b1.txt")
    with sampler(Processes(clock), seconds=30.0, clock=clock) as own:
        clock.advance(30.0)
        sample = own.take()
        (tmp_path / "npu-smi").write_text("#!/bin/sh\necho no driver >&2; exit 1\n")
        clock.advance(30.0)
        without = own.take()
    assert sample.accelerators.celsius[0] == 46.0
    assert sample.joules[0] == pytest.approx(88.4 * 30.0)
    assert without.absent == {"npu-smi": "npu-smi failed with status 1: no driver"}
    assert set(without.covered) == {0.0}
    assert set(without.accelerators.watts) == {None}


@pytest.mark.parametrize(
    ("gauge", "readings", "taken"),
    [
        # 999 steps, then one to 0 and 499,999 more: 500,999 microjoules in two seconds.
        (Counter(1e-6, 999_999), [(0, 999_000), (1, 999_999), (2, 499_999)], (0.500999, 2)),
        # An interval in which it may have wrapped around twice is not covered.
        (Counter(1.0, 99, 10.0), [(0, 0), (10, 50), (20.5, 60), (21.5, 70)], (60, 11)),
        # The interval of a reset is not covered.
        (Counter(1e-3), [(0, 5_000), (1, 7_000), (2, 100), (3, 600)], (2.5, 2)),
        (Counter(1e-3), [(0, 5_000), (1, None), (2, 7_000)], (2, 2)),
        # (100 + 300) / 2 for a second, then 300 for two.
        (Trapezoid(longest=5.0), [(0, 100), (1, 300), (3, 300)], (800, 3)),
        # Gaps in power are not covered.
        (Trapezoid(longest=5.0), [(0, 100), (5.1, 100), (6, None), (7, 100), (8, 100)], (100, 1)),
    ],
)
def test_energy_by_a_counter_and_by_power(
    gauge: Counter | Trapezoid, readings: list[tuple[float, int | None]], taken: tuple[float, float]
) -> None:
    for now, value in readings:
        gauge.read(now, value)
    assert gauge.take() == pytest.approx(taken)
    assert gauge.take() == (0.0, 0.0)


def test_zones_of_packages_and_memory_do_not_overlap(tmp_path: Path) -> None:
    powercap(tmp_path)
    found = energy.rapl_zones(tmp_path)
    assert [(zone.name, zone.part) for zone in found] == [
        ("package-0", Part.PROCESSORS), ("package-0 dram", Part.MEMORY),
        ("package-1", Part.PROCESSORS), ("package-1 dram", Part.MEMORY),
    ]  # fmt: skip
    assert (found[0].greatest, found[0].read()) == (GREATEST, 1_000_000)
    with pytest.raises(AbsentError, match="no RAPL counters"):
        energy.rapl_zones(tmp_path / "empty")


def test_counters_readable_by_root_only_are_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    powercap(tmp_path)

    def refused(zone: energy.Zone) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(zone.path))

    monkeypatch.setattr(energy.Zone, "read", refused)
    with pytest.raises(AbsentError, match=r"energy_uj: Permission denied; root may"):
        energy.rapl_zones(tmp_path)
