"""Requests to a replica's process besides a run, and their results: re-execution and profiling."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.config import RunConfig
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, Value


class KeptCheckpoint(Value):
    """A checkpoint of a run, and what its file must be."""

    path: str
    sha256: str


class RecordedEpoch(Value):
    """An epoch of a trial that is to be executed again."""

    trial: str
    graph: str
    """The graph as JSON: grown again, not the stored one."""
    hyperparameters: Hyperparameters
    seed: int
    ranks: Annotated[int, Field(ge=1)]
    """The processes that each batch was divided among."""
    epoch: Annotated[int, Field(ge=1)]
    epoch_limit: Annotated[int, Field(ge=1)]
    losses: tuple[float, ...]
    """The recorded validation losses of the epochs before it, which a schedule may go by."""
    began: KeptCheckpoint
    evaluated: KeptCheckpoint


class ExecutionRequest(Value):
    """What is to be executed again of a run."""

    config: RunConfig
    """The run's, with the place of the dataset that is read now."""
    dataset: DatasetInfo
    """What the dataset must be."""
    epochs: tuple[RecordedEpoch, ...]


class EvaluationAgain(Value):
    """What an evaluation over all validation samples found now."""

    loss: float
    """The mean over the samples."""
    sums: dict[str, float]
    """The sums of the run's measure, by its names."""
    samples: int
    baseline: dict[str, float] | None = None
    """Those of a predictor that has learnt nothing, on the same samples; None for none."""


class MatrixOperations(Value):
    """Operations of convolutions and matrix products for one sample, by PyTorch's own counter."""

    forward: int
    training: int
    """Forward and backward, without the update."""


class EpochAgain(Value):
    """What came of an epoch that was executed again."""

    trial: str
    failure: str = ""
    """Why it could not be; then nothing else is said."""
    before: EvaluationAgain | None = None
    """With the weights that the epoch began with; None where that was the trial's beginning."""
    evaluated: EvaluationAgain | None = None
    """With the weights that were evaluated at its end."""
    train_loss: float | None = None
    """The mean loss of the training, begun anew from what the epoch began with."""
    after: EvaluationAgain | None = None
    """With the weights that this training gave."""
    seconds: float | None = None
    """What the training and the evaluation after it took."""
    operations: MatrixOperations | None = None
    """None where PyTorch is not installed."""


class ExecutionResult(Value):
    """What was found by executing epochs again, and on what."""

    engine: str
    versions: dict[str, str]
    device: str
    """The accelerator, or the processor where there is none."""
    cores: int
    """The logical CPUs that it computed on."""
    epochs: tuple[EpochAgain, ...]


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
