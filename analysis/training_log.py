"""One training, and one entry of several trainings, as logs of any format tell them.

All times are UTC in seconds. What a log does not say is None, never a default.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, InstanceOf

from aiperf_hpc.results.views.quantities import Figures
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.trial import Value


class Interval(Value):
    """A span of time. The end is None where the log breaks off before it."""

    started: float
    ended: float | None

    @property
    def seconds(self) -> float | None:
        """Its length, None without an end."""
        return None if self.ended is None else self.ended - self.started


class Epoch(NamedTuple):
    """One pass of training as the log has it, the evaluation that it may contain included.

    A tuple, as Evaluation is: a gigabyte of logs has a million of them.
    """

    started: float
    ended: float | None
    """None where the log breaks off before it."""
    number: float
    """As logged. Logs count from 0 or 1; DAWNBench's have fractions, OpenFold's count samples."""
    passes: float = 1.0
    """How many passes it spans: several where a log has blocks of epochs."""


class Evaluation(NamedTuple):
    """One evaluation on the validation data."""

    epoch: float | None
    started: float | None
    """None where the log says only when its quality was known."""
    ended: float
    quality: float | None
    """None where the log has no number or one that is not finite."""


class Quality(Value):
    """What an evaluation measures."""

    name: str
    """As logged: ``eval_error``, ``top1Accuracy``, ..."""
    higher_is_better: bool
    target: float | None
    """The quality at which the benchmark counts a training as done."""
    replaced: float | None = None
    """The target that the log states, where the user has named another."""
    weighted_by: float | None = None
    """The target of its benchmark, where Valid FLOPS are of that and a training may have another:
    it may end at another quality than the benchmark's, or at none."""

    @property
    def stated(self) -> float | None:
        """The target that the log itself states."""
        return self.target if self.replaced is None else self.replaced

    def reaches(self, value: float) -> bool:
        """Return whether a value is as good as the target."""
        if self.target is None:
            return False
        return value >= self.target if self.higher_is_better else value <= self.target

    def first_reached(self, evaluations: Iterable[Evaluation]) -> Evaluation | None:
        """Return the first evaluation that is as good as the target, None if none is."""
        good = (e for e in evaluations if e.quality is not None and self.reaches(e.quality))
        return next(good, None)


ACCELERATOR, RANK = "accelerator", "rank"


def any_of(devices: Iterable[str]) -> str:
    """Return what the trainings of several machines are counted by: ``accelerator or rank``."""
    return " or ".join(sorted(set(devices))) or ACCELERATOR


def plural(device: str) -> str:
    """Return ``accelerators``, ``ranks`` or ``accelerators or ranks``."""
    return f"{device.replace(' or ', 's or ')}s"


class System(Value):
    """The machine, as its description tells it."""

    name: str
    nodes: int | None = None
    accelerators: int | None = None
    """Of all nodes together."""
    accelerator: str | None = None
    """The model of the accelerator; of the processor, if a run of ours had no accelerators."""
    framework: str | None = None
    cost_per_hour: float | None = None
    """Of all nodes together, US dollars."""
    resources: Resources | None = None
    """Replicas, hosts and accelerators of a run of ours; None of other entries."""

    @property
    def device(self) -> str:
        """What the machine's trainings are counted by: ranks, if a run had no accelerators."""
        without = self.resources is not None and not self.accelerators
        return RANK if without else ACCELERATOR


class Inference(Value):
    """What a trained network costs in use, a sample at a time."""

    latency: float | None
    """Seconds a sample."""
    cost: float | None
    """Of one sample, US dollars."""
    quality: Quality | None
    value: float | None
    """The quality of what was timed."""


class Throughput(Value):
    """What was trained with one network in batches of one size."""

    network: str
    """The graph's hash."""
    batch_size: int
    samples: int
    seconds: float
    """In which these samples were executed, evaluations excluded; of all replicas together."""


class Rates(Value):
    """What a machine did of some fixed work in a second, measured during a run."""

    utc: float
    rates: dict[str, float]
    """Operations a second, by the kind of work."""


