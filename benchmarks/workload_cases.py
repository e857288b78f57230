"""Networks of public benchmarks with synthetic samples, for benchmarks of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from workload_peers import Plain, cosmoflow, deepcam, resnet50

from aiperf_hpc.config import CosmoFlowConfig, DeepCAMConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import V1_5
from aiperf_hpc.morphism.resnet import resnet50 as resnet50_graph
from aiperf_hpc.objective import CLASSIFICATION, Objective, regression, segmentation
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.trial import Hyperparameters
from aiperf_hpc.workloads.networks.deepcam import deepcam as deepcam_graph
from aiperf_hpc.workloads.networks.volumes import cosmoflow as cosmoflow_graph

__all__ = ["CASES", "MOMENTUM", "RATE", "WARM", "Case"]
RATE, MOMENTUM = 0.001, 0.9
WARM = 6
"""Steps before the measured ones. Both allocators reach a steady state within them."""
CLASSES, PIXEL_CLASSES, PARAMETERS = 1000, 3, 4


class Case(NamedTuple):
    """A network, and how it is trained."""

    graph: Callable[[], Graph]
    plain: Plain
    objective: Objective
    samples: Callable[[int], Batch]
    """Takes a seed."""
    batch: int
    turns: int
    engines: tuple[str, ...]

    def used(self, precision: str, ranks: int = 1) -> Hyperparameters:
        """Return its hyperparameters."""
        return Hyperparameters(
            batch_size=self.batch * ranks,
            learning_rate=RATE,
            momentum=MOMENTUM,
            precision=precision,
        )


def _volumes(side: int, batch: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    volumes = rng.standard_normal((batch, side, side, side, 4), np.float32)
    values = rng.uniform(-1.0, 1.0, (batch, PARAMETERS)).astype(np.float32)
    return Batch({"volume": volumes}, {"values": values})


def _images(side: int, batch: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((batch, side, side, 3), np.float32)
    return Batch({"image": images}, {"label": rng.integers(0, CLASSES, batch).astype(np.int32)})


def _weather(height: int, width: int, batch: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((batch, height, width, 16), np.float32)
    mask = rng.integers(0, PIXEL_CLASSES, (batch, height, width)).astype(np.int32)
    return Batch({"image": images}, {"mask": mask})


def _cosmoflow(side: int, batch: int, turns: int) -> Case:
    return Case(
        partial(cosmoflow_graph, (side, side, side, 4), PARAMETERS, CosmoFlowConfig()),
        partial(cosmoflow, side),
        regression(PARAMETERS),
        partial(_volumes, side, batch),
        batch,
        turns,
        ("torch", "tensorflow"),
    )


CASES = {
    "cosmoflow-64": _cosmoflow(64, 4, 12),
    "cosmoflow-128": _cosmoflow(128, 2, 3),
    "resnet50-v1.5-224": Case(
        partial(resnet50_graph, (224, 224, 3), CLASSES, version=V1_5),
        resnet50,
        CLASSIFICATION,
        partial(_images, 224, 4),
        4,
        12,
        ("torch", "tensorflow"),
    ),
    "deepcam-192x288": Case(
        partial(deepcam_graph, (192, 288, 16), PIXEL_CLASSES, DeepCAMConfig()),
        deepcam,
        segmentation(),
        partial(_weather, 192, 288, 2),
        2,
        4,
        ("torch",),
    ),
}
