"""The layers; importing this package registers all of them."""

from __future__ import annotations

from aiperf_hpc.graph.layers.base import *  # noqa: F403
from aiperf_hpc.graph.layers.regions import *  # noqa: F403
from aiperf_hpc.graph.layers.unweighted import *  # noqa: F403
from aiperf_hpc.graph.layers.weighted import *  # noqa: F403
