"""Speed-up over the number of ranks, and where the time of their steps goes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiperf_hpc.analysis.measured import NotMeasuredError
from aiperf_hpc.analysis.measures.communication import (
    NO_WAIT_FOR_DATA,
    CommunicationPart,
    communication_parts,
    communication_seconds,
    communication_share,
    compute_communication_ratio,
)
from aiperf_hpc.analysis.measures.scaling import efficiency, speedup
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.formatting import percent, si
from aiperf_hpc.host.schedulers import SCHEDULERS
from aiperf_hpc.results.table import Table, optional
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import StepPart, TimePhase, Value

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
    """What one run says of its training steps."""

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
    """Seconds of the steps that were recorded by parts; empty where none were."""

    @property
    def rate(self) -> float:
        """Operations a second of one replica."""
        return self.operations / self.seconds

    @property
    def compute_seconds(self) -> float | None:
        """The time without communication, by its share of recorded steps."""
        if self.ranks == 1:
            return self.seconds
        if not self.parts:
            return None
        compute = self.parts.get(StepPart.COMPUTE, 0.0)
        share = communication_share(compute, communication_seconds(self.parts))
        return self.seconds * (1.0 - share)


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
            "differ in their number of ranks; of public logs the scaling study tells the speed-up"
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
        yield f"{name}: these logs do not tell communication from computation"


def run_steps(entry: Entry) -> RunSteps:
    """Read what a run says of its training steps."""
    view = RunView(RunPaths(Path(entry.path)))
    view.refresh()
    config, history = view.manifest.config, view.history
    times = [times for replica in history.replicas.values() for times in replica.step_times]
    recorded = {part for each in times for part, seconds in each.seconds.items() if seconds}
    values: dict[str, Any] = config.model_dump(mode="json", exclude=set(NOT_OF_THE_STEP))
    for section, names in NOT_COMPUTED.items():
        values[section] = {k: v for k, v in values[section].items() if k not in names}
    return RunSteps(
        entry=entry.name,
        configuration=values,
        hardware=_hardware(view),
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


def _hardware(view: RunView) -> tuple[str, ...]:
    machines = [r.machine for r in view.history.replicas.values() if r.machine is not None]
    return tuple(sorted({name for each in machines for name in (each.cpu, *each.accelerators)}))


def breakdown(run: RunSteps) -> Breakdown:
    """Return the mean step of a run. Raises NotMeasuredError: its steps took no time."""
    compute = run.parts.get(StepPart.COMPUTE, 0.0)
    spent = communication_seconds(run.parts)
    parts = communication_parts(run.parts)
    return Breakdown(
        entry=run.entry,
        collective=run.collective,
        ranks=run.ranks,
        steps=run.steps,
        step=(compute + spent) / run.steps,
        compute=compute / run.steps,
        communication=spent / run.steps,
        parts={part: None if s is None else s / run.steps for part, s in parts.items()},
        share=communication_share(compute, spent),
        ratio=compute_communication_ratio(compute, spent) if spent > 0.0 else None,
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
                yield _of_group(group, scaling)


def _of_group(group: Sequence[RunSteps], scaling: Literal["strong", "weak"]) -> SpeedUp:
    scales: defaultdict[int, list[RunSteps]] = defaultdict(list)
    for run in group:
        scales[run.ranks].append(run)
    ordered = [_together(scales[ranks]) for ranks in sorted(scales)]
    without = "" if all(s.compute_rate is not None for s in ordered) else NO_PARTS
    return SpeedUp(
        subject=f"{group[0].configuration['workload']} on {_dataset(group[0])}",
        scaling=scaling,
        points=_points(ordered),
        missing=without,
    )


NO_PARTS = "not all of these runs recorded the parts of their steps"


def _dataset(run: RunSteps) -> str:
    return str(run.configuration["dataset"]["name"])


@dataclass(frozen=True, slots=True)
class _Scale:
    """The rates at one scale."""

    ranks: int
    entries: tuple[str, ...]
    batch_size: int | None
    rate: float
    compute_rate: float | None


def _together(runs: Sequence[RunSteps]) -> _Scale:
    operations = sum(run.operations for run in runs)
    computing = [run.compute_seconds for run in runs]
    known = [seconds for seconds in computing if seconds]
    return _Scale(
        ranks=runs[0].ranks,
        entries=tuple(run.entry for run in runs),
        batch_size=runs[0].batch_size,
        rate=operations / sum(run.seconds for run in runs),
        compute_rate=operations / sum(known) if len(known) == len(runs) else None,
    )


def _points(scales: Sequence[_Scale]) -> tuple[ScalePoint, ...]:
    """Compare each scale with the smallest."""
    return tuple(_point(scale, scales[0]) for scale in scales)


def _point(scale: _Scale, base: _Scale) -> ScalePoint:
    whole = speedup(scale.rate, base.rate)
    alone = None
    if scale.compute_rate is not None and base.compute_rate is not None:
        alone = speedup(scale.compute_rate, base.compute_rate)
    return ScalePoint(
        ranks=scale.ranks,
        entries=scale.entries,
        batch_size=scale.batch_size,
        rate=scale.rate,
        compute_rate=scale.compute_rate,
        speed_up=whole,
        compute_speed_up=alone,
        efficiency=efficiency(whole, scale.ranks, base.ranks),
        compute_efficiency=(None if alone is None else efficiency(alone, scale.ranks, base.ranks)),
    )


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
