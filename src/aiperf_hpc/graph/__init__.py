"""The architecture of a network: an immutable, framework-independent graph of typed layers.

Shapes omit the batch dimension and are channels-last: ``(height, width, channels)`` for images,
``(depth, height, width, channels)`` for volumes, ``(features,)`` for vectors. Each class in
``layers/`` documents its layer. To add a layer, add a class there, and a row to the tables in
``ops_counter/layers.py`` and in each engine's ``layers.py``.
"""

from __future__ import annotations

from aiperf_hpc.graph.graph import KINDS as KINDS
from aiperf_hpc.graph.graph import SCHEMA_VERSION as SCHEMA_VERSION
from aiperf_hpc.graph.graph import Graph as Graph
from aiperf_hpc.graph.graph import GraphBuilder as GraphBuilder
from aiperf_hpc.graph.graph import Node as Node
from aiperf_hpc.graph.layers import *  # noqa: F403 -- a new layer is named at its class alone
