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
