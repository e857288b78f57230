"""One training run, and one entry of several training runs, independent of the log format.

All times are UTC in seconds. Values that a log does not state are None, never a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from pydantic import Field, InstanceOf

from aiperf_hpc.results.views.quantities import Figures
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.trial import Value

T = TypeVar("T")


class Interval(Value):
    """A span of time. The end is None if the log ends before it."""

    started: float
    ended: float | None

    @property
    def seconds(self) -> float | None:
        """Length of the interval; None without an end."""
        return None if self.ended is None else self.ended - self.started


class Epoch(NamedTuple):
    """One epoch as logged, including any evaluation within it.

    A tuple like Evaluation, because a gigabyte of logs contains a million of them.
    """

    started: float
    ended: float | None
    """End of the epoch; None if the log ends before it."""
    number: float
    """Logged number, from 0 or 1; DAWNBench's have fractions, OpenFold's count samples."""
    passes: float = 1.0
    """Number of passes over the training data: several if a log has blocks of epochs."""


class Evaluation(NamedTuple):
    """One evaluation on the validation data."""

    epoch: float | None
    started: float | None
    """Start of the evaluation; None if the log states only the time of its result."""
    ended: float
    quality: float | None
    """Quality of the evaluation; None if the log states no finite number."""


class Quality(Value):
    """Quality metric of an evaluation."""

    name: str
    """Logged name: ``eval_error``, ``top1Accuracy``, ..."""
    higher_is_better: bool
    target: float | None
    """Target quality, at which the benchmark regards a training run as complete."""
    replaced: float | None = None
    """Target in the log, if the user has given another."""
    weighted_by: float | None = None
    """Target of the benchmark, which Valid FLOPS use, if the training may have another target or
    none."""

    @property
    def stated(self) -> float | None:
        """The target stated in the log."""
        return self.target if self.replaced is None else self.replaced

    def reaches(self, value: float) -> bool:
        """Return whether a value is as good as the target."""
        if self.target is None:
            return False
        return value >= self.target if self.higher_is_better else value <= self.target

    def first_reached(self, evaluations: Iterable[Evaluation]) -> Evaluation | None:
        """Return the first evaluation that is as good as the target, or None."""
        good = (e for e in evaluations if e.quality is not None and self.reaches(e.quality))
        return next(good, None)


ACCELERATOR, RANK = "accelerator", "rank"


def any_of(devices: Iterable[str]) -> str:
    """Return the device by which machines are counted, such as ``accelerator or rank``."""
    return " or ".join(sorted(set(devices))) or ACCELERATOR


def plural(device: str) -> str:
    """Return ``accelerators``, ``ranks`` or ``accelerators or ranks``."""
    return f"{device.replace(' or ', 's or ')}s"


class System(Value):
    """The machine according to its description."""

    name: str
    nodes: int | None = None
    accelerators: int | None = None
    """Number of accelerators of all nodes together."""
    accelerator: str | None = None
    """Model of the accelerator, or of the processor for an AIPerf run without accelerators."""
    framework: str | None = None
    cost_per_hour: float | None = None
    """Price of all nodes together, US dollars per hour."""
    resources: Resources | None = None
    """Replicas, hosts and accelerators of an AIPerf run; None for other entries."""

    @property
    def device(self) -> str:
        """Device by which the machine is counted: ranks for a run without accelerators."""
        without = self.resources is not None and not self.accelerators
        return RANK if without else ACCELERATOR


class Inference(Value):
    """Latency and cost of inference with a trained network, one sample at a time."""

    latency: float | None
    """Latency, seconds per sample."""
    cost: float | None
    """Cost of one sample, US dollars."""
    quality: Quality | None
    value: float | None
    """Quality of the timed network."""


class Throughput(Value):
    """Samples trained with one network and one batch size."""

    network: str
    """Hash of the network's graph."""
    batch_size: int
    samples: int
    seconds: float
    """Time to execute these samples, without evaluations, summed over replicas."""


class Rates(Value):
    """Rates of a machine at fixed work, measured during a run."""

    utc: float
    rates: dict[str, float]
    """Operations per second by kind of work."""


