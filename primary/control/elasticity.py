"""Elasticity: change the number of replicas of a running benchmark on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError, RunDirectoryError, UsageError
from aiperf_hpc.formatting import few
from aiperf_hpc.primary.control.context import PrimaryContext, Timing
from aiperf_hpc.primary.launchers.base import Launcher, ReplicaState
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run.history.presence import requested_nodes
from aiperf_hpc.run.paths import replica_name, replica_number
from aiperf_hpc.run.records import NodesRefused, NodesRequested, ReplicaLaunched, ReplicaReleased
from aiperf_hpc.run.requests import ScaleRequest
from aiperf_hpc.trial import JobPhase
from aiperf_hpc.untrusted.bounds import MOST_NODES

WAITS = (JobPhase.PENDING, JobPhase.REQUEUED)
PREEMPTED = "PREEMPTED"
"""State of a job that the scheduler has preempted and does not requeue."""
LAST_SECONDS, LAST_SHARE = 60.0, 0.02
"""Seconds before the run's end at which waiting replicas are removed from the queue, and the
maximum as a fraction of the run."""


def require_nodes(nodes: int, config: RunConfig) -> None:
    """Require a multiple of the nodes per replica. Raises UsageError."""
    if nodes < 1:
        raise UsageError(f"--nodes {nodes}: a run needs at least 1 node")
    if nodes > MOST_NODES:
        raise UsageError(f"--nodes {nodes}: a run has at most {MOST_NODES:,} nodes")
    if nodes % config.replica.nodes:
        raise UsageError(
            f"--nodes {nodes}: a replica spans {config.replica.nodes} nodes (replica.nodes); give "
            "a multiple of it"
        )


def request_nodes(view: RunView, nodes: int, why: str) -> None:
    """Request another number of nodes from the primary of a running benchmark.

    Raises:
        UsageError: the run has ended, has no active primary, or cannot have so many nodes.
            Nothing is changed.
    """
    run, state = view.paths.root, view.status().state
    if state is RunState.ENDED:
        raise UsageError(f"{run}: the run has ended; its nodes cannot change")
    if view.history.run_started is None or view.manifest.simulated:
        raise UsageError(f"{run}: this run never started, or is simulated")
    if state not in (RunState.RUNNING, RunState.QUEUED):
        raise UsageError(f"{run}: the run is {state}; no primary is active to change its nodes")
    require_nodes(nodes, view.manifest.config)
    ScaleRequest(nodes=nodes, reason=why).save(view.paths)


class Elasticity:
    """Lets replicas join and leave a run."""

    def __init__(
        self,
        context: PrimaryContext,
        launcher: Launcher,
        timing: Timing,
        say: Callable[[str], None],
    ) -> None:
        """Create the elasticity control without any request.

        Args:
            context: context of the run.
            launcher: launcher of the replicas; not every launcher can add replicas later.
            timing: timeouts, including that of a clean shutdown.
            say: callback that reports the outcome of requests to the user.
        """
        self._run = context
        self._clock = context.clock
        self._launcher = launcher
        self._grace = timing.grace
        self._say = say
        self._requested = requested_nodes(context.history, context.manifest.nodes)
        self._elastic = bool(context.history.scalings)
        self._launches = 0
        self._to_add: set[str] = set()
        """Replicas to start once their previous attempt, if any, has ended."""
        self._leaving: dict[str, float] = {}
        """Leaving replicas, with the time at which they are killed."""

    @property
    def released(self) -> set[str]:
        """Replicas that were requested to leave the run."""
        return set(self._leaving)

    def joined(self, replica: str) -> bool:
        """Return whether a replica joined after the run began."""
        return replica_number(replica) >= self._run.manifest.replicas

    def begin(self) -> None:
        """Request the maximum number of nodes, unless it was requested before."""
        most = self._run.manifest.nodes_max
        if most is not None and most > self._run.manifest.nodes and not self._elastic:
            states = dict.fromkeys(self._names(self._requested), ReplicaState(JobPhase.PENDING))
            self._change(most, f"--nodes {self._run.manifest.nodes}-{most}", states)

    def update(self, states: Mapping[str, ReplicaState], seconds_left: float) -> bool:
        """Handle a new request for nodes, and continue earlier ones.

        Args:
            states: states of the replicas according to the launcher.
            seconds_left: seconds until the run's deadline.

        Returns:
            Whether replicas were started.
        """
        before = self._launches
        self._handle_request(states)
        if self._elastic:
            self._follow(states, seconds_left)
        return self._launches > before

    def _follow(self, states: Mapping[str, ReplicaState], seconds_left: float) -> None:
        """Start, return and end replicas for the nodes that were requested before."""
        last = min(LAST_SECONDS, LAST_SHARE * self._run.manifest.hours * 3600.0)
        if seconds_left > last:
            self._return_preempted(states)
            self._add_those_over(states)
        else:
            self._give_up_waiting(states)
        self._end_overdue(states)

    def _handle_request(self, states: Mapping[str, ReplicaState]) -> None:
        paths = self._run.history.paths
        try:
            request = ScaleRequest.load(paths)
        except RunDirectoryError as error:
            problem = self._run.file_problem(paths.scale_request, error, "it was removed")
            self._run.journal.append(problem)
            paths.scale_request.unlink(missing_ok=True)
            return
        if request is None:
            return
        try:
            require_nodes(request.nodes, self._run.manifest.config)
            self._launcher.check(request.nodes)
        except UsageError as error:
            self._refuse(request.nodes, str(error))
        else:
            self._change(request.nodes, request.reason, states)
        # Last: the requesting process waits for it.
        paths.scale_request.unlink(missing_ok=True)

    def _change(self, nodes: int, why: str, states: Mapping[str, ReplicaState]) -> None:
        """Set the requested number of nodes."""
        wanted = self._names(nodes)
        missing = [n for n in wanted if not self._stays(n, states)]
        surplus = [n for n in states if n not in set(wanted) and self._stays(n, states)]
        self._to_add = set(missing)
        if nodes == self._requested and not missing and not surplus:
            return
        before, self._requested, self._elastic = self._requested, nodes, True
        # Before any begins: replicas that were not requested do not count.
        self._run.journal.append(NodesRequested(nodes=nodes, reason=why))
        self._say(f"--nodes {nodes} is requested ({why}), after {before}")
        self._release(surplus)
        self._add_those_over(states, kept=before)

    def _stays(self, replica: str, states: Mapping[str, ReplicaState]) -> bool:
        """Return whether a replica runs or waits, and was not requested to leave."""
        state = states.get(replica)
        return state is not None and not _is_over(state) and replica not in self._leaving

    def _names(self, nodes: int) -> list[str]:
        return [
            replica_name(number)
            for number in range(nodes // self._run.manifest.config.replica.nodes)
        ]

    def _release(self, replicas: Sequence[str]) -> None:
        """Request replicas to shut down cleanly."""
        if not replicas:
            return
        until = self._clock.monotonic() + self._grace
        self._leaving |= dict.fromkeys(replicas, until)
        self._run.journal.append_all([ReplicaReleased(replica=name) for name in replicas])
        self._launcher.release(replicas)

    def _add_those_over(
        self, states: Mapping[str, ReplicaState], *, kept: int | None = None
    ) -> None:
        """Start requested replicas that do not run, as soon as possible."""
        ready = sorted(
            (n for n in self._to_add if n not in states or _is_over(states[n])),
            key=replica_number,
        )
        if not ready:
            return
        self._to_add.difference_update(ready)
        for name in ready:
            self._leaving.pop(name, None)
        try:
            jobs = self._launcher.add(ready)
        except AIPerfError as error:
            asked, self._requested = self._requested, self._requested if kept is None else kept
            self._refuse(asked, f"{few(ready)}: {error}")
            return
        self._launches += 1
        self._run.journal.append_all([ReplicaLaunched(replica=r, job=j) for r, j in jobs.items()])

    def _refuse(self, nodes: int, reason: str) -> None:
        self._run.journal.append(
            NodesRefused(nodes=nodes, current_nodes=self._requested, reason=reason)
        )
        self._say(f"{reason}; --nodes stays {self._requested}")

    def _return_preempted(self, states: Mapping[str, ReplicaState]) -> None:
        """Request nodes again that the scheduler preempted without requeueing their replicas."""
        lost = {n for n, s in states.items() if PREEMPTED in s.detail and _is_over(s)}
        self._to_add |= lost.intersection(self._names(self._requested)) - self._leaving.keys()

    def _give_up_waiting(self, states: Mapping[str, ReplicaState]) -> None:
        """Remove replicas from the queue that would start too late for the run."""
        self._to_add.clear()
        waiting = [n for n, s in states.items() if s.phase in WAITS and self.joined(n)]
        self._release([name for name in waiting if name not in self._leaving])

    def _end_overdue(self, states: Mapping[str, ReplicaState]) -> None:
        """Kill replicas that were requested to leave and exceeded the timeout."""
        now = self._clock.monotonic()
        there = (name for name, state in states.items() if not _is_over(state))
        late = [name for name in there if self._leaving.get(name, now) < now]
        if late:
            self._leaving |= dict.fromkeys(late, now + self._grace)  # It is requested again then.
            self._say(f"ending {few(late)}, which have not shut down within {self._grace:.0f} s")
            self._launcher.end(late)


def _is_over(state: ReplicaState) -> bool:
    """Return whether a replica will not be restarted unless requested."""
    taken = state.phase is JobPhase.LOST and PREEMPTED in state.detail
    return state.phase.ended or taken
