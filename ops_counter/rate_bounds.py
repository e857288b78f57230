"""Bounds of a plausible rate: the operations that must be executed, and a device's published peak.

Counts include, by definition, kernel taps on padding and an update for each sample. An
implementation may omit the former and updates once per batch, so recorded rates are compared
without both (docs/decisions/plausibility.md). Peaks of accelerators are the vendors' figures in
operations per second without sparsity, by the device names that frameworks report. Peaks of CPUs
follow from cores, clock, vector width and fused multiply-add units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from aiperf_hpc.graph import Graph, Layer, Shape, SlidingWindow, layers
from aiperf_hpc.graph.layers.regions import SHARED_KERNEL
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.system.description import Processors

TERA: Final = 1e12
DEVICES: Final[Mapping[str, Mapping[str, float]]] = {
    # NVIDIA. fp32 is that of the vector units; tf32, bf16 and fp16 are the Tensor Cores'.
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-p100/pdf/nvidia-tesla-p100-datasheet.pdf
    r"P100.*SXM2": {"fp32": 10.6, "fp16": 21.2},
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-p100/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf
    r"P100": {"fp32": 9.3, "fp16": 18.7},
    # https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    r"V100S": {"fp32": 16.4, "fp16": 130.0},
    r"V100.*SXM": {"fp32": 15.7, "fp16": 125.0},
    r"V100": {"fp32": 14.0, "fp16": 112.0},
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    r"\bT4\b": {"fp32": 8.1, "fp16": 65.0},
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
    r"\bA(100|800)\b": {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/products/a30-gpu/pdf/a30-datasheet.pdf
    r"\bA30\b": {"fp32": 10.3, "tf32": 82.0, "bf16": 165.0, "fp16": 165.0},
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf
    r"\bA10\b": {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0},
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a40/nvidia-a40-datasheet.pdf
    r"\bA40\b": {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7},
    # https://www.nvidia.com/en-us/data-center/l4/
    r"\bL4\b": {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0},
    # https://www.nvidia.com/en-us/data-center/l40s/
    r"\bL40S\b": {"fp32": 91.6, "tf32": 183.0, "bf16": 362.05, "fp16": 362.05},
    # https://www.nvidia.com/en-us/data-center/l40/
    r"\bL40\b": {"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05},
    # https://www.nvidia.com/en-us/data-center/hgx/
    r"\bH20\b": {"fp32": 44.0, "tf32": 74.0, "bf16": 148.0, "fp16": 148.0},
    # https://www.nvidia.com/en-us/data-center/h200/
    r"\bH[12]00 NVL": {"fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5},
    # https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet
    r"\bH(100|800) PCIe": {"fp32": 51.0, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0},
    # https://www.nvidia.com/en-us/data-center/h200/
    r"\bG?H([12]00|800)\b": {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5},
    # https://www.nvidia.com/en-us/data-center/gb200-nvl72/
    r"\bGB200\b": {"fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0},
    # https://www.nvidia.com/en-us/data-center/hgx/
    r"\bB200\b": {"fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0},
    # AMD. fp32 is that of the matrix cores. Frameworks see each half of an MI250 as a device.
    # https://www.amd.com/en/products/accelerators/instinct/mi100.html
    r"\bMI100\b": {"fp32": 46.1, "bf16": 92.3, "fp16": 184.6},
    # https://www.amd.com/en/products/accelerators/instinct/mi200/mi210.html
    r"\bMI210\b": {"fp32": 45.3, "bf16": 181.0, "fp16": 181.0},
    # https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html
    r"\bMI250X\b": {"fp32": 47.9, "bf16": 191.5, "fp16": 191.5},
    # https://www.amd.com/en/products/accelerators/instinct/mi200/mi250.html
    r"\bMI250\b": {"fp32": 45.3, "bf16": 181.1, "fp16": 181.1},
    # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300a.html
    r"\bMI300A\b": {"fp32": 122.6, "tf32": 490.3, "bf16": 980.6, "fp16": 980.6},
    # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
    r"\bMI3(00|25)X\b": {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4},
    # https://www.amd.com/en/products/accelerators/instinct/mi350/mi350x.html
    r"\bMI350X\b": {"fp32": 144.2, "bf16": 2306.9, "fp16": 2306.9},
    # https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html
    r"\bMI355X\b": {"fp32": 157.3, "bf16": 2516.6, "fp16": 2516.6},
    # Huawei publishes no figures of later devices.
    # https://www.huawei.com/en/news/2019/8/huawei-ascend-910-most-powerful-ai-processor
    r"Ascend ?910(A|ProA|PremiumA)?$": {"fp16": 256.0},
}
"""Published peaks in 10^12 operations/s by precision, of the matrix units if they support it.

