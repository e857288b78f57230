"""What a workload is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiperf_hpc.config import ModelConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import Objective
from aiperf_hpc.trial import DatasetInfo


@dataclass(frozen=True, slots=True)
class Workload:
    """A network on a dataset, with what it is trained for."""

    name: str
    summary: str
    """The workload in one line."""
    objective: Objective
    datasets: tuple[str, ...]
    """The names of the datasets that have its inputs and targets."""
    network: Callable[[ModelConfig, DatasetInfo], Graph]
    """The initial network for a dataset; raises GraphError where there is none."""
    searchable: bool
    """Whether morphisms can grow its networks."""
