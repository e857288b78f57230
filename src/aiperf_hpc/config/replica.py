"""The replica section of the configuration: nodes and ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from aiperf_hpc.config.section import Section
from aiperf_hpc.errors import raising

MOST_RANKS = 1024
"""Maximum number of ranks per node."""


def _ranks(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Validate a number of ranks; the error message names all allowed values."""
    with raising(ValueError(f"give auto, or a number from 1 to {MOST_RANKS}"), ValidationError):
        return validate(value)


Ranks = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_RANKS)], WrapValidator(_ranks)
]


class ReplicaConfig(Section):
    """Nodes and ranks of a replica: one rank per accelerator, on one or more nodes."""

    nodes: int = Field(1, ge=1, le=100_000)
    """Number of nodes per replica."""
    ranks_per_node: Ranks = "auto"
    """Ranks per node. auto: one for each accelerator, or 1 on CPUs."""
    collective: Literal["auto", "mpi", "torch", "horovod"] = "auto"
    """Library for the all-reduce of gradients. auto: torch for engine torch on accelerators;
    otherwise mpi, or torch if MPI is not installed."""
    rank_timeout_seconds: float = Field(25.0, ge=1.0, le=3600.0)
    """Maximum time in seconds that a rank waits for the others in a step."""

    @property
    def ranks(self) -> int:
        """Number of ranks of a replica; the minimum while ``ranks_per_node`` is ``auto``."""
        return self.nodes * (1 if self.ranks_per_node == "auto" else self.ranks_per_node)

    def settled(self) -> ReplicaConfig:
        """Return the section without ``auto``: one rank per node, and the collective ``mpi``."""
        ranks = 1 if self.ranks_per_node == "auto" else self.ranks_per_node
        collective = "mpi" if self.collective == "auto" else self.collective
        return self.model_copy(update={"ranks_per_node": ranks, "collective": collective})
