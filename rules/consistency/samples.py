"""Rules on samples, evaluations, and the baseline of a trivial predictor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.rule import Checked, Findings
from aiperf_hpc.run.records import BaselineMeasured

DIGITS = 1e-9
"""Relative tolerance of sums, which ranks add up in different orders."""


def samples(run: Evidence) -> Findings:
    """An epoch executes each sample once, and a part of an epoch at most once."""
    yield Checked(sum(1 for _ in run.progress()))
    trained: Counter[tuple[str, int]] = Counter()
    validated: Counter[tuple[str, int]] = Counter()
    for progress in run.progress():
        trained[progress.trial, progress.epoch] += progress.train_samples
        validated[progress.trial, progress.epoch] += progress.validation_samples
    for progress in run.progress():
        utc, trial = progress.utc, run.history.trials.get(progress.trial)
        if trial is None:
            continue  # Reported by the rule ``journals``.
        started, last = trial.training_utc, trial.ended_utc
        slack = run.stepped(run.history.replicas[trial.replica])
        begun = started is not None and started - slack <= utc
        within = begun and utc <= (utc if last is None else last) + slack
        due = trial.started.first_epoch + len(trial.evaluations)
        if not within or not trial.started.first_epoch <= progress.epoch <= min(
            due, trial.started.epoch_limit
        ):
            yield f"{trial.id}: samples of epoch {progress.epoch} outside of its training"
    if not run.datasets:
        return
    full = run.dataset.train_samples, run.dataset.validation_samples
    evaluated = {(t.id, e.epoch) for t in run.trials for e in t.evaluations}
    for key in sorted(trained.keys() | evaluated):
        done = trained[key], validated[key]
        complete = key in evaluated
        if done != full if complete else (done[0] > full[0] or done[1] > full[1]):
            wanted = "must be" if complete else "may be at most"
            yield f"{key[0]}, epoch {key[1]}: {done} samples executed, {wanted} {full}"
        elif key[0] in run.history.trials:
            batch = run.history.trials[key[0]].started.hyperparameters.batch_size
            if any(n % batch and n != most for n, most in zip(done, full, strict=True)):
                what = f"{done} samples executed, not in whole batches of {batch}"
                yield f"{key[0]}, epoch {key[1]}: {what}"


def _due(run: Evidence, sums: Mapping[str, float], samples: int) -> int | None:
    """Return the required number of values of sums, or None if it is right or not recorded."""
    shapes = (spec.shape for spec in run.objective.targets.values())
    due = samples * sum(math.prod(size for size in shape if size is not None) for shape in shapes)
    return None if sums.get("values", due) == due else due


def evaluations(run: Evidence) -> Findings:
    """Each epoch is evaluated once, in order, on the whole validation set, by the same metric."""
    yield Checked(sum(len(trial.evaluations) for trial in run.trials))
    wanted = run.objective.metric
    for trial in run.trials:
        epochs = [e.epoch for e in trial.evaluations]
        first, limit = trial.started.first_epoch, trial.started.epoch_limit
        if epochs != list(range(first, first + len(epochs))) or (epochs and epochs[-1] > limit):
            yield f"{trial.id}: evaluated epochs {epochs}, from {first} to at most {limit}"
        for result in trial.evaluations:
            if run.datasets and result.samples != run.dataset.validation_samples:
                yield f"{trial.id}, epoch {result.epoch}: {result.samples} samples evaluated"
            if result.quality_metric.name != wanted:
                name = result.quality_metric.name
                yield f"{trial.id}, epoch {result.epoch}: {name}, not {wanted}"
            if (due := _due(run, result.sums, result.samples)) is not None:
                what = f"{result.sums['values']:g} values of {result.samples} samples"
                yield f"{trial.id}, epoch {result.epoch}: {what}, there must be {due}"
            if not math.isfinite(result.validation_loss):
                yield f"{trial.id}, epoch {result.epoch}: loss {result.validation_loss}"


def baselines(run: Evidence) -> Findings:
    """Baselines use the run's metric and all validation samples, and are equal on all replicas.

    A baseline depends only on the targets, which all replicas share. ``--execute`` measures it
    again.
    """
    metric = run.objective.metric
    baselines = list(_measured(run))
    yield Checked(len(baselines))
    for who, event in baselines:
        if event.metric != metric:
            yield f"{who} evaluated a baseline by {event.metric}; the run's metric is {metric}"
        for wanted in {dataset.validation_samples for dataset in run.datasets}:
            if event.samples != wanted:
                yield f"{who} measured a baseline on {event.samples} samples, there are {wanted}"
        if (due := _due(run, event.sums, event.samples)) is not None:
            values = event.sums["values"]
            yield f"{who} measured a baseline on {values:g} values, there must be {due}"
        if not _alike(event, baselines[0][1]):
            yield f"{who} measured a different baseline from {baselines[0][0].removesuffix(',')}"
    if baselines and run.config.search.searches:
        yield f"{baselines[0][0]} measured a baseline, though a network was searched for"


def _measured(run: Evidence) -> Iterator[tuple[str, BaselineMeasured]]:
    for attempt in run.attempts:
        for _, event in attempt.journal.records_of(BaselineMeasured):
            yield f"{attempt},", event


def _alike(one: BaselineMeasured, other: BaselineMeasured) -> bool:
    return one.sums.keys() == other.sums.keys() and all(
        math.isclose(value, other.sums[name], rel_tol=DIGITS) for name, value in one.sums.items()
    )
