"""The rules that runs of versions without divisions were judged by, for what they stated then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.ops_counter.divisions.plan import LEAST_HOURS
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.trial import RoundPhase

RESNET50_BLOCKS = (3, 4, 6, 3)


def duration(run: RunEvidence) -> RuleCheck:
    """A run lasts an hour."""
    hours = run.final.elapsed / 3600.0
    return RuleCheck.of(
        "duration", f"{hours:.6g} h", f">= {LEAST_HOURS:g} h", _too_short(run, hours)
    )


def _too_short(run: RunEvidence, hours: float) -> Iterator[str]:
    if hours < LEAST_HOURS:
        yield f"{hours:.6g} h; at least {LEAST_HOURS:g} h is required"
    if run.history.end_utc is None:
        yield "the run has not ended"


def initial(run: RunEvidence) -> RuleCheck:
    """The configured initial network is ResNet-50."""
    model = run.config.model
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


def hpo(run: RunEvidence) -> RuleCheck:
    """TPE models only after its start-up trials: a run without later ones was random search."""
    done = Counter(
        trial.replica
        for trial in run.trials
        if trial.started.phase is RoundPhase.HPO
        and any(e.utc <= run.end for e in trial.evaluations)
    )
    most, random = max(done.values(), default=0), run.config.hpo.startup_trials
    broken: tuple[str, ...] = ()
    if not done:
        broken = ("no replica evaluated a trial of hyperparameter optimisation",)
    elif most <= random:
        broken = (
            f"no replica made more than {most} trials of hyperparameter "
            f"optimisation; the first {random} are random",
        )
    return RuleCheck("TPE", f"{most:,} trials of a replica", f"> {random} trials", broken)


def without_divisions() -> RuleCheck:
    """Return what keeps a run from being official that kept all rules of its time."""
    reason = "recorded by a version without divisions"
    return RuleCheck("division", "none", "closed or open", (reason,))
