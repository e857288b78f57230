"""Requests to a replica's process outside a run, and their results: re-execution and profiling."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from aiperf_hpc.config import RunConfig
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, Value


class SavedCheckpoint(Value):
    """A checkpoint of a run, with the expected hash of its file."""

    path: str
    sha256: str


class RecordedEpoch(Value):
    """A recorded epoch of a trial that is to be re-executed."""

    trial: str
    graph: str
    """Graph as JSON, regrown from the records instead of read from its file."""
    hyperparameters: Hyperparameters
    seed: int
    ranks: Annotated[int, Field(ge=1)]
    """Number of processes that shared each batch."""
    epoch: Annotated[int, Field(ge=1)]
    epoch_limit: Annotated[int, Field(ge=1)]
    losses: tuple[float, ...]
    """Recorded validation losses of the previous epochs, which a schedule may depend on."""
    start_checkpoint: SavedCheckpoint
    end_checkpoint: SavedCheckpoint


class ExecutionRequest(Value):
    """A request to re-execute epochs of a run."""

    config: RunConfig
    """Configuration of the run, with the path of the dataset to read now."""
    dataset: DatasetInfo
    """Expected dataset."""
    epochs: tuple[RecordedEpoch, ...]


class EvaluationAgain(Value):
    """Result of a repeated evaluation over all validation samples."""

    loss: float
    """Mean loss over the samples."""
    sums: dict[str, float]
    """Sums of the run's metric by name."""
    samples: int
    baseline: dict[str, float] | None = None
    """Sums of a trivial predictor on the same samples; None if there is no such predictor."""
    losses: tuple[float, ...] = ()
    """Mean losses by interval (``credit.IntervalLosses``)."""


class MatrixOperations(Value):
    """Operations of convolutions and matrix products for one sample, by PyTorch's counter."""

    forward: int
    training: int
    """Operations of the forward and the backward pass, without the update."""


class Movement(Value):
    """L2 norms of the changes of an array during an epoch, recorded and repeated."""

    recorded: float
    again: float
    between: float
    """Norm of the difference between the array's recorded and repeated values at the end."""


class TrainingAgain(Value):
    """Result of a repeated training epoch."""

    losses: tuple[float, ...]
    """Mean losses by interval (``credit.IntervalLosses``)."""
    steps: int
    """Number of the optimizer's steps since the start of the trial."""
    movements: dict[str, Movement]
    """Movements of parameters and moving statistics by name."""


class CheckpointValues(Value):
    """Values in the checkpoint of an epoch's end; earlier versions stored none of them."""

    train_losses: tuple[float, ...]
    validation_losses: tuple[float, ...]
    steps: int | None


class EpochAgain(Value):
    """Result of a re-executed epoch."""

    trial: str
    failure: str = ""
    """Reason for which the epoch could not be re-executed; the other fields are then absent."""
    before: EvaluationAgain | None = None
    """Evaluation with the weights at the start of the epoch; None for a trial's first epoch."""
    evaluated: EvaluationAgain | None = None
    """Evaluation with the stored weights of the end of the epoch."""
    train_loss: float | None = None
    """Mean loss of the repeated training from the checkpoint at the start of the epoch."""
    recorded: CheckpointValues | None = None
    """Recorded values that are only in the checkpoint."""
    training: TrainingAgain | None = None
    """Intermediate losses, steps and weights of the repeated training."""
    after: EvaluationAgain | None = None
    """Evaluation with the weights after the repeated training."""
    seconds: float | None = None
    """Duration of the repeated training and its evaluation in seconds."""
    operations: MatrixOperations | None = None
    """Operations by PyTorch's counter; None if PyTorch is not installed."""


class ExecutionResult(Value):
    """Results of re-executed epochs, with the software and the device."""

    engine: str
    versions: dict[str, str]
    device: str
    """Accelerator, or processor if there is none."""
    cores: int
    """Number of logical CPUs that were used."""
    epochs: tuple[EpochAgain, ...]


