"""The architecture of a network: a frozen graph of typed layers that knows no framework.

Shapes leave the batch dimension out and are channels-last: ``(height, width, channels)`` for
images, ``(depth, height, width, channels)`` for volumes, ``(features,)`` for vectors. What a layer
is stands at its class in ``layers/``; a new one is a class there, a function in
``ops_counter/layers.py`` and one in each engine's ``layers.py``.
"""

from __future__ import annotations

from aiperf_hpc.graph.graph import SCHEMA_VERSION as SCHEMA_VERSION
from aiperf_hpc.graph.graph import Graph as Graph
from aiperf_hpc.graph.graph import Node as Node
from aiperf_hpc.graph.layers import *  # noqa: F403 -- a new layer is named at its class alone
from aiperf_hpc.graph.recording import KINDS as KINDS
