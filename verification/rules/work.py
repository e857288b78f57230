"""What was executed: graphs, operations a sample, samples, evaluations."""

from __future__ import annotations

import math
from collections import Counter

from aiperf_hpc.errors import AIPerfError, GraphError
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.workloads.registry import workload_of


def graphs(run: Evidence) -> Failures:
    """Every graph is grown again, and stored as such."""
    looked: set[str] = set()
    for trial in run.trials:
        name = trial.started.graph
        try:
            run.graph(trial)  # Its hash is what the trial recorded.
        except AIPerfError as error:
            yield f"{trial.id}: {error}"
            continue
        if name in looked:
            continue
        looked.add(name)
        try:
            run.view.graphs.load(name)  # Its hash is its name.
        except GraphError as error:
            yield f"{trial.id}: {error}; the recorded morphisms give it again"


def counts(run: Evidence) -> Failures:
    """What a trial recorded of its graph is the count of the graph grown again."""
    for trial in run.trials:
        started = trial.started
        try:
            recount = run.count(trial)
        except AIPerfError as error:
            yield f"{trial.id}: {error}"
            continue
        recorded = (
            started.train_operations,
            started.validation_operations,
            started.parameters,
            started.depth,
        )
        if recount != recorded:
            yield f"{trial.id}: recorded {recorded}, recounted {tuple(recount)}"


def samples(run: Evidence) -> Failures:
    """An epoch executes each sample once; a part of an epoch not more than that."""
    trained: Counter[tuple[str, int]] = Counter()
    validated: Counter[tuple[str, int]] = Counter()
    for progress in run.progress():
        trained[progress.trial, progress.epoch] += progress.train_samples
        validated[progress.trial, progress.epoch] += progress.validation_samples
    for progress in run.progress():
        utc, trial = progress.utc, run.history.trials.get(progress.trial)
        if trial is None:
            continue  # The rule ``journals`` reports it.
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


def numbers_a_sample(run: Evidence) -> int:
    """Return how many numbers a sample's targets are."""
    shapes = (spec.shape for spec in workload_of(run.config).objective.targets.values())
    return sum(math.prod(size or 1 for size in shape) for shape in shapes)


def evaluations(run: Evidence) -> Failures:
    """Each epoch is evaluated once, in order, on the whole validation set, by one measure."""
    wanted = workload_of(run.config).objective.measure
    for trial in run.trials:
        epochs = [e.epoch for e in trial.evaluations]
        first, limit = trial.started.first_epoch, trial.started.epoch_limit
        if epochs != list(range(first, first + len(epochs))) or (epochs and epochs[-1] > limit):
            yield f"{trial.id}: evaluated epochs {epochs}, from {first} to at most {limit}"
        for result in trial.evaluations:
            if run.datasets and result.samples != run.dataset.validation_samples:
                yield f"{trial.id}, epoch {result.epoch}: {result.samples} samples evaluated"
            if result.measure.name != wanted:
                yield f"{trial.id}, epoch {result.epoch}: {result.measure.name}, not {wanted}"
            values, due = result.sums.get("values"), result.samples * numbers_a_sample(run)
            if values is not None and values != due:
                what = f"{values:g} values of {result.samples} samples, there must be {due}"
                yield f"{trial.id}, epoch {result.epoch}: {what}"
            if not math.isfinite(result.validation_loss):
                yield f"{trial.id}, epoch {result.epoch}: loss {result.validation_loss}"
