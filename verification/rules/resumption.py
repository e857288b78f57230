"""Trials that go on with interrupted ones."""

from __future__ import annotations

from aiperf_hpc.run.history import Trial
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.rules.batches import halved_trial

SAME = ("round", "phase", "graph", "parent", "proposal", "morphisms", "epoch_limit")
"""What a trial has in common with the one that it goes on with."""


def resumes(run: Evidence) -> Failures:
    """A trial begins at its first epoch, or goes on with one that a life of its replica left."""
    gone_on: dict[str, str] = {}
    for trial in run.begun:
        started = trial.started
        if started.resumes is None:
            if started.first_epoch != 1:
                yield f"{trial.id} begins with epoch {started.first_epoch}, and resumes no trial"
            continue
        before = run.history.trials.get(started.resumes)
        if before is None:
            yield f"{trial.id} resumes {started.resumes}, which is unknown"
            continue
        yield from (
            f"{trial.id} resumes {before.id}, {what}" for what in _wrong(run, trial, before)
        )
        if halved_trial(trial) is None:
            other = gone_on.setdefault(before.id, trial.id)
            if other != trial.id:
                yield f"{trial.id} resumes {before.id}, as {other} did"


def _wrong(run: Evidence, trial: Trial, before: Trial) -> Failures:
    """Yield what keeps a trial from going on with another."""
    if before.replica != trial.replica or before.incarnation >= trial.incarnation:
        yield "which is not of an earlier life of its replica"
    if before.ended is not None:
        yield "which was not interrupted"
    latest = [t for t in _earlier(run, trial) if t.started_utc > before.started_utc]
    if latest:
        yield f"although {latest[0].id} came after that"
    differ = [n for n in SAME if getattr(before.started, n) != getattr(trial.started, n)]
    if differ:
        yield f"but its {differ[0]} is another"
    first, last = before.started.first_epoch, run.told_of_trials.evaluated.get(before.id, 0)
    if not first < trial.started.first_epoch <= last + 1:
        yield (
            f"which had evaluated epochs {first} to {last}, from epoch {trial.started.first_epoch}"
        )
    used = trial.started.hyperparameters
    planned = trial.started.planned_batch_size or used.batch_size
    wanted = before.started.hyperparameters
    if halved_trial(trial) is None and (
        planned != wanted.batch_size or used.model_copy(update={"batch_size": planned}) != wanted
    ):
        yield "but with other hyperparameters"


def _earlier(run: Evidence, trial: Trial) -> list[Trial]:
    """Return the trials of earlier lives of a trial's replica."""
    own = (run.history.trials[name] for name in run.history.replicas[trial.replica].trials)
    return [other for other in own if other.incarnation < trial.incarnation]
