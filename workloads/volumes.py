"""A small regression on volumes: the slope and the strength of a random field's spectrum.

The network is CosmoFlow's (Mathuriya et al. 2018) in small: convolutions in three dimensions, each
with a bias, a leaky ReLU and a maximum over 2 x 2 x 2 cells behind it, as long as there are cells
to pool; then two dense layers, and a tanh for targets that lie in [-1, 1).
"""

from __future__ import annotations

import math

from aiperf_hpc.config import ModelConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import (
    Conv3D,
    Dense,
    Dropout,
    Flatten,
    Graph,
    Input,
    Layer,
    LeakyReLU,
    MaxPool3D,
    Node,
    Tanh,
)
from aiperf_hpc.objective import regression
from aiperf_hpc.trial import DatasetInfo, TensorSpec
from aiperf_hpc.workloads.base import Definition, Workload

TARGETS = 2
KERNEL = 3
HIDDEN = 64
"""The units of the dense layer between the convolutions and the output."""
DROPOUT = 0.1
LEAST_CELLS = 2
"""The cells a side at which there is no more pooling."""
MOST_STAGES = 5
"""The convolutions of CosmoFlow's network."""


def _network(model: ModelConfig, dataset: DatasetInfo) -> Graph:
    """Return the network: ``model.base_width`` channels at first, twice as many each stage."""
    shape = dataset.input_shape("volume")
    if len(set(shape[:3])) > 1 or shape[0] < 2 * LEAST_CELLS:
        raise GraphError(f"a volume of {shape}: it must be a cube of at least 4 cells a side")
    nodes = [Node("volume", Input(shape))]

    def add(name: str, layer: Layer) -> None:
        nodes.append(Node(name, layer, (nodes[-1].name,)))

    stages = min(MOST_STAGES, int(math.log2(shape[0] / LEAST_CELLS)))
    for stage in range(1, stages + 1):
        add(f"conv{stage}", Conv3D(model.base_width * 2 ** (stage - 1), KERNEL, bias=True))
        add(f"conv{stage}_relu", LeakyReLU())
        add(f"conv{stage}_pool", MaxPool3D(2, 2))
    add("flat", Flatten())
    add("dense1", Dense(HIDDEN))
    add("dense1_relu", LeakyReLU())
    add("dense1_drop", Dropout(DROPOUT))
    add("dense2", Dense(TARGETS))
    add("values", Tanh())
    return Graph(tuple(nodes))


def _official() -> Graph:
    """Return the network of the preset."""
    shape = TensorSpec(shape=(16, 16, 16, 1))
    dataset = DatasetInfo(
        name="volumes",
        sha256="",
        inputs={"volume": shape},
        targets={"values": TensorSpec(shape=(TARGETS,))},
        train_samples=1024,
        validation_samples=256,
    )
    return _network(ModelConfig(base_width=8), dataset)


WORKLOAD = Workload(
    name="volumes",
    summary="regression on volumes: the spectrum of a random field, by convolutions in 3-D",
    definition=Definition(
        benchmark="none",
        task="regression of 2 numbers on volumes",
        network="3 convolutions in 3-D, 2 dense layers",
        data="1,024 + 256 random fields of 16^3 cells, made by a formula",
        target="mean absolute error <= 0.1",
        scoring="nothing: it shows what a workload is",
        source="docs/decisions/workloads.md",
    ),
    objective=regression(TARGETS),
    datasets=("volumes",),
    network=_network,
    searchable=False,
    presets=("volumes",),
    official={"3 convolutions": _official},
    closed={},
    opened="everything: no run of it is official",
)
