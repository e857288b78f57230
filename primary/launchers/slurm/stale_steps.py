"""Steps that have ended and that SLURM counts as running: a new one on their nodes waits for ever.

A controller that is restarted while a step ends may never hear of that end. scancel ends such a
step while its daemon is there to be told. Otherwise only its job's end does, and others start
beside it (`srun --overlap`).
"""

from __future__ import annotations

from collections.abc import Sequence

from aiperf_hpc.clock import Clock
from aiperf_hpc.primary.launchers.slurm.held_jobs import HeldJobs, RunningStep
from aiperf_hpc.primary.launchers.slurm.rate_limit import RateLimit
from aiperf_hpc.primary.launchers.slurm.steps import Place, Step

WATCH_SECONDS = 60.0
"""How long a new step is watched. srun says within seconds that its nodes are not free."""
STALE_SECONDS = 20.0
"""How long a step may take to end once it is cancelled. If it does end later, after all, it and its
successor share the node for so long; what it still records is fenced."""


class StaleSteps:
    """Finds what blocks steps that were started where one of the run's had been before."""

    def __init__(
        self, prefix: str, held_jobs: HeldJobs, rate_limit: RateLimit, clock: Clock
    ) -> None:
        """Take how the names of the run's steps begin, and what asks SLURM, how often at most."""
        self._prefix = prefix
        self._held_jobs = held_jobs
        self._rate_limit = rate_limit
        self._clock = clock
        self._used: set[tuple[str, str]] = set()
        """Jobs and nodes on which the run has had a step."""
        self._watched: dict[str, tuple[Step, float]] = {}
        """The last step of each replica, and since when."""
        self._found: list[str] = []
        """What is to be ended."""
        self._cancelled: dict[str, float] = {}
        """What was, and when."""
        self._stale: set[tuple[str, str]] = set()
        """Jobs and nodes on which SLURM counts a step that nothing ends."""
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

    def overlaps(self, place: Place) -> bool:
        """Return whether a step can start at a place only beside one that nothing ends."""
        return not self._stale.isdisjoint(_nodes_of(place.job, place.nodes))

    def end_earlier(self) -> None:
        """End the steps of an earlier primary, and wait until they have ended or are stale.

        Raises SchedulerError.
        """
        if there := self._steps():
            self._cancel([each.id for each in there])
        cancelled_at = self._clock.monotonic()
        while there and self._clock.monotonic() < cancelled_at + STALE_SECONDS:
            there = self._steps()
        self._give_up(there)

    def free(self, now: float) -> list[str]:
        """Find the steps that are in the way or, if that is done, end them. One call of a client.

        Return the replicas whose steps will wait for ever and are to be started anew. Raises
        SchedulerError.
        """
        if self._found:
            found, self._found = self._found, []
            self._cancel(found)
            self._cancelled |= dict.fromkeys(found, now)
            return []
        there = self._steps()
        # What still waits now is not among those that SLURM told of.
        waiting = {name: step.place for name, (step, _) in self._watched.items() if step.waits()}
        in_the_way = [each for each in there if any(_is_at(each, at) for at in waiting.values())]
        self._found = [each.id for each in in_the_way if each.id not in self._cancelled]
        stale = [
            each for each in in_the_way if now - self._cancelled.get(each.id, now) >= STALE_SECONDS
        ]
        self._give_up(stale)
        return [name for name, at in waiting.items() if any(_is_at(each, at) for each in stale)]

    def _steps(self) -> list[RunningStep]:
        """Return the run's steps that have nodes."""
        there = self._rate_limit.call(lambda: self._held_jobs.steps(self._prefix))
        return [each for each in there if each.nodes]

    def _cancel(self, steps: Sequence[str]) -> None:
        self._rate_limit.call(lambda: self._held_jobs.cancel(steps))

    def _give_up(self, steps: Sequence[RunningStep]) -> None:
        for step in steps:
            self._stale |= _nodes_of(step.id.partition(".")[0], step.nodes)


def _is_at(step: RunningStep, place: Place) -> bool:
    """Return whether a step is on any of a place's nodes."""
    own = _nodes_of(step.id.partition(".")[0], step.nodes)
    return not own.isdisjoint(_nodes_of(place.job, place.nodes))


def _nodes_of(job: str, nodes: Sequence[str]) -> set[tuple[str, str]]:
    """Return nodes with their job's number, which all components of a heterogeneous job share."""
    return {(job.partition("+")[0], node) for node in nodes}