The key is a regular expression for a part of the device name that frameworks report; the first one
that matches is used. The comment before a row, or before several, is its source.
"""
FASTEST_MHZ: Final = 6200.0
"""Upper bound of any processor's clock, if the kernel does not report the maximum."""
CYCLE: Final[Mapping[str, Mapping[str, float]]] = {
    "amx_bf16": {"fp32": 64.0, "bf16": 1024.0, "fp16": 64.0},
    "amx_fp16": {"fp32": 64.0, "bf16": 1024.0, "fp16": 1024.0},
    "avx512_bf16": {"fp32": 64.0, "bf16": 128.0},
    "avx512_fp16": {"fp32": 64.0, "fp16": 128.0},
    "avx512f": {"fp32": 64.0},
    "avx2": {"fp32": 32.0},
    "avx": {"fp32": 16.0},
    "sve": {"fp32": 64.0, "fp16": 128.0, "bf16": 256.0},
    "asimd": {"fp32": 32.0, "fp16": 64.0, "bf16": 128.0},
}
"""Maximum operations per core and cycle by instruction set: two 512-bit fused multiply-add units on
x86 and with SVE; 1,024 in bf16 with Intel's AMX (Intel's optimization manual). Lower precisions
without their own instructions run as fp32."""


class LeastOperations(NamedTuple):
    """Operations per sample that direct convolution cannot omit."""

    training: int
    forward: int


def least_executed(graph: Graph) -> LeastOperations:
    """Return a graph's count without taps on padding and without updates.

    Raises:
        CountError: a layer has no formula.
    """
    counted = count(graph).layers
    training = forward = Fraction(0)
    for node in graph.nodes:
        operations = counted[node.name].operations
        share = share_inside(node.layer, *graph.input_shapes(node.name))
        forward += share * operations.forward
        training += share * (operations.forward + operations.backward - operations.update)
    return LeastOperations(math.floor(training), math.floor(forward))


def share_inside(layer: Layer, *inputs: Shape) -> Fraction:
    """Return the fraction of a layer's forward operations with taps inside its input.

    For a kernel of 7 on 7 positions it is 37/49 per axis, squared for an image: 0.57. It is 1 for
    layers without a kernel.
    """
    match layer:
        case layers.ProposalHead():
            return _of_proposals(layer, *inputs)
        case layers.ConvTranspose2D():
            # Its taps lie in its output: those of the convolution in the opposite direction.
            return _inside(SlidingWindow(layer.kernel, layer.stride), layer.output_shape(*inputs))
        case layers.RegionConv2D():
            return _inside(layer.window, inputs[0][1:])
        case _ if "kernel" in layer.decayed:
            return _inside(layer.window, inputs[0])
    return Fraction(1)


def _inside(window: SlidingWindow, shape: Shape) -> Fraction:
    """Return the fraction of a window's taps inside, over all axes except the channels."""
    return math.prod((_of_axis(window, size) for size in shape[:-1]), start=Fraction(1))


def _of_axis(window: SlidingWindow, size: int) -> Fraction:
    (places,), (before, _) = window.slid_over((size,)), window.padding
    inside = 0
    for tap in range(window.kernel):
        offset = tap * window.dilation - before
        # Positions with 0 <= position * stride + offset < size.
        first = max(0, -(offset // window.stride))
        last = min(places - 1, (size - 1 - offset) // window.stride)
        inside += max(0, last - first + 1)
    return Fraction(inside, places * window.kernel)


def _of_proposals(layer: layers.ProposalHead, *levels: Shape) -> Fraction:
    """Return the fraction of its 3 x 3 convolution over all levels, and of those that read it."""
    sizes = {name: math.prod(shape) for name, shape in layer.parameters(*levels).items()}
    places = [math.prod(level[:-1]) for level in levels]
    window = SlidingWindow(SHARED_KERNEL, 1)
    parts = (n * _inside(window, level) for n, level in zip(places, levels, strict=True))
    inside = sum(parts, start=Fraction(0))
    shared, behind = sizes["shared_kernel"], sizes["score_kernel"] + sizes["box_kernel"]
    return (shared * inside + behind * sum(places)) / (sum(places) * (shared + behind))


def published_peak(model: str, precision: str) -> float | None:
    """Return the published peak of an accelerator, or None if it is unknown.

    A precision without a published figure is bounded by the fastest published one.
    """
    for name, tera in DEVICES.items():
        if re.search(name, model, re.IGNORECASE):
            return TERA * tera.get(precision, max(tera.values()))
    return None


def cpu_peak(threads: int, processors: Processors, precision: str) -> float | None:
    """Return the peak of a number of cores, or None if their instruction set is unknown.

    Hardware threads count as cores, so this is an upper bound.
    """
    known = [CYCLE[name] for name in processors.vectors if name in CYCLE]
    if not known:
        return None
    cycle = max(each.get(precision, each["fp32"]) for each in known)
    return threads * cycle * (processors.max_mhz or FASTEST_MHZ) * 1e6
