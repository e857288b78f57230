"""The peaks that makers publish, by the names that frameworks give their devices."""

from __future__ import annotations

import pytest

from aiperf_hpc.ops_counter.published_peaks import DEVICES, cpu_peak, published_peak
from aiperf_hpc.system.description import Processors


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "tf32", 378.0),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA GH200 480GB", "fp32", 67.0),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5),
        ("NVIDIA A100 80GB PCIe", "tf32", 156.0),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-SXM2-16GB", "bf16", 125.0),  # Nothing is published, so no more than fp16.
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA B200", "bf16", 2250.0),
        ("AMD Instinct MI250X", "fp32", 47.9),
        ("AMD Instinct MI300X", "fp16", 1307.4),
        ("Ascend910A", "fp16", 256.0),
    ],
)
def test_a_device_is_known_by_its_name(name: str, precision: str, tera: float) -> None:
    assert published_peak(name, precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize("name", ["Example A", "Ascend910B3", "NVIDIA A1000", ""])
def test_of_other_devices_nothing_is_published(name: str) -> None:
    assert published_peak(name, "fp16") is None


def test_every_row_has_a_source_and_fewer_bits_are_no_slower() -> None:
    for row in DEVICES:
        assert row.source.startswith("https://")
        ordered = [row.tera[each] for each in ("fp32", "tf32", "bf16", "fp16") if each in row.tera]
        assert ordered == sorted(ordered)


def processors(*vectors: str, mhz: float | None = None) -> Processors:
    return Processors(architecture="x86_64", threads=8, max_mhz=mhz, vectors=vectors)


def test_a_cpus_peak_is_cores_by_clock_by_width_by_two_units_by_two() -> None:
    """4 cores x 3 GHz x 16 numbers of 512 bits x 2 units x (multiplication and addition)."""
    wide = processors("avx2", "avx512f", mhz=3000.0)
    assert cpu_peak(4, wide, "fp32") == 4 * 3e9 * 16 * 2 * 2
    assert cpu_peak(4, wide, "bf16") == cpu_peak(4, wide, "fp32")  # Computed as fp32.
    assert cpu_peak(4, processors("avx512f", "amx_bf16", mhz=2000.0), "bf16") == 4 * 2e9 * 1024
    assert cpu_peak(1, processors("avx2"), "fp32") == 32 * 6.2e9  # Of an unknown clock.


def test_of_unknown_vectors_no_peak_follows() -> None:
    assert cpu_peak(4, processors("vsx"), "fp32") is None
    assert cpu_peak(4, processors(), "fp32") is None
