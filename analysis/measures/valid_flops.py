"""Valid FLOPS of HPC AI500: the rate of operations, weighted by the quality that came of them.

Jiang et al. 2020, HPC AI500 V2.0 (arXiv:2007.00279), and its ranking
(benchcouncil.org/HPCAI500/ranking.html). docs/decisions/valid_flops.md has what is read into it.
"""

from __future__ import annotations

from typing import NamedTuple

from aiperf_hpc.analysis.measured import NotMeasuredError
from aiperf_hpc.analysis.training_log import Quality, TrainingLog
from aiperf_hpc.ops_counter import valid_flops as formula

EXPONENTS = {
    "resnet": 5, "imagenet": 5, "cifar10": 5, "digits": 5, "deepcam": 10, "extreme-weather": 10
}  # fmt: skip
"""n by what a benchmark's name has in it: 5 for image classification, 10 for extreme weather
analytics [HPC AI500 V2.0, Valid FLOPS]. That CIFAR-10 and digits are the one and DeepCAM the other
is our reading: HPC AI500's own networks are ResNet-50 and Faster R-CNN."""
DEFAULT_EXPONENT = 5
"""n of the benchmarks for which HPC AI500 has none: the lighter weight."""


class KnownCount(NamedTuple):
    """Operations of one training sample, forward and backward, of a published network.

    A multiply-accumulate is 2; convolutions and matrix products alone, without the gradient of
    the input; padding counts as what it is multiplied by. Direct convolution, so a framework that
    takes a faster algorithm (Winograd, FFT) executes fewer.
    """

    benchmark: str
    train_samples: int | None
    """The size of the dataset of the rounds that it belongs to; None: of all rounds."""
    operations: int
    source: str


KNOWN_COUNTS = (
    KnownCount(
        "cosmoflow", 262_144, 56_933_533_184,
        "MLPerf HPC v0.7, 4×128³, kernels of 2: 5,597,604 parameters",
    ),
    KnownCount(
        "cosmoflow", 524_288, 192_090_785_280,
        "MLPerf HPC v1.0 on, 4×128³, kernels of 3: 8,907,556 parameters",
    ),
    KnownCount(
        "deepcam", None, 1_963_974_567_936,
        "MLPerf HPC, 16×768×1152, depthwise weight gradients by group: 56,454,720 parameters",
    ),
    KnownCount(
        "resnet", None, 24_299_077_632,
        "MLPerf Training, ResNet-50 v1.5, 3×224², 1000 classes: 25,557,032 parameters",
    ),
)  # fmt: skip


def valid_flops(flops: float, ratio: float, exponent: int) -> float:
    """Return VFLOPS = FLOPS · ratio^n, operations per second.

    ``ratio`` is achieved over target quality (``quality_ratio``).

    Raises:
        NotMeasuredError: it is larger, or smaller, than any number.
    """
    found = formula.weighted(flops, ratio, exponent)
    if found is None:
        raise NotMeasuredError(f"FLOPS times {ratio:g} to the power of {exponent} is no number")
    return found


def quality_ratio(achieved: float, target: float, *, higher_is_better: bool) -> float:
    """Return how good the achieved quality is as a share of the target: over 1 is better.

    Raises:
        NotMeasuredError: one of them is not positive, and so no share of the other.
    """
    ratio = formula.quality_ratio(achieved, target, higher_is_better=higher_is_better)
    if ratio is None:
        raise NotMeasuredError(
            f"quality {achieved:g} with target {target:g}: their ratio means nothing"
        )
    return ratio


def achieved_quality(log: TrainingLog) -> float:
    """Return the quality of the last evaluation: that of the network that the training leaves.

    Raises:
        NotMeasuredError: no evaluation, or the last one has no number.
    """
    if not log.evaluations:
        raise NotMeasuredError("no evaluation is logged")
    last = log.evaluations[-1].quality
    if last is None:
        raise NotMeasuredError("the last evaluation has no quality that is a number")
    return last


def target_of(log: TrainingLog) -> tuple[Quality, float]:
    """Return what is measured, and the target by which it is weighted.

    Raises:
        NotMeasuredError: there is none.
    """
    quality = log.quality
    if quality is not None and quality.weighted_by is not None:
        return quality, quality.weighted_by
    if quality is None or quality.target is None:
        raise NotMeasuredError("the benchmark has no target: name one with --target")
    return quality, quality.target


def known_count(benchmark: str, train_samples: int | None) -> KnownCount:
    """Return the count of a published benchmark's network.

    CosmoFlow's network changed with its dataset, so the dataset's size tells the network.

    Raises:
        NotMeasuredError: there is none.
    """
    rows = [row for row in KNOWN_COUNTS if row.benchmark == benchmark]
    if not rows:
        raise NotMeasuredError(f"no count of operations a sample is known for {benchmark}")
    for row in rows:
        if row.train_samples in (None, train_samples):
            return row
    sizes = " or ".join(f"{row.train_samples:,}" for row in rows)
    stated = "no size" if train_samples is None else f"{train_samples:,} samples"
    raise NotMeasuredError(f"{benchmark}'s network is known by a dataset of {sizes}, not {stated}")


def exponent_of(benchmark: str, chosen: int | None) -> tuple[int, str]:
    """Return n and why it is that: chosen, HPC AI500's for this kind of problem, or the default."""
    if chosen is not None:
        return chosen, "chosen"
    for word, exponent in EXPONENTS.items():
        if word in benchmark.lower():
            return exponent, "HPC AI500"
    return DEFAULT_EXPONENT, f"HPC AI500 has none for {benchmark}; that of image classification"
