"""The benchmark's own workload: a search for classifiers from ResNet-50 on (Ren et al. 2021)."""

from __future__ import annotations

from aiperf_hpc.config import ModelConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.base import Workload


def _network(model: ModelConfig, dataset: DatasetInfo) -> Graph:
    if dataset.classes is None:
        raise GraphError(f"dataset '{dataset.name}' has no classes to tell apart")
    return resnet50(
        dataset.input_shape("image"),
        dataset.classes,
        stem=model.stem,
        base_width=model.base_width,
        blocks=model.blocks,
    )


WORKLOAD = Workload(
    name="automl",
    summary="architecture search from ResNet-50 by network morphism, with TPE",
    objective=CLASSIFICATION,
    datasets=("digits", "cifar10", "imagenet", "simulated", "synthetic"),
    network=_network,
    searchable=True,
)
