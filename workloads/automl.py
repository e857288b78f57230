"""The AIPerf workload: architecture search for classifiers from ResNet-50 (Ren et al. 2021)."""

from __future__ import annotations

from functools import partial

from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.rules.validity.settings import CLOSED, said
from aiperf_hpc.workloads.base import Definition, Workload, resnet50_for

WORKLOAD = Workload(
    name="automl",
    summary="architecture search from ResNet-50 by network morphism, with TPE",
    definition=Definition(
        benchmark="AIPerf (Ren et al. 2021)",
        task="search for and training of an image classifier",
        network="ResNet-50, grown by morphisms",
        data="ImageNet, ILSVRC 2012: 1,281,167 + 50,000 images",
        target="error <= 30 %",
        scoring="operations per second over the whole run, and the regulated score",
        source="arXiv 2008.07141; docs/divisions.md",
    ),
    objective=CLASSIFICATION,
    datasets=("imagenet", "cifar10", "digits", "synthetic", "simulated"),
    network=resnet50_for,
    searchable=True,
    presets=("quickstart", "cifar10", "imagenet", "imagenet_gpu", "simulated"),
    official={"ResNet-50, the first candidate": partial(resnet50, (224, 224, 3), 1000)},
    closed={key: said(value) for key, value in CLOSED.items()},
    opened="hyperparameters, their search space and the search (search.method guided or greedy), "
    "which are declared with the score",
)
