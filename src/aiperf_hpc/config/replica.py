"""What one replica is made of."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from aiperf_hpc.config.section import Section


class ReplicaConfig(Section):
    """What one replica is made of: one rank an accelerator, on one node or several."""

    nodes: int = Field(1, ge=1, le=100_000, description="nodes that a replica spans")
    ranks_per_node: int = Field(1, ge=1, le=1024, description="ranks, accelerators, of each")
    collective: Literal["mpi", "torch", "horovod"] = Field(
        "mpi", description="what sums gradients over ranks"
    )
    rank_timeout_seconds: float = Field(
        25.0, ge=1.0, le=3600.0, description="how long a rank waits for the others in a step"
    )

    @property
    def ranks(self) -> int:
        """The ranks of a replica."""
        return self.nodes * self.ranks_per_node
