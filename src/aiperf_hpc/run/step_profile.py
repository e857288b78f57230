"""What the steps of a training spend their time on, kernel by kernel: the result of a profile."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from aiperf_hpc.config import RunConfig
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, Value


class KernelCategory(StrEnum):
    """The kinds of kernels.

    The first eight are the hotspot functions of AIBench Training (Tang et al. 2021, arXiv
    2004.14690), on which HPC AI500 V2.0 (Jiang et al. 2020, arXiv 2007.00279) is built; the others
    are what a step spends time on besides.
    """

    CONVOLUTION = "convolution"
    GEMM = "GEMM"
    NORMALISATION = "batch normalisation"
    ELEMENT_WISE = "element-wise"
    RELU = "ReLU"
    POOLING = "pooling"
    DATA_ARRANGEMENT = "data arrangement"
    MEMORY_COPY = "memory copy"
    REDUCTION = "reduction"
    """Sums, means, softmax and losses."""
    COMMUNICATION = "communication"
    FRAMEWORK = "framework"
    """What computes nothing: dispatch, bookkeeping of gradients, allocation, views."""
    UNCATEGORISED = "uncategorised"
    """Kernels of a name that no rule knows."""


class ProfileRequest(Value):
    """What is to be profiled."""

    source: str
    """The run or the configuration, as the user named it."""
    config: RunConfig
    graph: str | None = None
    """The graph as JSON; the initial one of the configuration when not given."""
    trial: str | None = None
    """The trial whose hyperparameters are given."""
    hyperparameters: Hyperparameters | None = None
    """Those of the configuration when not given; the batch size is that of all ranks."""
    dataset: DatasetInfo | None = None
    """What the dataset is; it is looked at when not given."""
    data: Literal["synthetic", "real"] = "synthetic"
    """Whether samples are random numbers in the shapes of the dataset's, or the dataset's own."""
    batch_size: int | None = Field(None, ge=1)
    """Of the one rank that is profiled; its part of the whole batch when not given."""
    steps: int = Field(ge=1)


class KernelTime(Value):
    """One kernel, or one operator of the framework."""

    name: str
    category: KernelCategory
    calls: int
    """In all profiled steps."""
    seconds: float
    """In all profiled steps, without what it called."""


class CategoryTime(Value):
    """All kernels of a category."""

    category: KernelCategory
    seconds: float
    share: float
    """Of the profiler's own total."""


class Profile(Value):
    """Where some training steps of one network spent their time, by the framework's profiler."""

    source: str
    """The run or the configuration whose network it is."""
    graph: str
    trial: str | None
    """The trial whose hyperparameters these are; None for those of a configuration."""
    engine: str
    versions: dict[str, str]
    host: str
    device: str
    """The accelerator, or ``cpu``."""
    cores: int
    """The logical CPUs that it computed on."""
    dataset: str
    data: Literal["synthetic", "real"]
    batch_size: int
    """Of the one rank that was profiled."""
    precision: str
    optimizer: str
    steps: int
    """How many were profiled; as many before and as many after were timed without the profiler."""
    steps_per_second: float
    """Without the profiler."""
    profiled_steps_per_second: float
    timed: Literal["operators", "kernels"]
    """What the times are of: operators on the CPUs, which are their own time and may run beside
    each other, or kernels on the accelerator."""
    total_seconds: float
    """The profiler's own total of all of them."""
    categories: tuple[CategoryTime, ...]
    """Those that occurred, longest first."""
    kernels: tuple[KernelTime, ...]
    """Longest first."""
    trace: str
    """The profiler's own file, for its viewer."""


def by_category(kernels: tuple[KernelTime, ...], total_seconds: float) -> tuple[CategoryTime, ...]:
    """Return the time of each category that occurs, longest first.

    Args:
        kernels: all of them.
        total_seconds: what a share is a share of.
    """
    seconds: dict[KernelCategory, float] = {}
    for kernel in kernels:
        seconds[kernel.category] = seconds.get(kernel.category, 0.0) + kernel.seconds
    return tuple(
        CategoryTime(category=category, seconds=time, share=time / total_seconds)
        for category, time in sorted(seconds.items(), key=lambda item: -item[1])
    )
