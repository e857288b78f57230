"""Speed-up over the number of ranks, and where the time of their steps goes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.scaling import efficiency, speedup
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.formatting import percent, si
from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.results.table import Table, optional
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import StepPart, TimePhase, Value


class CommunicationPart(StrEnum):
    """The parts of an all-reduce, as HPC AI500 V2.0's table of communication has them.

    It reads them off Horovod's timeline, whose names these are; ``copy`` is in that timeline
    (MEMCPY_IN_FUSION_BUFFER, MEMCPY_OUT_FUSION_BUFFER) and not in the table.
    """

    NEGOTIATE = "negotiate"
    """Until all ranks are known to have their gradients."""
    WAIT_FOR_DATA = "wait for data"
    """Until the framework has computed a gradient that it has handed over already."""
    QUEUE = "queue"
    """Until the back end has finished earlier reductions and takes this one."""
    REDUCE = "reduce"
    COPY = "copy"
    """Into the buffer that is reduced, and out of it."""


PARTS: Mapping[CommunicationPart, tuple[StepPart, ...]] = {
    CommunicationPart.NEGOTIATE: (StepPart.WAIT,),
    CommunicationPart.WAIT_FOR_DATA: (),
    CommunicationPart.QUEUE: (StepPart.QUEUE,),
    CommunicationPart.REDUCE: (StepPart.REDUCE,),
    CommunicationPart.COPY: (StepPart.COPY_IN, StepPart.COPY_OUT),
}
"""Which parts of a recorded step each of them is.

A rank that has given all its gradients waits until all others have, which they agree upon: that
is what Horovod calls negotiating. There is no wait for data: a gradient is given once it is
computed. Where an accelerator's host is ahead of it, copying in ends that wait and has it.
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
"""What of the other sections does not either; batch sizes are compared apart."""


class Breakdown(Value):
    """What a training step of one run spends its time on: seconds, as the mean over ranks."""

    entry: str
    collective: str
    ranks: int
    steps: int
    step: float
    compute: float
    communication: float
    parts: dict[CommunicationPart, float | None]
    """The parts of communication; None for one that is not recorded."""
    share: float
    """Of communication in the step."""
    ratio: float | None
    """Computation over communication; None where there was no communication."""


class ScalePoint(Value):
    """All trainings at one scale."""

    ranks: int
    entries: tuple[str, ...]
    batch_size: int | None
    """Of all ranks together."""
    rate: float
    """Operations a second."""
    compute_rate: float | None
    """As if communication took no time; None where the source does not tell it apart."""
    speed_up: float
    compute_speed_up: float | None
    efficiency: float
    compute_efficiency: float | None


class SpeedUp(Value):
    """Trainings that differ in the number of their ranks alone, smallest first."""

    subject: str
    scaling: Literal["strong", "weak"]
    """Whether the batch is the same (strong) or that of each rank is (weak)."""
    points: tuple[ScalePoint, ...]
    missing: str = ""
    """Why there is no speed-up of computation alone; empty where there is one."""


class Communication(Value):
    """What is said of communication, and of what more ranks bring."""

    breakdowns: tuple[Breakdown, ...]
    speed_ups: tuple[SpeedUp, ...]
    missing: tuple[str, ...]
    """What the sources do not carry, a line each."""


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The training steps of one run."""

    entry: str
    configuration: dict[str, Any]
    """What decides what a step computes, but for the batch size."""
    hardware: tuple[str, ...]
    """The processors and accelerators of its ranks, by their models."""
    ranks: int
    batch_size: int
    operations: int
    """Counted operations of all training samples executed."""
    seconds: float
    """The time that replicas trained, all replicas together."""
    collective: str
    steps: int
    parts: dict[StepPart, float]
    """Seconds of the recorded steps by their parts, as the mean over ranks; empty for none."""

    @property
    def step_seconds(self) -> tuple[float, float]:
        """Seconds of the recorded steps in computation, and in communication that nothing hid.

        Source: MLBench's split of a step; HPC AI500 V2.0's table of communication.
        """
        compute = self.parts.get(StepPart.COMPUTE, 0.0)
        return compute, sum(self.parts.values()) - compute

    @property
    def compute_seconds(self) -> float | None:
        """The training time without communication, by its fraction of recorded steps."""
        if self.ranks == 1:
            return self.seconds
        compute, communication = self.step_seconds
        return self.seconds * compute / (compute + communication) if self.parts else None


def communication(entries: Sequence[Entry], options: Options) -> Communication:
    """Break the steps of runs with several ranks down, and compare scales.

    Raises:
        NotMeasuredError: no entry says how its steps communicate, and no two differ in scale.
    """
    del options
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
            yield f"{run.entry}: one rank a replica, which communicates nothing"
    public = sorted({entry.format for entry in entries if entry.format != "aiperf"})
    for name in public:
        yield f"{name}: these logs do not separate communication from computation"


def run_steps(entry: Entry) -> RunSteps:
    """Read what a run says of its training steps."""
    view = RunView(RunPaths(Path(entry.path)))
    view.refresh()
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
        share=spent / (compute + spent),
        ratio=compute / spent if spent > 0.0 else None,
    )


def speed_ups_of_runs(runs: Iterable[RunSteps]) -> Iterator[SpeedUp]:
    """Yield the speed-up of each configuration that was run with different numbers of ranks."""
    trained = [run for run in runs if run.operations and run.seconds > 0.0]
    for scaling in ("strong", "weak"):
        alike: defaultdict[str, list[RunSteps]] = defaultdict(list)
        for run in trained:
            batch = run.batch_size if scaling == "strong" else run.batch_size / run.ranks
            alike[json.dumps([run.configuration, run.hardware, batch], sort_keys=True)].append(run)
        for group in alike.values():
            if len({run.ranks for run in group}) > 1:
                yield _speed_up_of(group, scaling)


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
    """Yield each scale, compared with the smallest."""
    scales: defaultdict[int, list[RunSteps]] = defaultdict(list)
    for run in sorted(group, key=lambda run: run.ranks):
        scales[run.ranks].append(run)
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
    """Return the operations a second of runs, and as if communication took no time if known."""
    operations = sum(run.operations for run in runs)
    computing = [seconds for run in runs if (seconds := run.compute_seconds)]
    known = len(computing) == len(runs)
    rate = operations / sum(run.seconds for run in runs)
    return rate, operations / sum(computing) if known else None


def tables(found: Communication) -> Iterator[Table]:
    """Yield what communication takes, and what more ranks bring."""
    yield _breakdowns(found.breakdowns)
    yield from map(_speed_up, found.speed_ups)
    yield Table(missing=found.missing)


def _breakdowns(breakdowns: Sequence[Breakdown]) -> Table:
    columns = ("run", "collective", "ranks", "step", "compute", "communication", "share", "ratio")
    rows = tuple(
        (
            b.entry, b.collective, f"{b.ranks:,}", _milliseconds(b.step), _milliseconds(b.compute),
            _milliseconds(b.communication), percent(b.share, 1),
            optional("{:.3g}".format, b.ratio),
            *(optional(_milliseconds, b.parts[part]) for part in CommunicationPart),
        )
        for b in breakdowns
    )  # fmt: skip
    title = "Milliseconds of a training step; share of communication, compute / communication"
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
