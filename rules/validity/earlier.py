"""The rules of versions without divisions, for the results that those versions stated."""

from __future__ import annotations

from aiperf_hpc.rules.rule import Findings, Found, Required
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.rules.validity.search import evaluated_hpo

# The texts are those that the reports of these versions state, including their spelling.

RESNET50_BLOCKS = (3, 4, 6, 3)


def initial(run: RunEvidence) -> Findings:
    """The configured initial network is ResNet-50."""
    model = run.config.model
    other = "" if model.blocks == RESNET50_BLOCKS else f" and blocks {model.blocks}"
    yield Found(f"{model.initial}, stem {model.stem}, width {model.base_width}{other}")
    if other or (model.initial, model.stem, model.base_width) != ("resnet50", "imagenet", 64):
        yield (
            f"{model.initial} with stem {model.stem} and base width {model.base_width}{other}; "
            "ResNet-50 (stem imagenet, base width 64) is required"
        )


def hpo(run: RunEvidence) -> Findings:
    """TPE uses its model only after the startup trials; with no others, a run is random search."""
    most = max((evaluated_hpo(run, trials) for trials in run.trials_of.values()), default=0)
    random = run.config.hpo.startup_trials
    yield Found(f"{most:,} trials of a replica")
    yield Required(f"> {random} trials")
    if not most:
        yield "no replica evaluated a trial of hyperparameter optimisation"
    elif most <= random:
        yield (
            f"no replica made more than {most} trials of hyperparameter optimisation; the first "
            f"{random} are random"
        )


def division(run: RunEvidence) -> Findings:
    """A run of a version without divisions is official in no division."""
    yield Found("none")
    yield "recorded by a version without divisions"
