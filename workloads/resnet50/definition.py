"""ResNet-50 v1.5 as a workload.

[Jiang et al. 2020, HPC AI500 V2.0; BenchCouncil/HPC-AI500, component_benchmarks/resnet50v1.5,
which is NVIDIA's in TensorFlow]
"""

from __future__ import annotations

from functools import partial

from aiperf_hpc.config import ModelConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.networks.resnet import V1_5, resnet50
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.ops_counter.valid_flops import Weight
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.resnet50 import rules

CLASSES = 1000
"""ImageNet's."""
SPARE = 1
"""Outputs of the benchmark's code behind those of the classes: what was trained on once counted a
class 0 for background, and labels are the classes' from 0 on."""


def _network(model: ModelConfig, dataset: DatasetInfo) -> Graph:
    if dataset.classes is None:
        raise GraphError(f"dataset '{dataset.name}' has no classes to tell apart")
    return resnet50(
        dataset.input_shape("image"),
        dataset.classes + model.resnet50.spare_outputs,
        stem=model.stem,
        base_width=model.base_width,
        blocks=model.blocks,
        version=V1_5,
    )


WORKLOAD = Workload(
    name="resnet50-v1.5",
    summary="classification of images: one ResNet-50, trained as it is",
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
    network=_network,
    searchable=False,
    presets=("resnet50_v15", "resnet50_v15_1000", "resnet50_v15_laptop"),
    official={
        "1,001 outputs, as in its code": partial(
            resnet50, rules.IMAGE, CLASSES + SPARE, version=V1_5
        ),
        "1,000 outputs": partial(resnet50, rules.IMAGE, CLASSES, version=V1_5),
    },
    closed={
        "dataset": "ImageNet at 224 x 224, all of it, augmented",
        "model": "ResNet-50 v1.5; 1,000 outputs, or 1,001 (model.resnet50.spare_outputs)",
        "training.optimizer": "sgd",
        "training.momentum": "0.875",
        "training.weight_decay": "3.0517578125e-05, of all parameters, in the loss",
        "training.label_smoothing": "0.1",
        "training.max_epochs": "90",
        "training.target": "0.763, or none: all 90 epochs are trained",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "any",
    },
    settings_rules=rules.OF_SETTINGS,
    data_rule=rules.data,
    record_rules=rules.OF_RECORDS,
    valid_flops=Weight(rules.TARGET, 5),
    opened="everything but the dataset, the target and the epochs (HPC AI500's free level)",
)
