"""Preflight checks: the primary compares the nodes that the replicas report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiperf_hpc.clock import Clock
from aiperf_hpc.results.views.replica_status import disagreements
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.run.records import NodeChecked

CLOCK_SECONDS = 1.0
"""Tolerated difference in seconds between a node's clock and the primary's."""


@dataclass(eq=False)
class Preflight:
    """Checks every attempt of a replica that this primary's launcher started, once."""

    history: RunHistory
    """Records of the run."""
    clock: Clock
    """Clock of the primary."""
    joined: Callable[[str], bool] = lambda replica: False
    """Returns whether a replica joined after the run began."""

    def __post_init__(self) -> None:
        self._waiting: set[str] = set()
        self._known = {name: set(r.starts) for name, r in self.history.replicas.items()}
        self.refused: str | None = None
        """Reason why the run cannot match the request; None if there is none."""

    def expect(self, replica: str) -> None:
        """Note that an attempt of this replica begins."""
        self._waiting.add(replica)

    def look(self) -> list[NodeChecked]:
        """Return the findings about newly started replicas; the history must be current."""
        found = []
        new = False
        for name in sorted(self._waiting):
            replica = self.history.replicas.get(name)
            known = self._known.setdefault(name, set())
            if replica is None or not set(replica.starts) - known:
                continue
            # Later, on another node, it affects only one replica and not the whole run.
            new |= not known and not self.joined(name)
            known |= set(replica.starts)
            self._waiting.discard(name)
            found.append(self._checked(replica))
        if new and (differing := disagreements(self.history)):
            self.refused = f"{differing[0]}; install the same on all nodes"
        return found

    def _checked(self, replica: ReplicaHistory) -> NodeChecked:
        ahead = self._clock_offset(replica)
        host = replica.machine.host if replica.machine else "?"
        problems: tuple[str, ...] = ()
        if ahead is not None and abs(ahead) >= CLOCK_SECONDS:
            way = "ahead of" if ahead > 0 else "behind"
            problems = (
                f"the clock of {host} ({replica.id}) is {abs(ahead):.1f} s {way} the primary's: "
                "its records are wrong by this amount; synchronize the clocks with NTP",
            )
        return NodeChecked(
            replica=replica.id, host=host, clock_ahead_seconds=ahead, problems=problems
        )

    def _clock_offset(self, replica: ReplicaHistory) -> float | None:
        """Return by how many seconds a replica's clock is ahead of the primary's.

        Both know their offset from the file server. If the clients stamp the files, the offset is
        meaningless; but no replica starts before the run, or after it was seen.
        """
        begun, primary = self.history.run_starts[-1]
        life: Incarnation = max(replica.starts)
        stamped = replica.starts[life]
        at_least, at_most = stamped - self.clock.utc(), stamped - begun
        started = replica.started
        known = None
        if primary.clock is not None and started is not None and started.clock is not None:
            known = started.clock.ahead_seconds - primary.clock.ahead_seconds
        bounded = min(max(known or 0.0, at_least), at_most)
        return known if known is None and bounded == 0.0 else bounded