class SearchTimeline(Value):
    """Distribution of a run's work over time, and the machine's rates during the run."""

    window_seconds: float
    operations: tuple[int, ...]
    """Operations in each complete window since the run's start."""
    busy_seconds: float
    """Time in training or evaluation, summed over replicas."""
    replicas: int
    throughputs: tuple[Throughput, ...]
    """Throughputs of the initial network, which every run of a configuration trains."""
    on_accelerators: bool = Field(False, exclude=True)
    """Whether replicas trained on accelerators, whose rates are then the machine's."""
    peaks: tuple[Rates, ...] = ()


class StoredPredictions(Value):
    """Predictions of a trained network."""

    trial: str
    samples: int
    sha256: str
    """SHA-256 of the file, in hexadecimal."""
    classes: bytes = Field(exclude=True, repr=False)
    """Predicted class of each validation sample: little-endian 4-byte integers."""


class TrainingLog(Value):
    """One training run of one model, from start to target."""

    source: str
    """Path of the source file or directory."""
    run: Interval | None
    """The timed interval of the benchmark."""
    succeeded: bool | None
    """Whether the training succeeded according to the log; None if it is not stated."""
    init: Interval | None = None
    staging: tuple[Interval, ...] = ()
    """Intervals of copying the dataset to the nodes, within the run or before it."""
    epochs: tuple[InstanceOf[Epoch], ...] = ()
    evaluations: tuple[InstanceOf[Evaluation], ...] = ()
    quality: Quality | None = None
    global_batch_size: int | None = None
    train_samples: int | None = None
    """Number of training samples in the dataset, which is the length of an epoch."""
    eval_samples: int | None = None
    nodes: int | None = None
    accelerators: int | None = None
    convergence_scale: float | None = None
    """Factor on the entry's time if it converged faster than the reference."""
    operations: int | None = None
    """Counted operations of all executed samples, if they are in the run's records."""
    predictions: StoredPredictions | None = None
    """Predictions of the training's network or, for a search, of the best stored network."""
    timeline: SearchTimeline | None = None
    """Work over time of a run with architecture search."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Other values in the log by their keys: hyperparameters, seed, precision."""
    problems: tuple[str, ...] = ()
    """Problems of the log, one line each."""

    def __hash__(self) -> int:
        """Return a hash of the identity, by which repeated computations on a log are cached."""
        return id(self)


def cached_for_log(function: Callable[[TrainingLog], T]) -> Callable[[TrainingLog], T]:
    """Cache a function's result for each log until the log is released."""
    results = WeakKeyDictionary[TrainingLog, T]()

    @wraps(function)
    def cached(log: TrainingLog) -> T:
        if log not in results:
            results[log] = function(log)
        return results[log]

    return cached


class Entry(Value):
    """One machine's result in one benchmark: training runs to compare, average or add."""

    name: str
    """Unique name of the entry."""
    format: Literal["mllog", "dawnbench", "aiperf"]
    benchmark: str
    division: str | None = None
    """``closed`` or ``open``."""
    scenario: Literal["strong", "weak"] = "strong"
    """Whether its training runs were sequential (strong scaling, time to solution) or concurrent
    (weak scaling, models per minute)."""
    round: str | None = None
    """Version of the benchmark: ``hpc-1.0``, ..."""
    organization: str | None = None
    system: System
    path: str
    """Path of the entry's folder or file."""
    logs: tuple[TrainingLog, ...]
    lost: int = 0
    """Unreadable logs of the entry, which the rules treat as failed training runs."""
    pruned: int = 0
    """Training runs omitted by the submitter, which weak scaling permits."""
    inference: Inference | None = None
    """Inference result of an entry without training runs."""
    convergence_scale: float | None = None
    """Factor on the time if the entry converged faster than the reference."""
    problems: tuple[str, ...] = ()
    """Problems of the entry, without those of its logs."""
    figures: Figures = Field(default={}, exclude=True)
    """Headline figures of a completed AIPerf run, by name."""


class Unreadable(Value):
    """A log that could not be read."""

    path: str
    reason: str


class ReadResult(NamedTuple):
    """Result of reading one source."""

    entries: tuple[Entry, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @classmethod
    def joined(cls, results: Iterable[ReadResult]) -> ReadResult:
        """Merge several results."""
        results = list(results)
        return cls(
            tuple(entry for result in results for entry in result.entries),
            tuple(log for result in results for log in result.unreadable),
        )

    @classmethod
    def failed(cls, path: Path, reason: object) -> ReadResult:
        """Return the result for a source that cannot be read."""
        return cls(unreadable=(Unreadable(path=str(path), reason=str(reason)),))
