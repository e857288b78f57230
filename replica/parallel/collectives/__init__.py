"""Collectives: communication between the ranks of one replica."""

from __future__ import annotations

import importlib
from typing import cast

from aiperf_hpc.errors import EngineError
from aiperf_hpc.extras import COLLECTIVES
from aiperf_hpc.replica.engines.base import first_line
from aiperf_hpc.replica.parallel.collectives.base import ALONE, Collective

__all__ = ["ALONE", "CLASSES", "Collective", "load_collective"]

CLASSES = {
    "mpi": ("mpi", "MpiCollective"),
    "torch": ("torch_distributed", "TorchCollective"),
    "horovod": ("horovod", "HorovodCollective"),
}
"""Module and class of every collective of the configuration."""


def load_collective(name: str, ranks: int) -> Collective:
    """Join the other ranks of this replica.

    Args:
        name: name of the collective.
        ranks: expected number of ranks; one rank needs no collective.

    Raises:
        EngineError: a package or library is missing, or the number of ranks differs.
    """
    if ranks == 1:
        return ALONE
    collective = join(name)
    if collective.size != ranks:
        raise EngineError(
            f"collective '{name}' joins {collective.size} ranks, the configuration requests "
            f"{ranks}; start the ranks by a launcher that supports '{name}': see "
            "docs/collectives.md"
        )
    return collective


def join(name: str) -> Collective:
    """Join all ranks, however many there are.

    Raises:
        EngineError: a package or library is missing.
    """
    module, kind = CLASSES[name]
    try:
        loaded = importlib.import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        raise EngineError(
            f"collective '{name}' needs the package '{error.name}': {COLLECTIVES[name].remedy}"
        ) from None
    except (ImportError, RuntimeError) as error:
        raise EngineError(
            f"collective '{name}': its library cannot be loaded: {first_line(error)}; "
            f"{COLLECTIVES[name].remedy}"
        ) from None
    return cast("Collective", getattr(loaded, kind)())
