"""ResNet-50 v1.5 of HPC AI500: training of a fixed network for image classification.

The closed division is HPC AI500's hardware level, which fixes the code but not the machine, the
batch size and the learning rate policy; the system level also permits another framework. Every
level fixes the problem: the dataset, the target and the number of epochs.
[Jiang et al. 2020, HPC AI500 V2.0; BenchCouncil/HPC-AI500, component_benchmarks/resnet50v1.5,
which is NVIDIA's in TensorFlow]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from aiperf_hpc.config import ModelConfig, RunConfig
from aiperf_hpc.morphism.resnet import V1_5, resnet50
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.ops_counter.score import Weight
from aiperf_hpc.rules.rule import Findings, Found, Rule
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.workloads import requirements
from aiperf_hpc.workloads.base import Definition, Workload, resnet50_for

CLASSES = 1000
"""Classes of ImageNet."""
UNUSED = 1
"""Additional outputs in the benchmark's code, for a background class 0 in an earlier dataset."""


# Rules of the closed division.

IMAGE: Final = (224, 224, 3)
TARGET: Final = 0.763
EPOCHS: Final = 90
OFFICIAL: Final = requirements.OfficialData(
    "imagenet", "images", "image", IMAGE, (1_281_167, 50_000), classes=1000
)
"""Training and validation images of ILSVRC 2012."""
MIN_CROP_AREA: Final = 0.05
"""Minimum area of a training crop as a fraction of the image."""
UPDATE: Final = {
    "optimizer": "sgd",
    "momentum": 0.875,
    "weight_decay": 3.0517578125e-05,
    "weight_decay_of": "all",
    "weight_decay_in": "loss",
    "max_gradient_norm": None,
}


def _network_rule(config: RunConfig) -> Findings:
    """Require ResNet-50 v1.5."""
    chosen, official = config.model, ModelConfig()
    wanted = {name: getattr(official, name) for name in ("stem", "base_width", "blocks")}
    wrong = requirements.differing(chosen, "model", wanted)
    unused = chosen.resnet50.unused_outputs
    if unused not in (0, UNUSED):
        wrong.append(f"model.resnet50.unused_outputs is {unused}; 0 or 1 is required")
    yield Found(f"{unused} unused outputs")
    yield from wrong


def _smoothing(config: RunConfig) -> Findings:
    """Require label smoothing of 0.1."""
    value = config.training.label_smoothing
    yield Found(f"{value:g}")
    if value != 0.1:
        yield f"training.label_smoothing is {value:g}; 0.1 is required"


def _data(run: RunEvidence) -> Findings:
    """Require the complete ImageNet dataset, with the benchmark's image size and augmentation."""
    return requirements.official_data(run, OFFICIAL, _augmented(run.config))


def _augmented(config: RunConfig) -> Iterator[str]:
    if not config.dataset.augment:
        yield "images are not augmented (dataset.augment)"
    if config.dataset.storage_format != "jpeg":
        yield f"dataset.storage_format is {config.dataset.storage_format}; jpeg is required"
    if (area := config.dataset.min_crop_area) != MIN_CROP_AREA:
        yield f"dataset.min_crop_area is {area:g}; {MIN_CROP_AREA:g} is required"


WORKLOAD = Workload(
    name="resnet50-v1.5",
    summary="image classification: training of ResNet-50, without a search",
    definition=Definition(
        benchmark="HPC AI500 V2.0, image classification",
        task="classification of images in 1,000 classes",
        network="ResNet-50 v1.5: strides in 3 x 3 convolutions",
        data="ImageNet, ILSVRC 2012: 1,281,167 + 50,000 images, 224^2",
        target="top-1 accuracy >= 0.763, in 90 epochs",
        scoring="valid FLOPS: operations per second x (accuracy / 0.763)^5; time to quality",
        source="arXiv 2007.00279; github.com/BenchCouncil/HPC-AI500, "
        "component_benchmarks/resnet50v1.5",
    ),
    objective=CLASSIFICATION,
    datasets=("imagenet", "cifar10", "digits", "synthetic"),
    network=lambda model, dataset: resnet50_for(
        model, dataset, V1_5, model.resnet50.unused_outputs
    ),
    searchable=False,
    presets=("resnet50_v15", "resnet50_v15_1000", "resnet50_v15_laptop"),
    official={
        "1,001 outputs, as in its code": partial(resnet50, IMAGE, CLASSES + UNUSED, version=V1_5),
        "1,000 outputs": partial(resnet50, IMAGE, CLASSES, version=V1_5),
    },
    closed={
        "dataset": "the complete ImageNet at 224 x 224, augmented",
        "model": "ResNet-50 v1.5; 1,000 outputs, or 1,001 (model.resnet50.unused_outputs)",
        "training.optimizer": "sgd",
        "training.momentum": "0.875",
        "training.weight_decay": "3.0517578125e-05, of all parameters, in the loss",
        "training.label_smoothing": "0.1",
        "training.max_epochs": "90",
        "training.target": "0.763, or none: training always runs for 90 epochs",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "any",
    },
    settings_rules=(
        Rule("network", "ResNet-50 v1.5", _network_rule),
        requirements.optimizer_rule(UPDATE, "sgd, momentum 0.875, L2 in the loss"),
        Rule("smoothing", "0.1", _smoothing),
        requirements.epochs_rule(EPOCHS),
        requirements.target_rule(TARGET, optional=True),
    ),
    data_rule=Rule("data", f"the official {OFFICIAL.unit}", _data),
    record_rules=(requirements.reached_rule(ACCURACY, TARGET),),
    valid_flops=Weight(TARGET, 5),
    opened="everything but the dataset, the target and the epochs (HPC AI500's free level)",
)
