"""The layers, one module per family; importing this package registers all layers."""

from __future__ import annotations

from aiperf_hpc.graph.layers.activation import *  # noqa: F403
from aiperf_hpc.graph.layers.base import *  # noqa: F403
from aiperf_hpc.graph.layers.convolution import *  # noqa: F403
from aiperf_hpc.graph.layers.dense import *  # noqa: F403
from aiperf_hpc.graph.layers.regions import *  # noqa: F403
from aiperf_hpc.graph.layers.reshaping import *  # noqa: F403
