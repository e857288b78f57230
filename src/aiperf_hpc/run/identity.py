"""Names and seeds that depend on who uses them and what for, and on nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from aiperf_hpc.run.paths import FIRST, Incarnation


@dataclass(frozen=True, slots=True)
class Identity:
    """Which replica this is, and which of its lives."""

    replica: str
    incarnation: Incarnation

    @property
    def name(self) -> str:
        """What this life names its trials by: ``r0``, and ``r0-0.1`` in a later life."""
        return self.replica if self.incarnation == FIRST else f"{self.replica}-{self.incarnation}"


def seed_of(*parts: object) -> int:
    """Return a seed of 32 bits made of ``parts``: equal parts give equal seeds."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


def replica_name(number: int) -> str:
    """Return the name of the replica with this number, counted from 0."""
    return f"r{number}"


def replica_number(name: str) -> int:
    """Return the number of the replica with this name."""
    return int(name.removeprefix("r"))
