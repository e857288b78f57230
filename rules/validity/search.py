"""Rules on the search: the initial network, its morphisms and the hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiperf_hpc.rules.proposal import unlike_proposal
from aiperf_hpc.rules.rule import Each, Findings, Found
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.rules.validity.settings import CLOSED
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.records import TrialStarted
from aiperf_hpc.trial import Hyperparameters, RoundPhase, ScheduleSettings

RESNET50: Final = "5d8e832a7c608c926178ef7b6d47f5ba"
"""Hash of ResNet-50's graph for ImageNet."""
LEAST_HPO_TRIALS: Final = 4
"""Number of trials of hyperparameter optimization that count as random in any configuration."""
FIRST_HPO_ROUND: Final = 4
BATCH: Final[int] = CLOSED["training.batch_size"]
BATCHES: Final = range(256, 448 + 1, 64)
KERNELS: Final = (None, 3, 5, 7)
CLOSED_HYPERPARAMETERS: Final = (
    f"batch {BATCH}; HPO {BATCHES.start} to {BATCHES[-1]}, kernels 3, 5, 7"
)
EXACT: Final = {
    name: CLOSED[f"training.{name}"]
    for name in (
        "optimizer", "learning_rate", "momentum", "weight_decay", "label_smoothing",
        "max_gradient_norm", "weight_decay_of", "weight_decay_in",
    )
}  # fmt: skip
SCHEDULE: Final = ScheduleSettings()
"""Learning-rate schedule of the closed division: linear to zero, by steps."""
WARMUP_EPOCHS: Final[list[int]] = CLOSED["rounds.warmup_epochs"]
MOST_EPOCHS: Final[int] = CLOSED["training.max_epochs"]


def initial(run: RunEvidence) -> Findings:
    """The first trial of each replica trains ResNet-50."""
    graphs = sorted({t[0].started.graph[:8] for t in run.trials_of.values() if t})
    yield Found(", ".join(graphs) or "none")
    for replica, trials in run.trials_of.items():
        if trials and (graph := trials[0].started.graph) != RESNET50:
            yield Each(f"{replica} begins with {graph[:8]}; ResNet-50 is required")


def morphism(run: RunEvidence) -> Findings:
    """At least one network grown by morphisms was trained before the end of the run."""
    late = run.history.executions.after(run.end)
    grown = sum(
        trial.train_samples > late.get(trial.id, (0, 0))[0]
        for trial in run.trials
        if trial.started.morphisms
    )
    yield Found(f"{grown:,} trials")
    if not grown:
        yield "no trial trained a network grown by morphism"


def proposals(run: RunEvidence) -> Findings:
    """Each grown network was proposed by the search."""
    grown = [trial for trial in run.trials if trial.started.morphisms]
    yield Found(f"{len(grown):,} grown networks")
    for trial in grown:
        proposal = run.history.proposals.get(trial.started.proposal or "")
        if proposal is None:
            yield Each(f"{trial.id} has a network that no record proposes")
        elif any(unlike_proposal(trial.started, proposal)):
            yield Each(f"{trial.id} trained another network than {proposal.id} proposed")


def hpo(run: RunEvidence) -> Findings:
    """Each replica that reaches round ``FIRST_HPO_ROUND`` has more trials of hyperparameter
    optimization than TPE's random startup trials."""
    done = {name: evaluated_hpo(run, trials) for name, trials in run.trials_of.items()}
    least, most = min(done.values(), default=0), max(done.values(), default=0)
    number = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    yield Found(f"{number} HPO trials per replica")
    if not any(done.values()):
        yield "no replica evaluated a trial of hyperparameter optimization"
        return
    for name, trials in run.trials_of.items():
        reached = max((trial.started.round for trial in trials), default=0)
        if reached >= FIRST_HPO_ROUND and done[name] <= LEAST_HPO_TRIALS:
            yield Each(
                f"{name} reached round {reached} and evaluated {done[name]} trials of "
                f"hyperparameter optimization; {LEAST_HPO_TRIALS} are random"
            )


def evaluated_hpo(run: RunEvidence, trials: list[Trial]) -> int:
    """Return the number of trials of hyperparameter optimization evaluated before the end."""
    return sum(
        trial.started.phase is RoundPhase.HPO and any(e.utc <= run.end for e in trial.evaluations)
        for trial in trials
    )


def hyperparameters(run: RunEvidence) -> Findings:
    """Each trial was trained with the closed division's hyperparameters."""
    yield Found(f"{len(run.history.trials):,} trials")
    for trial in run.trials:
        if wrong := next(_wrong(trial.started), None):
            yield Each(f"{trial.id}: {wrong}")


def _wrong(started: TrialStarted) -> Iterator[str]:
    """Yield the hyperparameters of a trial that the closed division does not allow."""
    used = started.hyperparameters
    if started.phase is RoundPhase.HPO:
        if used.batch_size not in BATCHES:
            yield f"batch size {used.batch_size}"
        if used.kernel_size not in KERNELS:
            yield f"kernel size {used.kernel_size}"
    elif used.batch_size != BATCH or used.kernel_size is not None:
        yield f"batch size {used.batch_size}, kernel size {used.kernel_size or 'none'}"
    yield from _inexact(used)
    rounds = dict(enumerate(WARMUP_EPOCHS, 1))
    if started.epoch_limit != rounds.get(started.round, MOST_EPOCHS):
        yield f"{started.epoch_limit} epochs in round {started.round}"


def _inexact(used: Hyperparameters) -> Iterator[str]:
    for name, value in EXACT.items():
        if getattr(used, name) != value:
            yield f"{name} {getattr(used, name)}"
    if used.schedule is not SCHEDULE and used.schedule != SCHEDULE:
        yield f"schedule {used.schedule.name}"
