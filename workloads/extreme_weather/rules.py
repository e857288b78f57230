"""HPC AI500's hardware level of extreme weather analytics, as rules on a configuration and records.

The hardware level leaves the code as it is, and opens the machine, the batch size and the policy of
the learning rate. The code is not public: what stands for it here is held to. The problem, which
is the dataset, the target and the number of epochs, is fixed on every level.
[Jiang et al. 2020, HPC AI500 V2.0]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiperf_hpc.config import ExtremeWeatherConfig, RunConfig
from aiperf_hpc.objective import MEAN_AVERAGE_PRECISION
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.workloads.requirements import (
    OfficialData,
    data_rule,
    differing,
    epochs_rule,
    reached_rule,
    target_or_none_rule,
)

TARGET: Final = 0.35
EPOCHS: Final = 50
MAPS: Final = 13_140
"""Nine years of four maps a day, which the paper has: for training and validation together."""
OFFICIAL: Final = OfficialData("extremeweather", "maps", "image", (768, 1152, 16), MAPS)
VARIANTS: Final[Mapping[str, Mapping[str, object]]] = {
    "fpn": {"variant": "fpn"},
    "c4": {"variant": "c4", "proposals": 12_000},
}
"""The settings of ``model.extreme_weather`` that the benchmark's networks have."""
UPDATE: Final = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 0.0001,
    "weight_decay_of": "kernels",
    "weight_decay_in": "loss",
    "max_gradient_norm": None,
}
"""tensorpack's: its weight decay is half of it times the squares of all ``W`` in the loss."""


def network(config: RunConfig) -> RuleCheck:
    """The network is one of the two that stand for the benchmark's, with all its regions."""
    chosen = config.model.extreme_weather
    official = ExtremeWeatherConfig.model_validate(VARIANTS[chosen.variant])
    wrong = differing(chosen, "model.extreme_weather", official.model_dump())
    value = f"{chosen.variant}, {chosen.regions} regions"
    return RuleCheck.of("network", value, "Faster R-CNN, 512 regions", wrong)


def optimizer(config: RunConfig) -> RuleCheck:
    """SGD, and a penalty of kernels, as the program has them that stands for the benchmark's."""
    training = config.training
    wrong = differing(training, "training", UPDATE)
    value = f"{training.optimizer}, momentum {training.momentum:g}"
    return RuleCheck.of("optimizer", value, "sgd, momentum 0.9, L2 in the loss", wrong)


def precision(config: RunConfig) -> RuleCheck:
    """Training is in fp32, as the paper's figures are."""
    value = config.training.precision
    wrong = [] if value == "fp32" else [f"training.precision is {value}; fp32 is required"]
    return RuleCheck.of("precision", value, "fp32", wrong)


def epochs(config: RunConfig) -> RuleCheck:
    """A training has 50 epochs, unless it reaches the target before, and is not cut short."""
    return epochs_rule(config, EPOCHS)


def target(config: RunConfig) -> RuleCheck:
    """A training ends at the benchmark's precision, or after all its epochs."""
    return target_or_none_rule(config.training.target, TARGET)


def data(run: RunEvidence) -> RuleCheck:
    """All replicas had the ExtremeWeather maps, of nine years at least."""
    return data_rule(run, OFFICIAL)


def reached(run: RunEvidence) -> RuleCheck:
    """All trainings that ended by themselves, one at least, reached the benchmark's precision."""
    return reached_rule(run, MEAN_AVERAGE_PRECISION, TARGET)


OF_SETTINGS = (network, optimizer, precision, epochs, target)
"""What a configuration alone decides."""
OF_RECORDS = (reached,)
"""What its trainings decide."""
