"""Rules on what was trained: the initial network, what grew from it, how it was tuned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence, told
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.run.history import Trial
from aiperf_hpc.trial import RoundPhase

MOST_ERROR: Final = 0.30
RESNET50: Final = "5d8e832a7c608c926178ef7b6d47f5ba"
"""The hash of ResNet-50 for ImageNet's images and classes."""
LEAST_HPO_TRIALS: Final = 4
"""The trials of hyperparameter optimisation that are random, whatever a run has configured."""
FIRST_HPO_ROUND: Final = 4
RESIZED: Final = "kernel"
"""The kind of morphism by which a trial takes the kernel size that was chosen for it."""


def engine(run: RunEvidence) -> RuleCheck:
    """A simulated engine lets time pass; whatever is counted, nothing was computed."""
    used = {r.started.engine for r in run.replicas if r.started is not None}
    broken = ("simulated engine: nothing was computed",) if "simulated" in used else ()
    return RuleCheck("engine", ", ".join(sorted(used)) or "none", "not simulated", broken)


def error(run: RunEvidence) -> RuleCheck:
    """The best complete evaluation is good enough."""
    limit, found = f"<= {MOST_ERROR:.0%}", run.final.error
    if found is None:
        return RuleCheck("error", "none", limit, ("no evaluation was completed",))
    value = f"{found:.2%}"
    broken = (f"{value}; at most {MOST_ERROR:.0%} is required",)
    return RuleCheck("error", value, limit, broken if found > MOST_ERROR else ())


def weights(run: RunEvidence) -> RuleCheck:
    """What the best evaluation evaluated was kept, so that others can evaluate it again."""
    best = run.history.best_until(run.end)
    trial = None if best is None else run.history.trials.get(best.trial)
    limit = "of the best evaluation"
    if trial is None:
        return RuleCheck("weights", "none", limit, ("no evaluation was completed",))
    kept = trial.best_epoch
    if best is not None and kept is not None and kept.epoch == best.epoch:
        return RuleCheck("weights", f"{trial.id}, epoch {kept.epoch}", limit)
    return RuleCheck("weights", "none", limit, (f"those of {trial.id} were not kept",))


def initial(run: RunEvidence) -> RuleCheck:
    """Each replica begins with ResNet-50."""
    return RuleCheck.of(
        "initial network",
        ", ".join(sorted({t[0].started.graph[:8] for t in run.trials_of.values() if t})) or "none",
        f"{RESNET50[:8]}, ResNet-50",
        told(_other_beginnings(run)),
    )


def _other_beginnings(run: RunEvidence) -> Iterator[str]:
    for replica, trials in run.trials_of.items():
        if trials and trials[0].started.graph != RESNET50:
            yield f"{replica} begins with {trials[0].started.graph[:8]}; ResNet-50 is required"


def morphism(run: RunEvidence) -> RuleCheck:
    """A network that grew was trained until the end, not only begun."""
    late = run.history.executions.after(run.end)
    grown = sum(
        trial.train_samples > late.get(trial.id, (0, 0))[0]
        for trial in run.trials
        if trial.started.morphisms
    )
    broken = () if grown else ("no trial trained a network grown by morphism",)
    return RuleCheck("network morphism", f"{grown:,} trials", ">= 1 trial of a grown one", broken)


def proposals(run: RunEvidence) -> RuleCheck:
    """Each network that grew is what a search proposed."""
    grown = [trial for trial in run.trials if trial.started.morphisms]
    value = f"{len(grown):,} grown networks"
    return RuleCheck.of("proposals", value, "each as proposed", told(_unproposed(run, grown)))


def _unproposed(run: RunEvidence, grown: list[Trial]) -> Iterator[str]:
    for trial in grown:
        started = trial.started
        proposal = run.history.proposals.get(started.proposal or "")
        if proposal is None:
            yield f"{trial.id} has a network that nothing on record proposed"
            continue
        proposed = proposal.proposed
        more = started.morphisms[len(proposed.morphisms) :]
        same = (
            started.parent == proposed.parent
            and started.morphisms[: len(proposed.morphisms)] == proposed.morphisms
            and all(step.get("kind") == RESIZED for step in more)
            and (bool(more) or started.graph == proposed.graph)
            and (not more or started.hyperparameters.kernel_size is not None)
        )
        if not same:
            yield f"{trial.id} trained another network than {proposal.id} proposed"


def hpo(run: RunEvidence) -> RuleCheck:
    """TPE models only after random trials: each replica that comes so far has more of them."""
    done = {name: _evaluated_hpo(run, trials) for name, trials in run.trials_of.items()}
    value = f"{min(done.values(), default=0):,} to {max(done.values(), default=0):,} of a replica"
    limit = f"> {LEAST_HPO_TRIALS} of each in round {FIRST_HPO_ROUND}"
    return RuleCheck.of("TPE", value, limit, told(_too_few(run, done)))


def _too_few(run: RunEvidence, done: dict[str, int]) -> Iterator[str]:
    if not any(done.values()):
        yield "no replica evaluated a trial of hyperparameter optimisation"
        return
    for name, trials in run.trials_of.items():
        reached = max((trial.started.round for trial in trials), default=0)
        if reached >= FIRST_HPO_ROUND and done[name] <= LEAST_HPO_TRIALS:
            yield (
                f"{name} reached round {reached} and evaluated {done[name]} trials of "
                f"hyperparameter optimisation; {LEAST_HPO_TRIALS} are random"
            )


def _evaluated_hpo(run: RunEvidence, trials: list[Trial]) -> int:
    return sum(
        trial.started.phase is RoundPhase.HPO and any(e.utc <= run.end for e in trial.evaluations)
        for trial in trials
    )
