"""Networks of 3-D convolutions: CosmoFlow's, and a small one for regression.

CosmoFlow's network follows MLPerf HPC's reference.
[mlcommons/hpc, cosmoflow/models/cosmoflow.py and layers.py; Mathuriya et al. 2018 have another]
Five convolutions have 32, 64, 128, 256 and 512 channels, each with a bias, a leaky ReLU of slope
0.3 and 2 x 2 x 2 max pooling. Two dense layers have 128 and 64 units, each with a leaky ReLU and
dropout. The parameters are the tanh of a last dense layer, times 1.2. There is no normalization.
The kernel size is 3 since v1.0 of the benchmark; it was 2 in v0.7.
"""

from __future__ import annotations

import math

from aiperf_hpc.config import CosmoFlowConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Distribution, Graph, GraphBuilder, Node, Shape, layers

INPUT, TARGETS = "volume", "values"
"""Names of the network's input and of the targets of its output."""
SLOPE = 0.3
"""Slope of CosmoFlow's leaky ReLUs, the default of Keras; PyTorch's is 0.01."""
POOL = 2
"""Cells along each axis of a pooling window, and its stride."""
HIDDEN = (128, 64)
"""Units of CosmoFlow's hidden dense layers."""
RANGE = 1.2
"""Factor of CosmoFlow's tanh, so that targets of -1 and 1 can be reached."""
SMALL_HIDDEN, SMALL_DROPOUT = 64, 0.1
"""Units and dropout of the small network's hidden dense layer."""
LEAST_CELLS, MOST_STAGES = 2, 5
"""Cells per side at which the small network stops pooling; maximum number of its convolutions."""


class _Chain(GraphBuilder):
    """A network under construction; each node reads the previous one."""

    def convolutions(self, number: int, width: int, kernel: int, relu: layers.LeakyReLU) -> None:
        """Add convolutions with pooling, each with twice the previous channels, and flatten."""
        for stage in range(1, number + 1):
            self.add(f"conv{stage}", layers.Conv3D(width * 2 ** (stage - 1), kernel, bias=True))
            self.add(f"conv{stage}_relu", relu)
            self.add(f"conv{stage}_pool", layers.MaxPool3D(POOL, POOL))
        self.add("flat", layers.Flatten())


def cosmoflow(volume: Shape, outputs: int, settings: CosmoFlowConfig) -> Graph:
    """Return CosmoFlow's network for volumes of a shape (depth, height, width, channels).

    Args:
        volume: shape of a sample; each side is a multiple of 2 to the power of the number of
            convolutions, so that pooling omits no cells.
        outputs: number of predicted parameters.
        settings: configurable sizes.

    Raises:
        GraphError: the network does not support volumes of that shape.
    """
    factor = POOL**settings.conv_layers
    if len(volume) != 4 or any(side % factor for side in volume[:3]):
        raise GraphError(
            f"a volume of {volume}: each side must be a multiple of {factor}, since the network "
            f"halves it {settings.conv_layers} times; see model.cosmoflow.conv_layers"
        )
    chain = _Chain(Node(INPUT, layers.Input(volume)))
    chain.convolutions(
        settings.conv_layers, settings.width, settings.kernel_size, layers.LeakyReLU(SLOPE)
    )
    for number, units in enumerate(HIDDEN, 1):
        chain.add(f"dense{number}", layers.Dense(units, Distribution.GLOROT_UNIFORM, settings.l2))
        chain.add(f"dense{number}_relu", layers.LeakyReLU(SLOPE))
        chain.add(f"dense{number}_drop", layers.Dropout(settings.dropout))
    chain.add("dense3", layers.Dense(outputs, Distribution.GLOROT_UNIFORM))
    chain.add("dense3_tanh", layers.Tanh())
    chain.add("parameters", layers.Scale(RANGE))
    return chain.graph()


def small_regression(volume: Shape, outputs: int, width: int) -> Graph:
    """Return a small network of the same kind for cubes of a shape (side, side, side, channels).

    Args:
        volume: shape of a sample.
        outputs: number of predicted values in [-1, 1).
        width: channels of the first convolution; each further one has twice as many.

    Raises:
        GraphError: the volume is not a cube of at least 4 cells per side.
    """
    if len(set(volume[:3])) > 1 or volume[0] < 2 * LEAST_CELLS:
        raise GraphError(f"a volume of {volume}: it must be a cube of at least 4 cells a side")
    chain = _Chain(Node(INPUT, layers.Input(volume)))
    stages = min(MOST_STAGES, int(math.log2(volume[0] / LEAST_CELLS)))
    chain.convolutions(stages, width, 3, layers.LeakyReLU())
    chain.add("dense1", layers.Dense(SMALL_HIDDEN))
    chain.add("dense1_relu", layers.LeakyReLU())
    chain.add("dense1_drop", layers.Dropout(SMALL_DROPOUT))
    chain.add("dense2", layers.Dense(outputs))
    chain.add("values", layers.Tanh())
    return chain.graph()
