"""The benchmark's fixed rules, checked on a run's records.

A run that breaks one still has a score, and is stamped INVALID with each reason. Nothing here
depends on what the configuration asked for where the records say what was done.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig
from aiperf_hpc.ops_counter.score import ScorePoint, end_of
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.trial import RoundPhase

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


def violations(history: RunHistory, config: RunConfig, final: ScorePoint) -> list[Violation]:
    """Return every rule that the run breaks; an empty list means VALID."""
    if config.workload != OFFICIAL:
        found = [
            ("workload", f"{config.workload}; the benchmark's score is that of {OFFICIAL}"),
            *_engine(history),
            *_records(history),
        ]
        return [Violation(rule, reason) for rule, reason in found]
    found = [
        *_engine(history),
        *_duration(history, final),
        *_error(final),
        *_dataset(history),
        *_initial(config),
        *_precision(history),
        *_search(history),
        *_hpo(history, config),
        *_records(history),
    ]
    return [Violation(rule, reason) for rule, reason in found]


Found = list[tuple[str, str]]


def _engine(history: RunHistory) -> Found:
    """A simulated engine lets time pass; whatever is counted, nothing was computed."""
    used = {r.started.engine for r in history.replicas.values() if r.started is not None}
    return [("engine", "simulated engine: nothing was computed")] if "simulated" in used else []


def _duration(history: RunHistory, final: ScorePoint) -> Found:
    hours = final.elapsed / 3600.0
    found: Found = []
    if hours < LEAST_HOURS:
        found.append(("duration", f"{hours:.6g} h; at least {LEAST_HOURS:g} h is required"))
    if history.end_utc is None:
        found.append(("duration", "the run has not ended"))
    return found


def _error(final: ScorePoint) -> Found:
    if final.error is None:
        return [("error", "no evaluation was completed")]
    if final.error > MOST_ERROR:
        return [("error", f"{final.error:.2%}; at most {MOST_ERROR:.0%} is required")]
    return []


def _dataset(history: RunHistory) -> Found:
    seen = {r.dataset for r in history.replicas.values() if r.dataset is not None}
    if not seen:
        return [("dataset", "no replica loaded a dataset")]
    if len(seen) > 1:
        return [("dataset", f"replicas had {len(seen)} different datasets")]
    (dataset,) = seen
    if dataset.name != "imagenet":
        return [("dataset", f"{dataset.name}; ImageNet is required")]
    shape = dataset.inputs["image"].shape
    found = (
        []
        if shape == IMAGENET_SHAPE
        else [("dataset", f"images of {shape}; {IMAGENET_SHAPE} is required")]
    )
    return found + [
        ("dataset", f"{getattr(dataset, key):,} {key.replace('_', ' ')}; ImageNet has {value:,}")
        for key, value in IMAGENET.items()
        if getattr(dataset, key) != value
    ]


def _initial(config: RunConfig) -> Found:
    model = config.model
    blocks = model.blocks == RESNET50_BLOCKS
    if (
        model.initial == "resnet50"
        and model.stem == "imagenet"
        and model.base_width == 64
        and blocks
    ):
        return []
    other = "" if blocks else f" and blocks {model.blocks}"
    return [
        (
            "initial network",
            f"{model.initial} with stem {model.stem} and base width {model.base_width}{other}; "
            "ResNet-50 (stem imagenet, base width 64) is required",
        )
    ]


def _precision(history: RunHistory) -> Found:
    used = {t.started.hyperparameters.precision for t in history.trials.values()}
    return [
        ("precision", f"{precision}; at least FP16 is required")
        for precision in sorted(used - set(PRECISIONS))
    ]


def _search(history: RunHistory) -> Found:
    late = history.executions.after(end_of(history))
    grown = [trial for trial in history.trials.values() if trial.started.morphisms]
    if any(trial.train_samples > late.get(trial.id, (0, 0))[0] for trial in grown):
        return []
    return [("network morphism", "no trial trained a network grown by morphism")]


def _hpo(history: RunHistory, config: RunConfig) -> Found:
    """TPE models only after its start-up trials: a run without later ones was random search."""
    end = end_of(history)
    done = Counter(
        trial.replica
        for trial in history.trials.values()
        if trial.started.phase is RoundPhase.HPO and any(e.utc <= end for e in trial.evaluations)
    )
    if not done:
        return [("TPE", "no replica evaluated a trial of hyperparameter optimisation")]
    if max(done.values()) <= config.hpo.startup_trials:
        return [
            (
                "TPE",
                f"no replica made more than {max(done.values())} trials of hyperparameter "
                f"optimisation; the first {config.hpo.startup_trials} are random",
            )
        ]
    return []


def _records(history: RunHistory) -> Found:
    root = history.paths.root
    return [
        ("records", f"{p.path.relative_to(root)}, line {p.line}: {p.what}")
        for p in history.problems
    ]
