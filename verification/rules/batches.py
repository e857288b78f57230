"""Batch sizes: those that were to be tried, and why smaller ones were used."""

from __future__ import annotations

import re

from aiperf_hpc.run.history import Trial
from aiperf_hpc.system.summary import size
from aiperf_hpc.trial import RoundPhase, TrialState
from aiperf_hpc.verification.evidence import Evidence, Failures

HALVED = re.compile(
    r"(\S+) did not fit on the accelerator in batches of (\d+); (\d+) with the same learning rate"
)
"""The program's note on a trial that is another one in batches of half the size."""
SHRUNK = "batch size {planned} does not fit in memory; {used} is used"
"""Its note on a trial whose batches are smaller than planned."""


def halved_trial(trial: Trial) -> str | None:
    """Return the trial that this one is in batches of half the size, as its note says."""
    found = [match for note in trial.started.notes if (match := HALVED.fullmatch(note))]
    return found[0][1] if found else None


def batches(run: Evidence) -> Failures:
    """A trial has a batch size of the configuration, or less where memory asked for it."""
    for trial in run.begun:
        started = trial.started
        used = started.hyperparameters.batch_size
        planned = used if started.planned_batch_size is None else started.planned_batch_size
        yield from _planned(run, trial, planned)
        if started.planned_batch_size is not None:
            yield from _shrunk(run, trial, planned, used)


def _planned(run: Evidence, trial: Trial, planned: int) -> Failures:
    """What was planned is of the space, or of the trial that this one goes on with."""
    resumes, halves = trial.started.resumes, halved_trial(trial)
    if halves is not None:
        yield from _halved(run, trial, halves, planned)
        return
    if resumes is not None:
        return  # The rule ``resumes`` compares it with the trial that it goes on with.
    searched = run.config.hpo.space if trial.started.phase is RoundPhase.HPO else None
    allowed = searched.batch_size.values if searched else (run.config.training.batch_size,)
    if planned not in allowed:
        yield f"{trial.id}: batch size {planned} is not one of {list(allowed[:8])}"


def _halved(run: Evidence, trial: Trial, halves: str, planned: int) -> Failures:
    """A trial that is another one in half its batches follows it, which failed."""
    before = run.history.trials.get(halves)
    one = before.started if before is not None else None
    if before is None or one is None or before.replica != trial.replica:
        yield f"{trial.id} is {halves} in smaller batches, which is no trial of {trial.replica}"
        return
    same = ("round", "phase", "graph", "parent", "proposal", "morphisms", "epoch_limit")
    differ = [name for name in same if getattr(one, name) != getattr(trial.started, name)]
    if differ:
        yield f"{trial.id} is {halves} in smaller batches, but its {differ[0]} is another"
    failed = before.ended is not None and before.ended.state is TrialState.FAILED
    if not failed or before.started_utc > trial.started_utc:
        yield f"{trial.id} is {halves} in smaller batches, which had not failed"
    if planned != one.hyperparameters.batch_size // 2:
        yield (
            f"{trial.id}: batch size {planned} is not half of {one.hyperparameters.batch_size}, "
            f"which {halves} had"
        )


def _shrunk(run: Evidence, trial: Trial, planned: int, used: int) -> Failures:
    """Batches were halved as often as their estimate did not fit in memory, and it is noted."""
    if SHRUNK.format(planned=planned, used=used) not in trial.started.notes:
        yield f"{trial.id}: no note says that {used} is used where {planned} was planned"
    limit = run.memory_limit(trial)
    if limit is None:
        return  # An earlier version did not record it.
    fitting = limit.fitting_batch(run.graph(trial), planned)
    if fitting != used:
        yield (
            f"{trial.id}: batch size {used} is used where {planned} was planned; in "
            f"{size(limit.bytes)} fit {fitting}"
        )