class SearchTimeline(Value):
    """How the work of a run is spread over its time, and what the machine did meanwhile."""

    window_seconds: float
    operations: tuple[int, ...]
    """Of each whole window since the run's start."""
    busy_seconds: float
    """In which replicas trained or evaluated, of all of them together."""
    replicas: int
    throughputs: tuple[Throughput, ...]
    """Of the initial network, which every run of a configuration trains."""
    on_accelerators: bool = Field(False, exclude=True)
    """Whether replicas trained on accelerators, so that the rates of these are the machine's."""
    peaks: tuple[Rates, ...] = ()


class StoredPredictions(Value):
    """What a trained network predicted."""

    trial: str
    samples: int
    sha256: str
    """Of the file, in hexadecimal."""
    classes: bytes = Field(exclude=True, repr=False)
    """The class of each validation sample: little-endian integers of four bytes."""


class TrainingLog(Value):
    """One training of one model, from start to target."""

    source: str
    """The file or directory that it was read from."""
    run: Interval | None
    """What the benchmark times."""
    succeeded: bool | None
    """What the log says of its own end; None where it does not say."""
    init: Interval | None = None
    staging: tuple[Interval, ...] = ()
    """Copies of the dataset to the nodes, within the run or before it."""
    epochs: tuple[InstanceOf[Epoch], ...] = ()
    evaluations: tuple[InstanceOf[Evaluation], ...] = ()
    quality: Quality | None = None
    global_batch_size: int | None = None
    train_samples: int | None = None
    """Of the dataset: the samples of an epoch."""
    eval_samples: int | None = None
    nodes: int | None = None
    accelerators: int | None = None
    convergence_scale: float | None = None
    """By what its entry's time is multiplied for having converged faster than the reference."""
    operations: int | None = None
    """Counted operations of all samples executed, where the run's records say what these were."""
    predicted: StoredPredictions | None = None
    """By the training's network or, of a run that searches, by the best one that was kept."""
    course: SearchTimeline | None = None
    """Of a run that searches."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What else the log states, by its own keys: hyperparameters, seed, precision."""
    problems: tuple[str, ...] = ()
    """What is wrong with it, a line each."""

    def __hash__(self) -> int:
        """Return its identity: what is computed of a log again and again is cached by that."""
        return id(self)


class Entry(Value):
    """One machine's result in one benchmark: trainings that are compared, averaged or added."""

    name: str
    """What tells it from all other entries."""
    format: Literal["mllog", "dawnbench", "aiperf"]
    benchmark: str
    division: str | None = None
    """``closed`` or ``open``."""
    scenario: Literal["strong", "weak"] = "strong"
    """Whether its trainings ran one after another (strong scaling, time to solution) or at once
    (weak scaling, models per minute)."""
    round: str | None = None
    """The benchmark's version: ``hpc-1.0``, ..."""
    organization: str | None = None
    system: System
    path: str
    """The folder or file of the entry."""
    logs: tuple[TrainingLog, ...]
    lost: int = 0
    """Logs of the entry that could not be read: trainings that failed, to the rules."""
    pruned: int = 0
    """Trainings that its submitter left out, as weak scaling allows."""
    inference: Inference | None = None
    """Of an entry without trainings."""
    convergence_scale: float | None = None
    """By what the time is multiplied for having converged faster than the reference."""
    problems: tuple[str, ...] = ()
    """What is wrong with the entry, apart from its logs."""
    figures: Figures = Field(default={}, exclude=True)
    """The headline figures of a run of ours that has ended, by their names."""


class Unreadable(Value):
    """A log that could not be read."""

    path: str
    reason: str


class ReadResult(NamedTuple):
    """What came of reading one source."""

    entries: tuple[Entry, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()

    @classmethod
    def joined(cls, results: Iterable[ReadResult]) -> ReadResult:
        """Return several results as one."""
        results = list(results)
        return cls(
            tuple(entry for result in results for entry in result.entries),
            tuple(log for result in results for log in result.unreadable),
        )

    @classmethod
    def failed(cls, path: Path, reason: object) -> ReadResult:
        """Return what came of a source that cannot be read."""
        return cls(unreadable=(Unreadable(path=str(path), reason=str(reason)),))
