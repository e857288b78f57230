"""Rules on the course of trials: their order, rounds, states and time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from aiperf_hpc.config import Reals, RunConfig
from aiperf_hpc.morphism.operators.morphisms import inserted_spatial_convs
from aiperf_hpc.rules.consistency.evidence import Attempt, Evidence, quality
from aiperf_hpc.rules.consistency.journal import CLOCK_TOLERANCE
from aiperf_hpc.rules.rule import Checked, Findings
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.run.records import TIME_OVER, TRAININGS_DONE, ReplicaEnded, RunEnded, TimeSpent
from aiperf_hpc.trial import RoundPhase, TrialState


def order(run: Evidence) -> Findings:
    """The trials of a replica, which has one trainer, are sequential and follow the run's start.

    A trial may start before the end of the previous one is recorded, which waits until the weights
    are stored, but not before its last samples were executed. Records after the run's end, by a
    disconnected replica or a clock that is ahead, are neither counted nor a failure.
    """
    yield Checked(len(run.trials))
    for path, journal in run.journals.items():
        where = path.relative_to(run.paths.root)
        yield from (f"{where}, {what}" for what in journal.reopened)
    start = run.history.start_utc
    if run.history.run_started is None:
        yield "the primary recorded no start of the run"
        return
    start = run.end if start is None else start  # No trial can start before the clock.
    executed: dict[str, float] = {}
    earliest: dict[str, float] = {}
    for progress in run.progress():
        executed[progress.trial] = max(progress.utc, executed.get(progress.trial, progress.utc))
    for replica in run.history.replicas.values():
        free = since = start - (run.tolerance(replica) - CLOCK_TOLERANCE)
        for trial in (run.history.trials[name] for name in replica.trials):
            earliest[trial.id] = since
            if trial.started_utc < free - CLOCK_TOLERANCE - run.stepped(replica):
                yield f"{trial.id} started {free - trial.started_utc:.3f} s before it could"
            in_order = replica.ended is not None and not replica.ended.startswith("failed")
            if in_order and trial.ended is None and not trial.interrupted:
                yield f"{trial.id} has no end although {replica.id} shut down cleanly"
            free = max(trial.started_utc, executed.get(trial.id, trial.started_utc))
    early = [p.trial for p in run.progress() if p.utc < earliest.get(p.trial, start)]
    if early:
        yield f"{len(early)} records of executed samples are before the start: {sorted(set(early))}"


def rounds(run: Evidence) -> Findings:
    """Warm-up precedes HPO, limits are as configured, and graphs have the chosen kernel size."""
    yield Checked(len(run.trials))
    for trial in run.trials:
        started = trial.started
        phase, limit = _expected(run.config, started.round)
        if (started.phase, started.epoch_limit) != (phase, limit):
            yield (
                f"{trial.id}: round {started.round} is {phase} with {limit} epochs, recorded are "
                f"{started.phase} with {started.epoch_limit}"
            )
        yield from _used(run, trial)
        chosen = started.hyperparameters.kernel_size
        if chosen is not None:
            sizes = set(inserted_spatial_convs(run.graph(trial)).values())
            if sizes != {chosen}:
                yield f"{trial.id}: kernel size {chosen} was chosen, its graph has {sorted(sizes)}"


def _expected(config: RunConfig, number: int) -> tuple[RoundPhase, int]:
    """Return the phase of a round and the maximum epochs of its trials."""
    warmup, most = config.rounds.warmup_epochs, config.training.max_epochs
    if config.search.method == "fixed":
        return RoundPhase.FIXED, most
    if number <= len(warmup):
        return RoundPhase.WARMUP, warmup[number - 1]
    return RoundPhase.HPO, most


def _used(run: Evidence, trial: Trial) -> Iterator[str]:
    """The hyperparameters are as configured or in the search space."""
    training, used = run.config.training, trial.started.hyperparameters
    searched = run.config.hpo.space if trial.started.phase is RoundPhase.HPO else None
    for name in (
        "optimizer", "learning_rate", "momentum", "weight_decay", "label_smoothing", "precision",
        "beta1", "beta2", "epsilon", "max_gradient_norm", "averaging_start", "schedule",
        "weight_decay_of", "weight_decay_in",
    ):  # fmt: skip
        value, dimension = getattr(used, name), getattr(searched, name, None)
        if isinstance(dimension, Reals):
            if not dimension.low <= value <= dimension.high:
                yield f"{trial.id}: {name} {value} is not from {dimension.low} to {dimension.high}"
        elif value != getattr(training, name):
            yield f"{trial.id}: {name} {value}, configured {getattr(training, name)}"
    sizes = (None, *searched.kernel_size.values) if searched else (None,)
    if used.kernel_size not in sizes:
        yield f"{trial.id}: kernel size {used.kernel_size} is not in the search space"


def trainings(run: Evidence) -> Findings:
    """A replica has at most the requested training runs, and all of them if it ended as done."""
    yield Checked(len(run.history.replicas))
    wanted = run.config.search.max_trainings
    for replica in run.history.replicas.values():
        trials = [run.history.trials[name] for name in replica.trials]
        begun = max((trial.started.round for trial in trials), default=0)
        ended = {trial.started.round for trial in trials if trial.ended is not None}
        if wanted is not None and begun > wanted:
            yield f"{replica.id} began training {begun} of {wanted}"
        if replica.ended == TRAININGS_DONE and len(ended) != wanted:
            count = f"{len(ended)} training runs of {wanted or 'any'}"
            yield f"{replica.id} ended as if done, with {count}"


def states(run: Evidence) -> Findings:
    """A completed trial has all epochs or reached the target, and a failed one has a reason."""
    yield Checked(len(run.trials))
    last_ended: dict[tuple[str, Incarnation], float] = {}
    for trial in run.trials:
        if trial.ended is not None:
            attempt = trial.replica, trial.incarnation
            last_ended[attempt] = max(trial.started_utc, last_ended.get(attempt, trial.started_utc))
    for trial in run.trials:
        yield from _patience(run, trial)
        if trial.ended is None:
            # Ends of trials are recorded in order within an attempt.
            started = trial.started_utc + run.stepped(run.history.replicas[trial.replica])
            if started < last_ended.get((trial.replica, trial.incarnation), 0.0):
                yield f"{trial.id} has no end although a later one has"
            continue
        if not trial.ended.state.ended:
            yield f"{trial.id} ended in the state {trial.ended.state}"
        due = trial.started.epoch_limit - trial.started.first_epoch + 1
        full = len(trial.evaluations) == due or _reached(run.config.training.target, trial)
        if trial.ended.state is TrialState.COMPLETED and not full:
            yield f"{trial.id} is completed after {len(trial.evaluations)} epochs"
        if trial.ended.state is TrialState.FAILED and not trial.ended.reason:
            yield f"{trial.id} failed without a reason"


def _patience(run: Evidence, trial: Trial) -> Iterator[str]:
    """A trial stops when its validation loss has not improved for the configured epochs."""
    lowest, since, patience = math.inf, 0, run.config.training.patience
    for each in run.evaluations(trial):
        if since >= patience:
            what = f"without a lower loss for {since} epochs"
            yield f"{trial.id} continued to epoch {each.epoch}, {what}"
            return
        loss = each.validation_loss
        lowest, since = (loss, 0) if loss < lowest else (lowest, since + 1)


def _reached(target: float | None, trial: Trial) -> bool:
    """Return whether a trial's last evaluation is the first one that reaches the target."""
    if target is None or not trial.evaluations:
        return False
    found = [e.quality_metric.reaches(quality(e), target) for e in trial.evaluations]
    return found[-1] and not any(found[:-1])


