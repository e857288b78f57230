"""Bounds of a plausible rate: the least operations executed, and published peaks."""

from __future__ import annotations

from fractions import Fraction

import pytest

from aiperf_hpc.graph import (
    AtrousConv2D,
    Conv2D,
    Conv3D,
    ConvTranspose2D,
    Dense,
    DepthwiseConv2D,
    Layer,
    MaxPool2D,
    PositionwiseDense,
    ProposalHead,
    RegionConv2D,
    Shape,
)
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.rate_bounds import (
    DEVICES,
    cpu_peak,
    least_executed,
    published_peak,
    share_inside,
)
from aiperf_hpc.system.description import Processors


@pytest.mark.parametrize(
    ("layer", "shape", "share"),
    [
        (Conv2D(8, 7), (7, 7, 4), Fraction(37, 49) ** 2),  # 4 + 5 + 6 + 7 + 6 + 5 + 4 taps of 49.
        (Conv2D(8, 7), (1, 1, 4), Fraction(1, 49)),
        (Conv2D(8, 1), (7, 7, 4), Fraction(1)),
        (Conv2D(8, 3, 2), (8, 8, 4), Fraction(11, 12) ** 2),  # The first of 4 places lacks one.
        (Conv2D(8, 3), (8, 4, 4), Fraction(22, 24) * Fraction(10, 12)),
        (Conv3D(8, 2), (4, 4, 4, 2), Fraction(7, 8) ** 3),  # The last place lacks one, behind.
        (Conv2D(8, 3, bias=True), (4, 4, 4), Fraction(10, 12) ** 2),
        (DepthwiseConv2D(3, 2), (8, 8, 4), Fraction(11, 12) ** 2),
        (DepthwiseConv2D(3, 1, 2), (4, 4, 4), Fraction(8, 12) ** 2),  # 2 + 4 + 2 taps.
        (AtrousConv2D(8, 3, 18), (6, 9, 4), Fraction(1, 9)),  # The middle one alone.
        (AtrousConv2D(8, 3, 6), (9, 48, 4), Fraction(15, 27) * Fraction(132, 144)),
        (ConvTranspose2D(8, 3, 2), (4, 4, 4), Fraction(11, 12) ** 2),  # The first reaches out.
        (RegionConv2D(8, 3), (5, 7, 7, 4), Fraction(19, 21) ** 2),
        (Dense(8), (4,), Fraction(1)),
        (PositionwiseDense(8), (5, 4), Fraction(1)),
        (MaxPool2D(3, 2), (8, 8, 4), Fraction(1)),
        # 9 * 6 kernel elements of 4 * 4 places, 10/12 an axis, and 6 * 15 behind them.
        (
            ProposalHead(6, 3),
            (4, 4, 1),
            (54 * Fraction(10, 12) ** 2 + 90) / 144,
        ),
    ],
)
def test_taps_on_padding_are_left_out(layer: Layer, shape: Shape, share: Fraction) -> None:
    assert share_inside(layer, shape) == share


def test_of_resnet50_at_224_little_is_left_out() -> None:
    graph = resnet50((224, 224, 3), 1000)
    least, counted = least_executed(graph), count(graph)
    updates = sum(layer.operations.update for layer in counted.layers.values())
    assert 0.95 * counted.forward < least.forward < counted.forward
    assert 0.95 * counted.training < least.training < counted.training - updates


# As frameworks name devices: 10^12 operations a second in fp32, tf32, bf16 and fp16.
PUBLISHED: dict[str, tuple[float | None, ...]] = {
    "Tesla P100-SXM2-16GB": (10.6, None, None, 21.2),
    "Tesla P100-PCIE-16GB": (9.3, None, None, 18.7),
    "Tesla V100S-PCIE-32GB": (16.4, None, None, 130.0),
    "Tesla V100-SXM2-16GB": (15.7, None, None, 125.0),
    "Tesla V100-PCIE-32GB": (14.0, None, None, 112.0),
    "Tesla T4": (8.1, None, None, 65.0),
    "NVIDIA A100-SXM4-40GB": (19.5, 156.0, 312.0, 312.0),
    "NVIDIA A100 80GB PCIe": (19.5, 156.0, 312.0, 312.0),
    "NVIDIA A800 80GB PCIe": (19.5, 156.0, 312.0, 312.0),
    "NVIDIA A30": (10.3, 82.0, 165.0, 165.0),
    "NVIDIA A10": (31.2, 62.5, 125.0, 125.0),
    "NVIDIA A40": (37.4, 74.8, 149.7, 149.7),
    "NVIDIA L4": (30.3, 60.0, 121.0, 121.0),
    "NVIDIA L40S": (91.6, 183.0, 362.05, 362.05),
    "NVIDIA L40": (90.5, 90.5, 181.05, 181.05),
    "NVIDIA H20": (44.0, 74.0, 148.0, 148.0),
    "NVIDIA H100 NVL": (60.0, 417.5, 835.5, 835.5),
    "NVIDIA H100 PCIe": (51.0, 378.0, 756.0, 756.0),
    "NVIDIA H100 80GB HBM3": (67.0, 494.5, 989.5, 989.5),
    "NVIDIA H200": (67.0, 494.5, 989.5, 989.5),
    "NVIDIA GH200 480GB": (67.0, 494.5, 989.5, 989.5),
    "NVIDIA GB200": (80.0, 1250.0, 2500.0, 2500.0),
    "NVIDIA B200": (75.0, 1125.0, 2250.0, 2250.0),
    "AMD Instinct MI100": (46.1, None, 92.3, 184.6),
    "AMD Instinct MI210": (45.3, None, 181.0, 181.0),
    "AMD Instinct MI250X": (47.9, None, 191.5, 191.5),
    "AMD Instinct MI250": (45.3, None, 181.1, 181.1),
    "AMD Instinct MI300A": (122.6, 490.3, 980.6, 980.6),
    "AMD Instinct MI300X": (163.4, 653.7, 1307.4, 1307.4),
    "AMD Instinct MI325X": (163.4, 653.7, 1307.4, 1307.4),
    "AMD Instinct MI350X": (144.2, None, 2306.9, 2306.9),
    "AMD Instinct MI355X": (157.3, None, 2516.6, 2516.6),
    "Ascend910A": (None, None, None, 256.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_device_is_known_by_its_name(name: str) -> None:
    """What is not published of a precision cannot be above what is of another."""
    published = PUBLISHED[name]
    most = max(filter(None, published))
    for precision, tera in zip(("fp32", "tf32", "bf16", "fp16"), published, strict=True):
        assert published_peak(name, precision) == pytest.approx((tera or most) * 1e12, rel=1e-12)


@pytest.mark.parametrize("name", ["Example A", "Ascend910B3", "NVIDIA A1000", ""])
def test_of_other_devices_nothing_is_published(name: str) -> None:
    assert published_peak(name, "fp16") is None


def test_fewer_bits_are_no_slower() -> None:
    for tera in DEVICES.values():
        ordered = [tera[each] for each in ("fp32", "tf32", "bf16", "fp16") if each in tera]
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
