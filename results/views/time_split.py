"""Where the elapsed time of a run went, by phase, and the time of a training step, by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import ReplicaHistory
from aiperf_hpc.run.history.presence import presences
from aiperf_hpc.run.records import StepTimes
from aiperf_hpc.trial import StepPart, TimePhase, Value

UNRECORDED = "unrecorded"
"""The part of the elapsed time that no record accounts for."""

PHASES = (*(str(phase) for phase in TimePhase), UNRECORDED)


class PhaseTime(Value):
    """Time in one phase; ``share`` is of the elapsed time."""

    seconds: float
    share: float


class TimeSplit(Value):
    """Where the elapsed time of a replica, or of all of them, went."""

    elapsed_seconds: float
    phases: dict[str, PhaseTime]
    """Every phase and, last, what no record accounts for; together the elapsed time."""
    train_evaluate_share: float


class StepSplit(Value):
    """Where the training steps of replicas of several ranks went: HPC AI500's table."""

    collective: str
    ranks: int
    """The number of ranks of a replica."""
    steps: int
    seconds: dict[StepPart, float]
    """Seconds of a step by part, as the mean over steps and ranks."""
    shares: dict[StepPart, float]


class NetworkWait(Value):
    """How long accelerators waited for a network: for a candidate, or for its preparation."""

    accelerators: int
    seconds: float
    """Accelerator-seconds: of all accelerators together."""
    share: float
    """The fraction of their recorded time, from 0 to 1."""


def network_wait(replicas: Iterable[ReplicaHistory]) -> NetworkWait | None:
    """Return how long accelerators waited for a network; None for a run without accelerators.

    A replica's ranks wait together. The first network of a replica, which nothing is trained
    before, counts too.
    """
    accelerators, waited, recorded = 0, 0.0, 0.0
    for replica in replicas:
        if replica.started is None:
            continue
        # The record has the devices of the first rank; a host is named for each of several ranks.
        own = len(replica.started.machine.accelerators) * max(1, len(replica.started.hosts))
        accelerators += own
        recorded += own * sum(replica.seconds.values())
        for phase in (TimePhase.SEARCH_WAIT, TimePhase.BUILD):
            waited += own * replica.seconds.get(phase, 0.0)
    if not accelerators:
        return None
    share = waited / recorded if recorded else 0.0
    return NetworkWait(accelerators=accelerators, seconds=waited, share=share)


def split_time(seconds: Mapping[TimePhase, float], elapsed: float) -> TimeSplit:
    """Return where ``elapsed`` seconds went, given what was recorded of them.

    Where more is recorded than elapsed, e.g. by a replica that outlived the run, what is
    recorded is the whole, so that shares never exceed one.
    """
    recorded = sum(seconds.values())
    whole = max(elapsed, recorded)
    parts = {str(phase): seconds.get(phase, 0.0) for phase in TimePhase}
    parts[UNRECORDED] = whole - recorded
    phases = {
        name: PhaseTime(seconds=part, share=part / whole if whole > 0 else 0.0)
        for name, part in parts.items()
    }
    busy = phases[TimePhase.TRAIN].share + phases[TimePhase.EVALUATE].share
    return TimeSplit(elapsed_seconds=whole, phases=phases, train_evaluate_share=busy)


def split_steps(times: Sequence[StepTimes]) -> StepSplit | None:
    """Return the mean step of all trials that said where their steps' time went."""
    steps = sum(each.steps for each in times)
    if not steps:
        return None
    seconds = {part: sum(e.seconds.get(part, 0.0) for e in times) / steps for part in StepPart}
    whole = sum(seconds.values()) or 1.0
    shares = {part: each / whole for part, each in seconds.items()}
    return StepSplit(
        collective=times[-1].collective,
        ranks=times[-1].ranks,
        steps=steps,
        seconds=seconds,
        shares=shares,
    )


def total_time(view: RunView, elapsed: float) -> TimeSplit:
    """Return the time of all replicas; one that never came up has only unrecorded time.

    Of a run whose nodes came and went, the time is that of the nodes that were there.
    """
    replicas = view.history.replicas.values()
    seconds = {phase: sum(r.seconds.get(phase, 0.0) for r in replicas) for phase in TimePhase}
    if view.history.scalings:
        lives = presences(view.history, view.until)
        return split_time(seconds, sum(life.end - life.begin for life in lives))
    return split_time(seconds, elapsed * max(view.manifest.replicas, len(replicas)))