def time(run: Evidence) -> Findings:
    """The recorded time breakdowns match the elapsed time, and the run lasted as requested.

    An attempt that shut down cleanly has recorded every second from its start to its end, and any
    other at most the time until its last record.
    """
    yield Checked(len(run.history.replicas))
    start = run.history.origin_utc or run.end
    for replica in run.history.replicas.values():
        spent, elapsed = sum(replica.seconds.values()), max(run.end, replica.last_utc) - start
        if spent > elapsed + CLOCK_TOLERANCE + run.stepped(replica):
            yield f"{replica.id} spent {spent:.1f} s of {elapsed:.1f} s"
    for attempt in run.attempts:
        yield from (f"{attempt}: {what}" for what in _split(attempt, run.steps_of(attempt.path)))
    yield from _whole(run, start)


def _split(attempt: Attempt, stepped: float) -> Iterator[str]:
    """The time breakdown of an ended attempt covers its whole time until the last such record.

    A failed attempt may have lost its last record. Clock steps and suspensions are not included in
    the breakdown.
    """
    ends = attempt.journal.records_of(ReplicaEnded)
    if not ends or ends[-1][1].reason[:6] == "failed":
        return
    splits = attempt.journal.records_of(TimeSpent)
    if not splits or splits[-1][1].trial is not None:
        yield "it ended without the last of its time split"
        return
    spent = sum(sum(event.seconds.values()) for _, event in splits)
    lived = splits[-1][0] - attempt.started[0]
    if spent < lived - 2.0 * CLOCK_TOLERANCE - stepped:
        yield f"it accounts for {spent:.1f} s of {lived:.1f} s"


def _whole(run: Evidence, start: float) -> Iterator[str]:
    """A run or replica that ended after the requested runtime lasted that long."""
    wanted = run.manifest.hours * 3600.0
    replicas = run.history.replicas.values()
    # It may end by a replica's clock that is ahead.
    ahead = max(map(run.tolerance, replicas), default=0.0)
    ends = [
        ("the run", utc + ahead, event.reason) for utc, event in run.primary.records_of(RunEnded)
    ]
    for replica in replicas:
        if replica.ended is not None:
            ends.append((replica.id, replica.ended_utc + run.tolerance(replica), replica.ended))
    for who, utc, reason in ends:
        if reason == TIME_OVER and utc - start < wanted - CLOCK_TOLERANCE:
            yield f"{who} ended after {utc - start:.1f} s because {reason}, of {wanted:.1f} s"
