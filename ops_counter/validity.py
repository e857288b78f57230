"""The benchmark's fixed rules, checked on a run's records.

A run that breaks one still has a score, and is stamped INVALID with each reason. Nothing here
depends on what the configuration asked for where the records say what was done.

Each rule is one function: what the run has of it, what is required, and why it is not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig
from aiperf_hpc.ops_counter.score import ScorePoint, end_of
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.trial import DatasetInfo, RoundPhase

OFFICIAL = "automl"
"""The workload that the benchmark's rules are for."""
LEAST_HOURS = 1.0
MOST_ERROR = 0.30
IMAGENET = {"classes": 1000, "train_samples": 1_281_167, "validation_samples": 50_000}
IMAGENET_SHAPE = (224, 224, 3)
RESNET50_BLOCKS = (3, 4, 6, 3)
PRECISIONS = ("fp32", "bf16", "fp16")
"""The precisions that are valid: at least 16 bits."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a run does not keep, and how."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """What came of one rule on one run."""

    rule: str
    value: str
    """What the run has."""
    limit: str
    """What is required."""
    reasons: tuple[str, ...] = ()
    """Why it is not kept; empty where it is."""

    @property
    def passed(self) -> bool:
        return not self.reasons


def violations(history: RunHistory, config: RunConfig, final: ScorePoint) -> list[Violation]:
    """Return every rule that the run breaks; an empty list means VALID."""
    checks = check_rules(history, config, final)
    return [Violation(each.rule, reason) for each in checks for reason in each.reasons]


def check_rules(history: RunHistory, config: RunConfig, final: ScorePoint) -> list[RuleCheck]:
    """Return what came of every rule, kept or not."""
    if config.workload != OFFICIAL:
        return [_workload(config), _engine(history), _records(history)]
    return [
        _engine(history),
        _duration(history, final),
        _error(final),
        _dataset(history),
        _initial(config),
        _precision(history),
        _search(history),
        _hpo(history, config),
        _records(history),
    ]


def _workload(config: RunConfig) -> RuleCheck:
    reason = f"{config.workload}; the benchmark's score is that of {OFFICIAL}"
    return RuleCheck("workload", config.workload, OFFICIAL, (reason,))


def _engine(history: RunHistory) -> RuleCheck:
    """A simulated engine lets time pass; whatever is counted, nothing was computed."""
    used = {r.started.engine for r in history.replicas.values() if r.started is not None}
    broken = ("simulated engine: nothing was computed",) if "simulated" in used else ()
    return RuleCheck("engine", ", ".join(sorted(used)) or "none", "not simulated", broken)


def _duration(history: RunHistory, final: ScorePoint) -> RuleCheck:
    hours = final.elapsed / 3600.0
    broken = []
    if hours < LEAST_HOURS:
        broken.append(f"{hours:.6g} h; at least {LEAST_HOURS:g} h is required")
    if history.end_utc is None:
        broken.append("the run has not ended")
    return RuleCheck("duration", f"{hours:.6g} h", f">= {LEAST_HOURS:g} h", tuple(broken))


def _error(final: ScorePoint) -> RuleCheck:
    limit = f"<= {MOST_ERROR:.0%}"
    if final.error is None:
        return RuleCheck("error", "none", limit, ("no evaluation was completed",))
    value = f"{final.error:.2%}"
    broken = (f"{value}; at most {MOST_ERROR:.0%} is required",)
    return RuleCheck("error", value, limit, broken if final.error > MOST_ERROR else ())


def _dataset(history: RunHistory) -> RuleCheck:
    seen = {r.dataset for r in history.replicas.values() if r.dataset is not None}
    value = ", ".join(sorted(dataset.name for dataset in seen)) or "none"
    return RuleCheck("dataset", value, "ImageNet", tuple(_dataset_reasons(seen)))


def _dataset_reasons(seen: set[DatasetInfo]) -> Iterator[str]:
    if not seen:
        yield "no replica loaded a dataset"
        return
    if len(seen) > 1:
        yield f"replicas had {len(seen)} different datasets"
        return
    (dataset,) = seen
    if dataset.name != "imagenet":
        yield f"{dataset.name}; ImageNet is required"
        return
    shape = dataset.inputs["image"].shape
    if shape != IMAGENET_SHAPE:
        yield f"images of {shape}; {IMAGENET_SHAPE} is required"
    for key, value in IMAGENET.items():
        if getattr(dataset, key) != value:
            yield f"{getattr(dataset, key):,} {key.replace('_', ' ')}; ImageNet has {value:,}"


def _initial(config: RunConfig) -> RuleCheck:
    model = config.model
    blocks = model.blocks == RESNET50_BLOCKS
    value = f"{model.initial}, stem {model.stem}, width {model.base_width}"
    limit = "resnet50, stem imagenet, width 64"
    kept = model.initial == "resnet50" and model.stem == "imagenet" and model.base_width == 64
    if kept and blocks:
        return RuleCheck("initial network", value, limit)
    other = "" if blocks else f" and blocks {model.blocks}"
    reason = (
        f"{model.initial} with stem {model.stem} and base width {model.base_width}{other}; "
        "ResNet-50 (stem imagenet, base width 64) is required"
    )
    return RuleCheck("initial network", value + other, limit, (reason,))


def _precision(history: RunHistory) -> RuleCheck:
    used = {t.started.hyperparameters.precision for t in history.trials.values()}
    broken = (f"{each}; at least FP16 is required" for each in sorted(used - set(PRECISIONS)))
    return RuleCheck("precision", ", ".join(sorted(used)) or "none", ">= 16 bits", tuple(broken))


def _search(history: RunHistory) -> RuleCheck:
    late = history.executions.after(end_of(history))
    grown = sum(
        trial.train_samples > late.get(trial.id, (0, 0))[0]
        for trial in history.trials.values()
        if trial.started.morphisms
    )
    broken = () if grown else ("no trial trained a network grown by morphism",)
    return RuleCheck("network morphism", f"{grown:,} trials", ">= 1 trial of a grown one", broken)


def _hpo(history: RunHistory, config: RunConfig) -> RuleCheck:
    """TPE models only after its start-up trials: a run without later ones was random search."""
    end = end_of(history)
    done = Counter(
        trial.replica
        for trial in history.trials.values()
        if trial.started.phase is RoundPhase.HPO and any(e.utc <= end for e in trial.evaluations)
    )
    most, random = max(done.values(), default=0), config.hpo.startup_trials
    broken: tuple[str, ...] = ()
    if not done:
        broken = ("no replica evaluated a trial of hyperparameter optimisation",)
    elif most <= random:
        broken = (
            f"no replica made more than {most} trials of hyperparameter "
            f"optimisation; the first {random} are random",
        )
    return RuleCheck("TPE", f"{most:,} trials of a replica", f"> {random} trials", broken)


def _records(history: RunHistory) -> RuleCheck:
    root = history.paths.root
    broken = tuple(f"{p.path.relative_to(root)}, line {p.line}: {p.what}" for p in history.problems)
    return RuleCheck("records", f"{len(broken):,} damaged lines", "none", broken)
