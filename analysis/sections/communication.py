"""Speed-up with the number of ranks, and the time breakdown of training steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.scaling import efficiency, speedup
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.formatting import percent, si
from aiperf_hpc.grouping import grouped
from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.results.table import Table, optional
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import StepPart, TimePhase, Value


class CommunicationPart(StrEnum):
    """The parts of an all-reduce, as HPC AI500 V2.0's table of communication has them.

    The table uses Horovod's timeline and its names; ``copy`` is in that timeline
    (MEMCPY_IN_FUSION_BUFFER, MEMCPY_OUT_FUSION_BUFFER) but not in the table.
    """

    NEGOTIATE = "negotiate"
    """Wait until all ranks have their gradients."""
    WAIT_FOR_DATA = "wait for data"
    """Wait until the framework has computed a submitted gradient."""
    QUEUE = "queue"
    """Wait until the back end has finished earlier reductions."""
    REDUCE = "reduce"
    COPY = "copy"
    """Copy into and out of the reduced buffer."""


PARTS: Mapping[CommunicationPart, tuple[StepPart, ...]] = {
    CommunicationPart.NEGOTIATE: (StepPart.WAIT,),
    CommunicationPart.WAIT_FOR_DATA: (),
    CommunicationPart.QUEUE: (StepPart.QUEUE,),
    CommunicationPart.REDUCE: (StepPart.REDUCE,),
    CommunicationPart.COPY: (StepPart.COPY_IN, StepPart.COPY_OUT),
}
"""Parts of a recorded step that make up each activity.

