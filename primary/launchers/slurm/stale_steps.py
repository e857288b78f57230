"""Steps that have ended and that SLURM counts as running: a new one on their nodes waits for ever.

A controller that is restarted while a step ends may never hear of that end.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiperf_hpc.primary.launchers.slurm.held_jobs import HeldJobs
from aiperf_hpc.primary.launchers.slurm.rate_limit import RateLimit
from aiperf_hpc.primary.launchers.slurm.steps import Place, Step

WATCH_SECONDS = 60.0
"""How long a new step is watched. srun says within seconds that its nodes are not free."""


class StaleSteps:
    """Finds what blocks steps that were started where one of the run's had been before."""

    def __init__(self, prefix: str, held_jobs: HeldJobs, rate_limit: RateLimit) -> None:
        """Take how the names of the run's steps begin, and what asks SLURM, how often at most."""
        self._prefix = prefix
        self._held_jobs = held_jobs
        self._rate_limit = rate_limit
        self._used: set[tuple[str, str]] = set()
        """Jobs and nodes on which the run has had a step."""
        self._watched: dict[str, tuple[Step, float]] = {}
        """The last step of each replica, and since when."""
        self._found: list[str] = []
        """What is to be ended."""
        self.blocked: frozenset[str] = frozenset()
        """Replicas whose step waits, when that was last looked at."""

    def started(self, step: Step, now: float) -> None:
        """Watch a step, unless it is the first one on its nodes."""
        place = {(step.place.job, node) for node in step.place.nodes}
        if place & self._used:
            self._watched[step.life.replica] = step, now
        self._used |= place

    def ended(self, replica: str) -> None:
        """Watch a replica's step no longer."""
        self._watched.pop(replica, None)
        self.blocked -= {replica}

    def look(self, now: float) -> bool:
        """Read what sruns say; return whether any step waits. Asks nobody."""
        waits = {name for name, (step, _) in self._watched.items() if step.waits()}
        self._watched = {
            name: (step, since)
            for name, (step, since) in self._watched.items()
            if name in waits or now - since < WATCH_SECONDS
        }
        self.blocked = frozenset(waits)
        return bool(waits)

    def free(self) -> None:
        """Find the steps that are in the way or, if that is done, end them. One call of a client.

        Raises SchedulerError.
        """
        if self._found:
            found, self._found = self._found, []
            self._rate_limit.call(lambda: self._held_jobs.cancel(found))
            return
        there = self._rate_limit.call(lambda: self._held_jobs.steps(self._prefix))
        waiting = [step for step, _ in self._watched.values()]
        # What still waits now is not among those that SLURM told of.
        places = [step.place for step in waiting if step.waits()]
        self._found = [each.id for each in there if _in_the_way(each.id, each.nodes, places)]


def _in_the_way(step: str, nodes: Sequence[str], places: Sequence[Place]) -> bool:
    """Return whether a step, by its number and nodes, is on any of these places."""
    job = step.partition(".")[0]
    return any(
        job == place.job.partition("+")[0] and not set(nodes).isdisjoint(place.nodes)
        for place in places
    )
