"""CosmoFlow's network, layer by layer as MLPerf HPC's reference builds it.

[mlcommons/hpc, cosmoflow/models/cosmoflow.py and layers.py; Mathuriya et al. 2018 have another]

Five convolutions in three dimensions of 32, 64, 128, 256 and 512 channels, each with a bias, a
leaky ReLU of slope 0.3 and a maximum over 2 x 2 x 2 cells behind it; two dense layers of 128 and 64
units, each with a leaky ReLU and a dropout; a dense layer whose tanh, times 1.2, gives the
parameters. There is no normalisation. Kernels are of 3 cells since v1.0 of the benchmark, and were
of 2 in v0.7.
"""

from __future__ import annotations

from aiperf_hpc.config import CosmoFlowConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import (
    Conv3D,
    Dense,
    Distribution,
    Dropout,
    Flatten,
    Graph,
    Input,
    Layer,
    LeakyReLU,
    MaxPool3D,
    Node,
    Scale,
    Shape,
    Tanh,
)

INPUT, TARGETS = "volume", "values"
"""The names of what the network reads, and of what its output is compared with."""
SLOPE = 0.3
"""Of the leaky ReLUs: Keras' default. PyTorch's is 0.01."""
POOL = 2
"""Cells along each axis of which the maximum is taken, and by which the next lie apart."""
HIDDEN = (128, 64)
"""Units of the dense layers before the last."""
RANGE = 1.2
"""What the tanh is multiplied with, so that targets of -1 and 1 can be reached."""


def cosmoflow(volume: Shape, outputs: int, settings: CosmoFlowConfig) -> Graph:
    """Return the network for volumes of a shape (depth, height, width, channels).

    Args:
        volume: the shape of a sample; each side is a multiple of 2 to the power of the
            convolutions, so that no maximum leaves cells out.
        outputs: how many parameters are told of a volume.
        settings: what there is to choose.

    Raises:
        GraphError: there is no such network for volumes of that shape.
    """
    _require_poolable(volume, settings.convolutions)
    nodes = [Node(INPUT, Input(volume))]

    def add(name: str, layer: Layer) -> None:
        nodes.append(Node(name, layer, (nodes[-1].name,)))

    for number in range(1, settings.convolutions + 1):
        channels = settings.width * 2 ** (number - 1)
        add(f"conv{number}", Conv3D(channels, settings.kernel, bias=True))
        add(f"conv{number}_relu", LeakyReLU(SLOPE))
        add(f"conv{number}_pool", MaxPool3D(POOL, POOL))
    add("flat", Flatten())
    for number, units in enumerate(HIDDEN, 1):
        add(f"dense{number}", Dense(units, Distribution.GLOROT_UNIFORM, settings.l2))
        add(f"dense{number}_relu", LeakyReLU(SLOPE))
        add(f"dense{number}_drop", Dropout(settings.dropout))
    add("dense3", Dense(outputs, Distribution.GLOROT_UNIFORM))
    add("dense3_tanh", Tanh())
    add("parameters", Scale(RANGE))
    return Graph(tuple(nodes))


def _require_poolable(volume: Shape, convolutions: int) -> None:
    factor = POOL**convolutions
    if len(volume) != 4 or any(side % factor for side in volume[:3]):
        raise GraphError(
            f"a volume of {volume}: each side must be a multiple of {factor}, since the network "
            f"halves it {convolutions} times; see model.cosmoflow.convolutions"
        )
