"""Split of a run's elapsed time by phase, and of a training step's time by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.history.presence import presences
from aiperf_hpc.run.records import StepTimes
from aiperf_hpc.trial import StepPart, TimePhase, Value

UNRECORDED = "unrecorded"
"""Name of the elapsed time that no record accounts for."""

PHASES = (*(str(phase) for phase in TimePhase), UNRECORDED)


class PhaseTime(Value):
    """Time in one phase."""

    seconds: float
    fraction: float
    """Fraction of the elapsed time."""


class TimeSplit(Value):
    """Split of the elapsed time of one or all replicas."""

    elapsed_seconds: float
    phases: dict[str, PhaseTime]
    """All phases and, last, the unrecorded time; they sum to the elapsed time."""
    train_evaluate_fraction: float
    """Fraction of the elapsed time spent on training and evaluation."""


class StepSplit(Value):
    """Split of the training steps of replicas with several ranks, as in HPC AI500's table."""

    collective: str
    ranks: int
    """Number of ranks of a replica."""
    steps: int
    seconds: dict[StepPart, float]
    """Seconds of a step by part, averaged over steps and ranks."""
    fractions: dict[StepPart, float]
    """Fraction of a step by part."""


class NetworkWait(Value):
    """Idle time of accelerators that waited for a candidate or its preparation."""

    accelerators: int
    seconds: float
    """Accelerator-seconds, summed over all accelerators."""
    fraction: float
    """Fraction of the accelerators' recorded time, from 0 to 1."""


def network_wait(replicas: Iterable[ReplicaHistory]) -> NetworkWait | None:
    """Return the time that accelerators waited for a network, or None without accelerators.

    All ranks of a replica wait together. The wait for the first network of a replica counts too,
    although no training precedes it.
    """
    accelerators, waited, recorded = 0, 0.0, 0.0
    for replica in replicas:
        if replica.started is None:
            continue
        # The record has the devices of rank 0, and one host name per rank if there are several.
        own = len(replica.started.machine.accelerators) * max(1, len(replica.started.hosts))
        accelerators += own
        recorded += own * sum(replica.seconds.values())
        for phase in (TimePhase.SEARCH_WAIT, TimePhase.BUILD):
            waited += own * replica.seconds.get(phase, 0.0)
    if not accelerators:
        return None
    fraction = waited / recorded if recorded else 0.0
    return NetworkWait(accelerators=accelerators, seconds=waited, fraction=fraction)


def split_time(seconds: Mapping[TimePhase, float], elapsed: float) -> TimeSplit:
    """Return the split of ``elapsed`` seconds, given the recorded time by phase.

    If the recorded time exceeds the elapsed time, e.g. of a replica that outlived the run, the
    recorded time is the total, so that fractions never exceed one.
    """
    recorded = sum(seconds.values())
    whole = max(elapsed, recorded)
    parts = {str(phase): seconds.get(phase, 0.0) for phase in TimePhase}
    parts[UNRECORDED] = whole - recorded
    phases = {
        name: PhaseTime(seconds=part, fraction=part / whole if whole > 0 else 0.0)
        for name, part in parts.items()
    }
    busy = phases[TimePhase.TRAIN].fraction + phases[TimePhase.EVALUATE].fraction
    return TimeSplit(elapsed_seconds=whole, phases=phases, train_evaluate_fraction=busy)


def split_steps(times: Sequence[StepTimes]) -> StepSplit | None:
    """Return the mean step split over all trials that recorded one."""
    steps = sum(each.steps for each in times)
    if not steps:
        return None
    seconds = {part: sum(e.seconds.get(part, 0.0) for e in times) / steps for part in StepPart}
    whole = sum(seconds.values()) or 1.0
    fractions = {part: each / whole for part, each in seconds.items()}
    return StepSplit(
        collective=times[-1].collective,
        ranks=times[-1].ranks,
        steps=steps,
        seconds=seconds,
        fractions=fractions,
    )


def total_time(view: RunView, elapsed: float) -> TimeSplit:
    """Return the time split of all replicas; a replica that never started has only unrecorded time.

    If the number of nodes changed, only the time of present nodes counts.
    """
    replicas = view.history.replicas.values()
    seconds = {phase: sum(r.seconds.get(phase, 0.0) for r in replicas) for phase in TimePhase}
    if view.history.scalings:
        lives = presences(view.history, view.until)
        return split_time(seconds, sum(life.end - life.begin for life in lives))
    return split_time(seconds, elapsed * max(view.manifest.replicas, len(replicas)))
