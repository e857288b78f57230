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
from aiperf_hpc.ops_counter.divisions import RuleCheck
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.trial import DatasetInfo, TrialState

IMAGE: Final = (224, 224, 3)
TARGET: Final = 0.763
EPOCHS: Final = 90
SAMPLES: Final = (1_281_167, 50_000)
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
    wrong = [
        f"model.{name} is {getattr(chosen, name)}; {getattr(official, name)} is required"
        for name in ("stem", "base_width", "blocks")
        if getattr(chosen, name) != getattr(official, name)
    ]
    spare = chosen.resnet50.spare_outputs
    if spare not in SPARE:
        wrong.append(f"model.resnet50.spare_outputs is {spare}; 0 or 1 is required")
    return RuleCheck.of("network", f"{spare} spare outputs", "ResNet-50 v1.5", wrong)


def optimizer(config: RunConfig) -> RuleCheck:
    """SGD of the benchmark's momentum, and its penalty of all parameters."""
    training = config.training
    wrong = [
        f"training.{name} is {getattr(training, name)}; {value} is required"
        for name, value in UPDATE.items()
        if getattr(training, name) != value
    ]
    value = f"{training.optimizer}, momentum {training.momentum:g}"
    return RuleCheck.of("optimizer", value, "sgd, momentum 0.875, L2 in the loss", wrong)


def smoothing(config: RunConfig) -> RuleCheck:
    """A tenth of each label is spread over all outputs."""
    value = config.training.label_smoothing
    wrong = [] if value == 0.1 else [f"training.label_smoothing is {value:g}; 0.1 is required"]
    return RuleCheck.of("smoothing", f"{value:g}", "0.1", wrong)


def epochs(config: RunConfig) -> RuleCheck:
    """A training has 90 epochs, unless it reaches the target before, and is not cut short."""
    training = config.training
    wrong = []
    if training.max_epochs != EPOCHS:
        wrong.append(f"training.max_epochs is {training.max_epochs}; {EPOCHS} is required")
    if training.patience < EPOCHS:
        wrong.append(f"training.patience is {training.patience}; at least {EPOCHS} is required")
    return RuleCheck.of("epochs", str(training.max_epochs), str(EPOCHS), wrong)


def target(config: RunConfig) -> RuleCheck:
    """A training ends at the benchmark's accuracy, or after all its epochs."""
    asked = config.training.target
    wrong = []
    if asked not in (None, TARGET):
        wrong = [f"training.target is {asked:g}; {TARGET:g} or none is required"]
    value = "none" if asked is None else f"{asked:g}"
    return RuleCheck.of("target", value, f"{TARGET:g}, or none", wrong)


def data(run: RunEvidence) -> RuleCheck:
    """All replicas had ImageNet, all of it, in the benchmark's size and augmented."""
    seen = {each.dataset for each in run.replicas if each.dataset is not None}
    value = ", ".join(sorted(dataset.name for dataset in seen)) or "none"
    wrong = list(_data(seen))
    wrong += _augmented(run.config)
    return RuleCheck.of("data", value, "ImageNet", wrong)


def _data(seen: set[DatasetInfo]) -> Iterator[str]:
    if len(seen) != 1:
        yield f"replicas had {len(seen)} different datasets" if seen else "none was loaded"
        return
    (dataset,) = seen
    if dataset.name != "imagenet":
        yield f"{dataset.name} stands in for it; imagenet is required"
        return
    shape = dataset.inputs["image"].shape
    counts = dataset.train_samples, dataset.validation_samples
    if shape != IMAGE:
        yield f"images of {shape}; {IMAGE} is required"
    if counts != SAMPLES:
        yield "{:,} + {:,} images; ".format(*counts) + "{:,} + {:,} are required".format(*SAMPLES)


def _augmented(config: RunConfig) -> Iterator[str]:
    if not config.dataset.augment:
        yield "images are not augmented (dataset.augment)"
    if config.dataset.least_crop != LEAST_CROP:
        yield f"dataset.least_crop is {config.dataset.least_crop:g}; {LEAST_CROP:g} is required"


def reached(run: RunEvidence) -> RuleCheck:
    """Trainings reached the benchmark's accuracy: all that ended by themselves, and one at least.

    Of the last epoch, which is that of the network that a training leaves.
    """
    ended = [trial for trial in run.trials if trial.state is TrialState.COMPLETED]
    good = [t for t in ended if t.evaluations and t.evaluations[-1].quality >= TARGET]
    value = f"{len(good)} of {len(ended)} trainings"
    wrong = []
    if not good:
        wrong = [f"no training has reached {TARGET:g}"]
    elif len(good) < len(ended):
        wrong = [f"{len(ended) - len(good)} of {len(ended)} trainings did not reach {TARGET:g}"]
    return RuleCheck.of("reached", value, "all, and at least 1", wrong)


OF_SETTINGS = (network, optimizer, smoothing, epochs, target)
"""What a configuration alone decides."""
OF_RECORDS = (data, reached)
