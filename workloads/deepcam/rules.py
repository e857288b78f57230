"""MLPerf HPC's closed division of DeepCAM, as rules on a configuration and on a run's records.

[mlcommons/training_policies, hpc_training_rules.adoc; mlcommons/logging, compliance_checker;
mlcommons/hpc, deepcam/src/deepCam/utils/optimizer_helpers.py]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiperf_hpc.config import DeepCAMConfig, RunConfig
from aiperf_hpc.objective import INTERSECTION_OVER_UNION
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.workloads.requirements import (
    OfficialData,
    data_rule,
    differing,
    reached_rule,
    target_rule,
)

TARGET: Final = 0.82
OFFICIAL: Final = OfficialData(
    "deepcam", "maps", "image", (768, 1152, 16), (121_266, 15_158), classes=3
)
OPTIMIZERS: Final = ("adam", "adamw", "lamb")
EPSILON: Final = 1e-6
LAMB_NORM: Final = 1.0
"""To which LAMB's gradients are scaled down; those of the others are not."""


def network(config: RunConfig) -> RuleCheck:
    """The network is the reference's."""
    chosen, official = config.model.deepcam, DeepCAMConfig()
    wrong = differing(chosen, "model.deepcam", dict(official))
    value = f"{chosen.middle_blocks} middle blocks, width {chosen.width}"
    return RuleCheck.of("network", value, "the reference's", wrong)


def optimizer(config: RunConfig) -> RuleCheck:
    """Adam, AdamW or LAMB as the reference has them, whose weight decay is of all parameters."""
    training = config.training
    wrong = []
    if training.optimizer not in OPTIMIZERS:
        wrong.append(f"training.optimizer is {training.optimizer}; adam, adamw or lamb is required")
    norm = LAMB_NORM if training.optimizer == "lamb" else None
    wanted = {
        "epsilon": EPSILON,
        "weight_decay_of": "all",
        "weight_decay_in": "update",
        "max_gradient_norm": norm,
    }
    wrong += differing(training, "training", wanted)
    return RuleCheck.of("optimizer", training.optimizer, "adam, adamw or lamb", wrong)


def schedule(config: RunConfig) -> RuleCheck:
    """A linear warm-up by steps, then one rate of decay at steps, or a cosine of so many steps."""
    name = config.training.schedule.name
    wrong = list(_schedule(config))
    return RuleCheck.of("schedule", name, "warm-up, then multi_step or cosine", wrong)


def _schedule(config: RunConfig) -> Iterator[str]:
    chosen = config.training.schedule
    if chosen.interval != "step":
        yield "the rate changes by epochs; it changes by steps (interval: step)"
    if chosen.warmup_epochs:
        yield f"a warm-up of {chosen.warmup_epochs:g} epochs; it is counted in steps (warmup_steps)"
    if chosen.name == "multi_step":
        if chosen.milestone_unit != "step":
            yield "decays after epochs; they are counted in steps (milestone_unit: step)"
        if chosen.factors:
            yield "decays to shares of the peak; there is one rate of decay (factor)"
    elif chosen.name == "cosine":
        if chosen.wave_steps is None:
            yield "a cosine of the trial's length; its steps are stated (wave_steps)"
    else:
        yield f"{chosen.name}; multi_step or cosine is required"


def target(config: RunConfig) -> RuleCheck:
    """A training ends at the benchmark's intersection over union."""
    return target_rule(config.training.target, TARGET)


def data(run: RunEvidence) -> RuleCheck:
    """All replicas had the official maps, all of them."""
    return data_rule(run, OFFICIAL)


def reached(run: RunEvidence) -> RuleCheck:
    """Trainings reached the benchmark's quality: all that ended by themselves, and at least one."""
    return reached_rule(run, INTERSECTION_OVER_UNION, TARGET)


OF_SETTINGS = (network, optimizer, schedule, target)
"""What a configuration alone decides."""
OF_RECORDS = (reached,)
"""What its trainings decide."""