class KernelCategory(StrEnum):
    """The kinds of kernels.

    The first eight are the hotspot functions of AIBench Training (Tang et al. 2021, arXiv
    2004.14690), on which HPC AI500 V2.0 (Jiang et al. 2020, arXiv 2007.00279) is built; the others
    are further kinds of work in a training step.
    """

    CONVOLUTION = "convolution"
    GEMM = "GEMM"
    NORMALIZATION = "batch normalization"
    ELEMENT_WISE = "element-wise"
    RELU = "ReLU"
    POOLING = "pooling"
    DATA_ARRANGEMENT = "data arrangement"
    MEMORY_COPY = "memory copy"
    REDUCTION = "reduction"
    """Reductions: sums, means, softmax and losses."""
    COMMUNICATION = "communication"
    FRAMEWORK = "framework"
    """Overhead without computation: dispatch, gradient bookkeeping, allocation, views."""
    UNCATEGORIZED = "uncategorized"
    """Kernels whose name matches no rule."""


class ProfileRequest(Value):
    """A request to profile training steps."""

    source: str
    """Run or configuration as given by the user."""
    config: RunConfig
    graph: str | None = None
    """Graph as JSON; by default, the initial graph of the configuration."""
    trial: str | None = None
    """Trial whose hyperparameters are used."""
    hyperparameters: Hyperparameters | None = None
    """Hyperparameters, by default of the configuration. The batch size is that of all ranks."""
    dataset: DatasetInfo | None = None
    """Description of the dataset; by default, it is read from the dataset."""
    data: Literal["synthetic", "real"] = "synthetic"
    """Whether samples are random numbers in the shapes of the dataset, or read from the dataset."""
    batch_size: int | None = Field(None, ge=1)
    """Batch size of the profiled rank; by default, its part of the total batch."""
    steps: int = Field(ge=1)


class KernelTime(Value):
    """One kernel, or one operator of the framework."""

    name: str
    category: KernelCategory
    calls: int
    """Calls in all profiled steps."""
    seconds: float
    """Self time in all profiled steps: without the operators that it called."""


class CategoryTime(Value):
    """Total time of the kernels of a category."""

    category: KernelCategory
    seconds: float
    fraction: float
    """Fraction of the profiler's total."""


class Profile(Value):
    """Time of the training steps of one network by kernel, from the framework's profiler."""

    source: str
    """Run or configuration of the network."""
    graph: str
    trial: str | None
    """Trial whose hyperparameters were used; None if they are from a configuration."""
    engine: str
    versions: dict[str, str]
    host: str
    device: str
    """Accelerator, or ``cpu``."""
    cores: int
    """Number of logical CPUs that were used."""
    dataset: str
    data: Literal["synthetic", "real"]
    batch_size: int
    """Batch size of the profiled rank."""
    precision: str
    optimizer: str
    steps: int
    """Number of profiled steps; as many before and after were timed without the profiler."""
    steps_per_second: float
    """Steps per second without the profiler."""
    profiled_steps_per_second: float
    timed: Literal["operators", "kernels"]
    """Kind of the timed events: operators on the CPUs, by self time, which may run concurrently, or
    kernels on the accelerator."""
    total_seconds: float
    """Total time of all events according to the profiler."""
    categories: tuple[CategoryTime, ...]
    """Categories that occurred, longest first."""
    kernels: tuple[KernelTime, ...]
    """Kernels, longest first."""
    trace: str
    """Path of the profiler's trace file for its viewer."""


def by_category(kernels: tuple[KernelTime, ...], total_seconds: float) -> tuple[CategoryTime, ...]:
    """Return the time of each category that occurs, longest first.

    Args:
        kernels: all kernels.
        total_seconds: total time to which fractions refer.
    """
    seconds: dict[KernelCategory, float] = {}
    for kernel in kernels:
        seconds[kernel.category] = seconds.get(kernel.category, 0.0) + kernel.seconds
    return tuple(
        CategoryTime(category=category, seconds=time, fraction=time / total_seconds)
        for category, time in sorted(seconds.items(), key=lambda item: -item[1])
    )
