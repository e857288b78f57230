"""HPC AI500's hardware level of image classification, as rules on a configuration and on records.

The hardware level leaves the code as it is, and opens the machine, the batch size and the policy of
the learning rate; the system level lets it be implemented in another framework besides. The
problem, which is the dataset, the target and the number of epochs, is fixed on every level.
[Jiang et al. 2020, HPC AI500 V2.0; BenchCouncil/HPC-AI500, component_benchmarks/resnet50v1.5]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiperf_hpc.config import ModelConfig, RunConfig
from aiperf_hpc.objective import ACCURACY
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

IMAGE: Final = (224, 224, 3)
TARGET: Final = 0.763
EPOCHS: Final = 90
OFFICIAL: Final = OfficialData(
    "imagenet", "images", "image", IMAGE, (1_281_167, 50_000), classes=1000
)
"""ILSVRC 2012's training and validation images."""
SPARE: Final = (0, 1)
"""Outputs behind those of the classes: of 1,000 outputs, and of the 1,001 of its code."""
LEAST_CROP: Final = 0.05
"""The least share of an image that a training crop covers."""
UPDATE: Final = {
    "optimizer": "sgd",
    "momentum": 0.875,
    "weight_decay": 3.0517578125e-05,
    "weight_decay_of": "all",
    "weight_decay_in": "loss",
    "max_gradient_norm": None,
}


def network(config: RunConfig) -> RuleCheck:
    """The network is ResNet-50 v1.5."""
    chosen, official = config.model, ModelConfig()
    wanted = {name: getattr(official, name) for name in ("stem", "base_width", "blocks")}
    wrong = differing(chosen, "model", wanted)
    spare = chosen.resnet50.spare_outputs
    if spare not in SPARE:
        wrong.append(f"model.resnet50.spare_outputs is {spare}; 0 or 1 is required")
    return RuleCheck.of("network", f"{spare} spare outputs", "ResNet-50 v1.5", wrong)


def optimizer(config: RunConfig) -> RuleCheck:
    """SGD of the benchmark's momentum, and its penalty of all parameters."""
    training = config.training
    wrong = differing(training, "training", UPDATE)
    value = f"{training.optimizer}, momentum {training.momentum:g}"
    return RuleCheck.of("optimizer", value, "sgd, momentum 0.875, L2 in the loss", wrong)


def smoothing(config: RunConfig) -> RuleCheck:
    """A tenth of each label is spread over all outputs."""
    value = config.training.label_smoothing
    wrong = [] if value == 0.1 else [f"training.label_smoothing is {value:g}; 0.1 is required"]
    return RuleCheck.of("smoothing", f"{value:g}", "0.1", wrong)


def epochs(config: RunConfig) -> RuleCheck:
    """A training has 90 epochs, unless it reaches the target before, and is not cut short."""
    return epochs_rule(config, EPOCHS)


def target(config: RunConfig) -> RuleCheck:
    """A training ends at the benchmark's accuracy, or after all its epochs."""
    return target_or_none_rule(config.training.target, TARGET)


def data(run: RunEvidence) -> RuleCheck:
    """All replicas had ImageNet, all of it, in the benchmark's size and augmented."""
    return data_rule(run, OFFICIAL, _augmented(run.config))


def _augmented(config: RunConfig) -> Iterator[str]:
    if not config.dataset.augment:
        yield "images are not augmented (dataset.augment)"
    if config.dataset.stored != "jpeg":
        yield f"dataset.stored is {config.dataset.stored}; jpeg is required"
    if config.dataset.least_crop != LEAST_CROP:
        yield f"dataset.least_crop is {config.dataset.least_crop:g}; {LEAST_CROP:g} is required"


def reached(run: RunEvidence) -> RuleCheck:
    """All trainings that ended by themselves, one at least, reached the benchmark's accuracy."""
    return reached_rule(run, ACCURACY, TARGET)


OF_SETTINGS = (network, optimizer, smoothing, epochs, target)
"""What a configuration alone decides."""
OF_RECORDS = (reached,)
"""What its trainings decide."""
