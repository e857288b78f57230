"""A made-up scheduler: when it gives nodes, and when it takes them away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

AT_ONCE: Final = 0.0


@dataclass(frozen=True, slots=True)
class Queue:
    """A machine on which others compute, too: its nodes become free one by one.

    When a node is freed and for how long one is left alone are exponentially distributed, as where
    what frees them knows nothing of the run.
    """

    mean_wait_seconds: float = AT_ONCE
    """Until a node is free for the run, from when the run is submitted."""
    gang: bool = False
    """Whether all are given together, once as many are free as are asked for at the start."""
    preemptions_per_hour: float = 0.0
    """How often a node is taken away."""
    away_seconds: float = 60.0
    """Until a node that was taken away is given back."""
    seed: int = 0

    def waits(self, nodes: int) -> list[float]:
        """Return the seconds until each of so many nodes is given, the first to be free first."""
        rng = np.random.default_rng(self.seed)
        freed = np.sort(rng.exponential(self.mean_wait_seconds, nodes)).tolist()
        return [freed[-1]] * nodes if self.gang else freed

    def left_alone(self, node: int, life: int) -> float:
        """Return the seconds until a node is taken away after it was given for the n-th time."""
        if not self.preemptions_per_hour:
            return math.inf
        rng = np.random.default_rng((self.seed, node, life))
        return float(rng.exponential(3600.0 / self.preemptions_per_hour))
