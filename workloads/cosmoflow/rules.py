"""MLPerf HPC's closed division of CosmoFlow, as rules on a configuration and on a run's records.

[mlcommons/training_policies, hpc_training_rules.adoc; mlcommons/logging, compliance_checker]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiperf_hpc.config import CosmoFlowConfig, RunConfig
from aiperf_hpc.objective import MEAN_ABSOLUTE_ERROR
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.workloads.requirements import (
    OfficialData,
    data_rule,
    differing,
    reached_rule,
    target_rule,
)

VOLUME: Final = (128, 128, 128, 4)
"""The shape of an official sample: cells, and redshifts."""
TARGET: Final = 0.124
KERNEL_V07: Final = 2
"""The kernel of version 0.7 of the benchmark; later ones have 3."""
SAMPLES: Final = {2: (262_144, 65_536), 3: (524_288, 65_536)}
"""The official training and validation samples, by the kernel of the version that has them."""
FREE: Final = ("dropout", "l2", "kernel")
"""What may be chosen of the network; the kernel tells the version."""


def data(run: RunEvidence) -> RuleCheck:
    """All replicas had the official volumes, all of them, of the version that has such kernels."""
    kernel = run.config.model.cosmoflow.kernel
    where = f" with kernels of {kernel}"
    wanted = OfficialData("cosmoflow", "volumes", "volume", VOLUME, SAMPLES[kernel], where)
    return data_rule(run, wanted)


def network(config: RunConfig) -> RuleCheck:
    """The network is the reference's, of either version; dropout and penalty are free."""
    chosen, official = config.model.cosmoflow, CosmoFlowConfig()
    wanted = {name: value for name, value in official if name not in FREE}
    wrong = differing(chosen, "model.cosmoflow", wanted)
    return RuleCheck.of("network", f"kernels of {chosen.kernel}", "the reference's", wrong)


def optimizer(config: RunConfig) -> RuleCheck:
    """SGD of momentum 0.9, as it is: no other decay than the penalty, nothing clipped."""
    training = config.training
    wanted = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0, "max_gradient_norm": None}
    wrong = differing(training, "training", wanted)
    value = f"{training.optimizer}, momentum {training.momentum:g}"
    return RuleCheck.of("optimizer", value, "sgd, momentum 0.9", wrong)


def schedule(config: RunConfig) -> RuleCheck:
    """A linear warm-up by epochs, then decays at epochs, each by its own factor below 1."""
    name = config.training.schedule.name
    return RuleCheck.of("schedule", name, "warm-up, then decays by factors", _schedule(config))


def _schedule(config: RunConfig) -> Iterator[str]:
    chosen = config.training.schedule
    if chosen.name not in ("constant", "multi_step"):
        yield f"{chosen.name}; multi_step is required, or constant for no decay"
    if chosen.warmup_steps:
        yield f"a warm-up of {chosen.warmup_steps} steps; it is counted in epochs (warmup_epochs)"
    if chosen.milestone_unit != "epoch":
        yield "decays after steps; they are counted in epochs (milestone_unit: epoch)"
    for factor in chosen.factors:
        if not 0.0 < factor < 1.0:
            yield f"a decay to {factor:g} of the peak; above 0 and below 1 is required"


def target(config: RunConfig) -> RuleCheck:
    """A training ends at the benchmark's error."""
    return target_rule(config.training.target, TARGET)


def reached(run: RunEvidence) -> RuleCheck:
    """Trainings reached the benchmark's error: all that ended by themselves, and at least one."""
    return reached_rule(run, MEAN_ABSOLUTE_ERROR, TARGET)


OF_SETTINGS = (network, optimizer, schedule, target)
"""What a configuration alone decides."""
OF_RECORDS = (reached,)
"""What its trainings decide."""