A rank that has submitted all its gradients waits until all others have too, which Horovod calls
negotiation. There is no wait for data, because a gradient is submitted when it is computed. If the
host is ahead of its accelerator, copying in ends that wait and includes it.
"""

NO_WAIT_FOR_DATA = (
    "wait for data is not recorded: a gradient is handed over once it is computed; on an "
    "accelerator the wait for that is part of copy"
)


NOT_OF_THE_STEP = ("replica", "seed", "journal", "score", "preset", *(s.name for s in SCHEDULERS))
"""Sections of a configuration that do not change what a step computes."""
NOT_COMPUTED = {
    "dataset": ("path", "parallel_transforms", "cache", "cache_path"),
    "training": ("batch_size", "learning_rate", "schedule"),
}
"""Keys of the other sections that do not either; batch sizes are compared separately."""


class Breakdown(Value):
    """Time breakdown of a training step of one run: seconds, as the mean over ranks."""

    entry: str
    collective: str
    ranks: int
    steps: int
    step: float
    compute: float
    communication: float
    parts: dict[CommunicationPart, float | None]
    """Parts of communication; None for a part that is not recorded."""
    fraction: float
    """Fraction of communication in the step."""
    ratio: float | None
    """Computation over communication; None without communication."""


class ScalePoint(Value):
    """All training runs with one number of ranks."""

    ranks: int
    entries: tuple[str, ...]
    batch_size: int | None
    """Batch size of all ranks together."""
    rate: float
    """Operations per second."""
    compute_rate: float | None
    """Rate without the time of communication; None if the source does not record it separately."""
    speed_up: float
    compute_speed_up: float | None
    efficiency: float
    compute_efficiency: float | None


class SpeedUp(Value):
    """Training runs that differ only in their number of ranks, smallest first."""

    subject: str
    scaling: Literal["strong", "weak"]
    """Strong if the global batch size is constant, weak if that of each rank is."""
    points: tuple[ScalePoint, ...]
    missing: str = ""
    """Reason why there is no speed-up of computation alone; empty if there is one."""


class Communication(Value):
    """Communication and speed-up with the number of ranks."""

    breakdowns: tuple[Breakdown, ...]
    speed_ups: tuple[SpeedUp, ...]
    missing: tuple[str, ...]
    """Data missing in the sources, one line each."""


class RunSteps(NamedTuple):
    """The training steps of one run."""

    entry: str
    configuration: dict[str, Any]
    """Settings that determine the computation of a step, except for the batch size."""
    hardware: tuple[str, ...]
    """Models of the processors and accelerators of its ranks."""
    ranks: int
    batch_size: int
    operations: int
    """Counted operations of all training samples executed."""
    seconds: float
    """Training time, summed over replicas."""
    collective: str
    steps: int
    parts: dict[StepPart, float]
    """Seconds of the recorded steps by part, as the mean over ranks; empty without steps."""

    @property
    def step_seconds(self) -> tuple[float, float]:
        """Seconds of the recorded steps in computation and in communication without overlap.

        Source: MLBench's split of a step; HPC AI500 V2.0's table of communication.
        """
        compute = self.parts.get(StepPart.COMPUTE, 0.0)
        return compute, sum(self.parts.values()) - compute

    @property
    def compute_seconds(self) -> float | None:
        """Training time without communication, by its fraction of the recorded steps."""
        if self.ranks == 1:
            return self.seconds
        compute, communication = self.step_seconds
        return self.seconds * compute / (compute + communication) if self.parts else None


def communication(entries: Sequence[Entry], _options: Options) -> Communication:
    """Break down the steps of runs with several ranks, and compare scales.

    Raises:
        NotMeasuredError: no entry records communication, and no two differ in scale.
    """
    runs = [run_steps(entry) for entry in entries if entry.format == "aiperf"]
    breakdowns = tuple(breakdown(run) for run in runs if run.parts)
    speed_ups = tuple(speed_ups_of_runs(runs))
    if not (breakdowns or speed_ups):
        raise NotMeasuredError(
            "no run has the step times of several ranks, and no two runs of one configuration "
            "differ in their number of ranks; of public logs the scaling study shows the speed-up"
        )
    return Communication(
        breakdowns=breakdowns, speed_ups=speed_ups, missing=tuple(_missing(entries, runs))
    )


def _missing(entries: Sequence[Entry], runs: Sequence[RunSteps]) -> Iterator[str]:
    if any(run.parts for run in runs):
        yield NO_WAIT_FOR_DATA
    for run in runs:
        if run.ranks > 1 and not run.parts:
            yield f"{run.entry}: no trial of its {run.ranks} ranks recorded its step times"
        elif run.ranks == 1:
            yield f"{run.entry}: one rank per replica, without communication"
    for name in sorted({entry.format for entry in entries} - {"aiperf"}):
        yield f"{name}: these logs do not separate communication from computation"


def run_steps(entry: Entry) -> RunSteps:
    """Read the training steps of a run."""
    view = RunView.read(RunPaths(Path(entry.path)))
    config, history = view.manifest.config, view.history
    times = [times for replica in history.replicas.values() for times in replica.step_times]
    machines = [r.machine for r in history.replicas.values() if r.machine is not None]
    hardware = {name for each in machines for name in (each.cpu, *each.accelerators)}
    recorded = {part for each in times for part, seconds in each.seconds.items() if seconds}
    values: dict[str, Any] = config.model_dump(mode="json", exclude=set(NOT_OF_THE_STEP))
    for section, names in NOT_COMPUTED.items():
        values[section] = {k: v for k, v in values[section].items() if k not in names}
    return RunSteps(
        entry=entry.name,
        configuration=values,
        hardware=tuple(sorted(hardware)),
        ranks=config.replica.ranks,
        batch_size=config.training.batch_size,
        operations=sum(
            t.train_samples * t.started.train_operations for t in history.trials.values()
        ),
        seconds=sum(r.seconds.get(TimePhase.TRAIN, 0.0) for r in history.replicas.values()),
        collective=config.replica.collective,
        steps=sum(each.steps for each in times),
        parts={part: sum(each.seconds.get(part, 0.0) for each in times) for part in recorded},
    )


def breakdown(run: RunSteps) -> Breakdown:
    """Return the mean step of a run.

    Source: HPC AI500 V2.0 (Jiang et al. 2020, arXiv 2007.00279), its table of communication;
    MLBench for the ratio.
    """
    compute, spent = run.step_seconds
    return Breakdown(
        entry=run.entry,
        collective=run.collective,
        ranks=run.ranks,
        steps=run.steps,
        step=(compute + spent) / run.steps,
        compute=compute / run.steps,
        communication=spent / run.steps,
        parts={
            part: sum(run.parts.get(of, 0.0) for of in recorded) / run.steps if recorded else None
            for part, recorded in PARTS.items()
        },
        fraction=spent / (compute + spent),
        ratio=compute / spent if spent > 0.0 else None,
    )


def speed_ups_of_runs(runs: Iterable[RunSteps]) -> Iterator[SpeedUp]:
    """Yield the speed-up of each configuration with runs on different numbers of ranks."""
    trained = [run for run in runs if run.operations and run.seconds > 0.0]
    for scaling in ("strong", "weak"):
        for group in grouped((_condition(run, scaling), run) for run in trained).values():
            if len({run.ranks for run in group}) > 1:
                yield _speed_up_of(group, scaling)


def _condition(run: RunSteps, scaling: str) -> str:
    """Return a text that is equal for all runs that differ only in their number of ranks."""
    batch = run.batch_size if scaling == "strong" else run.batch_size / run.ranks
    return json.dumps([run.configuration, run.hardware, batch], sort_keys=True)


def _speed_up_of(group: Sequence[RunSteps], scaling: Literal["strong", "weak"]) -> SpeedUp:
    points = tuple(_points(group))
    known = all(point.compute_rate is not None for point in points)
    dataset = group[0].configuration["dataset"]["name"]
    return SpeedUp(
        subject=f"{group[0].configuration['workload']} on {dataset}",
        scaling=scaling,
        points=points,
        missing="" if known else "not all of these runs recorded the parts of their steps",
    )


def _points(group: Sequence[RunSteps]) -> Iterator[ScalePoint]:
    """Yield each scale compared with the smallest."""
    scales = grouped((run.ranks, run) for run in sorted(group, key=lambda run: run.ranks))
    base, *_ = scales
    base_rate, base_compute_rate = _rates(scales[base])
    for ranks, runs in scales.items():
        rate, compute_rate = _rates(runs)
        whole, alone = speedup(rate, base_rate), None
        if compute_rate is not None and base_compute_rate is not None:
            alone = speedup(compute_rate, base_compute_rate)
        yield ScalePoint(
            ranks=ranks,
            entries=tuple(run.entry for run in runs),
            batch_size=runs[0].batch_size,
            rate=rate,
            compute_rate=compute_rate,
            speed_up=whole,
            compute_speed_up=alone,
            efficiency=efficiency(whole, ranks, base),
            compute_efficiency=None if alone is None else efficiency(alone, ranks, base),
        )


def _rates(runs: Sequence[RunSteps]) -> tuple[float, float | None]:
    """Return the operations per second of runs, and the rate without communication if known."""
    operations = sum(run.operations for run in runs)
    computing = [seconds for run in runs if (seconds := run.compute_seconds)]
    known = len(computing) == len(runs)
    rate = operations / sum(run.seconds for run in runs)
    return rate, operations / sum(computing) if known else None


def tables(found: Communication) -> Iterator[Table]:
    """Yield the time of communication, and the speed-up with the number of ranks."""
    yield _breakdowns(found.breakdowns)
    yield from map(_speed_up, found.speed_ups)
    yield Table(missing=found.missing)


def _breakdowns(breakdowns: Sequence[Breakdown]) -> Table:
    columns = (
        "run",
        "collective",
        "ranks",
        "step",
        "compute",
        "communication",
        "fraction",
        "ratio",
    )
    rows = tuple(
        (
            b.entry, b.collective, f"{b.ranks:,}", _milliseconds(b.step), _milliseconds(b.compute),
            _milliseconds(b.communication), percent(b.fraction, 1),
            optional("{:.3g}".format, b.ratio),
            *(optional(_milliseconds, b.parts[part]) for part in CommunicationPart),
        )
        for b in breakdowns
    )  # fmt: skip
    title = "Milliseconds of a training step; fraction of communication, compute / communication"
    parts = tuple(str(part) for part in CommunicationPart)
    return Table((*columns, *parts), rows, title if rows else "")


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _speed_up(found: SpeedUp) -> Table:
    columns = (
        "ranks", "batch", "rate", "speed-up", "efficiency", "… of compute alone", "efficiency",
    )  # fmt: skip
    rows = tuple(
        (
            f"{p.ranks:,}", optional("{:,}".format, p.batch_size), si(p.rate, "OP/s"),
            f"{p.speed_up:.3g}", percent(p.efficiency, 1),
            optional("{:.3g}".format, p.compute_speed_up), percent(p.compute_efficiency, 1),
        )
        for p in found.points
    )  # fmt: skip
    title = f"{found.subject}, {found.scaling} scaling"
    return Table(columns, rows, title, missing=(found.missing,) * bool(found.missing))
