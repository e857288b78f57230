"""Launcher that runs replicas as steps of jobs whose nodes the primary holds."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError, restated
from aiperf_hpc.primary.launchers.base import (
    FORESEEN_STATUSES,
    MOST_RESTARTS,
    STOP_SIGNAL,
    ReplicaState,
    died,
)
from aiperf_hpc.primary.launchers.slurm.allocation import Allocation, NodePool, held_nodes
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, time_limit_minutes, wait_limit
from aiperf_hpc.primary.launchers.slurm.client import (
    RETRY_HINT,
    SHORTEST_SECONDS,
    RateLimit,
    SlurmClient,
)
from aiperf_hpc.primary.launchers.slurm.jobs import Job
from aiperf_hpc.primary.launchers.slurm.launcher import SlurmLauncher, unfit_node
from aiperf_hpc.primary.launchers.slurm.resources import NodeGroup
from aiperf_hpc.primary.launchers.slurm.steps import (
    Attempt,
    Place,
    Spawn,
    StaleSteps,
    Step,
    end_sruns,
    spawn,
    step_command,
    step_prefix,
)
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import warn
from aiperf_hpc.trial import JobPhase

KILL_SECONDS = 10.0
"""Time in seconds for srun to end its step before srun itself is killed."""
NODE_ERRORS = ("node failure", "launch for", "launch failed", "connection failure")
"""Errors of srun, in lower case, about a node failure: its status may then be 0."""
REFUSALS = (
    "unable to create step",
    "unable to confirm allocation",
    "expired or invalid job",
    "has expired",
)
"""Errors of srun if SLURM creates no step."""
BLOCKED = "waits for its node, where SLURM still reports an ended step as running"


@dataclass(frozen=True, slots=True)
class StepEnd:
    """End of a step as reported by srun."""

    step: Step
    status: int
    errors: str

    @property
    def of_node(self) -> bool:
        """Whether srun reports a node failure."""
        return any(error in self.errors.lower() for error in NODE_ERRORS)

    @property
    def refused(self) -> bool:
        """Whether SLURM created no step, or revoked it."""
        return any(error in self.errors.lower() for error in REFUSALS)

    @property
    def foreseen(self) -> bool:
        """Whether the replica has reported the reason of its end, so no query is needed."""
        return self.status in FORESEEN_STATUSES and not self.of_node and not self.refused

    @property
    def reason(self) -> str:
        """Errors of srun if they explain the end, else its exit status."""
        return self.errors if self.of_node or self.refused else f"ended with status {self.status}"


class StepLauncher(SlurmLauncher):
    """Runs every replica as a step on held nodes, each started by its own srun.

    A running step needs no query of SLURM: its srun is a local process. SLURM is queried at most
    once per 5 s, if a step ended unexpectedly and its nodes may be the cause, and while nodes are
    pending.
    """

    def __init__(
        self,
        manifest: RunManifest,
        paths: RunPaths,
        allocation: Allocation,
        client: SlurmClient,
        rate_limit: RateLimit,
        *,
        launch: int = 0,
        spawn: Spawn = spawn,
    ) -> None:
        """Create a launcher without starting replicas.

        Args:
            manifest, paths, client, rate_limit, launch: as in the base class.
            allocation: source of the nodes.
            spawn: function that starts an srun.
        """
        super().__init__(manifest, paths, client, rate_limit, launch)
        self.queues = allocation.queues
        self.wait_limit = wait_limit(manifest.config.slurm) if self.queues else None
        self._allocation = allocation
        self._spawn = spawn
        self._clock = rate_limit.clock
        self._stale_steps = StaleSteps(step_prefix(manifest), client, rate_limit)
        self._pool = NodePool(manifest, allocation, client, self._stale_steps)
        self._steps: dict[str, Step] = {}
        """Running steps."""
        self._stuck: set[str] = set()
        """Replicas whose sruns were stuck and were ended; they are restarted."""
        self._unexplained: dict[str, StepEnd] = {}
        """Steps that ended unexpectedly, until SLURM was queried about their nodes."""
        self._waiting: list[str] = []
        """Replicas without nodes."""
        self._attempts: Counter[str] = Counter()
        self._ended_by_force: set[str] = set()
        """Released replicas whose sruns were requested to end their steps."""
        self._no_more = False
        """Whether SLURM has rejected a request for replacement nodes."""
        self._killed_at: float | None = None

    def start(self) -> dict[str, str]:
        if self._launch:
            self._end_earlier()
        names = self._replicas
        self._states = dict.fromkeys(names, ReplicaState(JobPhase.PENDING))
        self._waiting = list(names)
        if self._launch or not self.queues:
            what = "SLURM does not report the allocation"
            found = self._rate_limit.require(self._allocation.look, what, RETRY_HINT)
            self._pool.jobs = list(found)
        if self.queues:
            jobs = self._queue()
            return {name: jobs[self._pool.group(name)] for name in names}
        places = self._places(names)
        if len(places) < len(names):
            raise UsageError(
                f"--nodes {self._manifest.nodes}: the allocation has {held_nodes(self._pool.jobs)};"
                " nothing was started"
            )
        for place in _by_job(list(places.values())):
            after = "; nothing was started; try again when it responds"
            with restated("SLURM does not start a step", after=after, caught=SchedulerSilentError):
                self._pool.try_step(place)
        self._place()
        return {name: self._steps[name].place.job for name in names}

    def _check_nodes(self, nodes: int) -> None:
        if self.queues:
            super()._check_nodes(nodes)
        elif (there := held_nodes(self._allocation.look())) < nodes:
            raise UsageError(f"--nodes {nodes}: the allocation has {there} nodes")

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        if not self.queues and len(self._places(replicas)) < len(replicas):
            raise UsageError("the allocation has no free nodes for them")
        self._released.difference_update(replicas)
        self._ended_by_force.difference_update(replicas)
        self._states = self._states | dict.fromkeys(replicas, ReplicaState(JobPhase.PENDING))
        self._waiting += replicas
        self._no_more = False
        self._interval = SHORTEST_SECONDS
        self._place()
        # The job of a waiting replica has a name, but no number yet.
        placed = {name: step.place.job for name, step in self._steps.items()}
        return {name: placed.get(name, job_name(self._manifest)) for name in replicas}

    def release(self, replicas: Collection[str]) -> None:
        self._released.update(replicas)
        for name in [name for name in self._waiting if name in replicas]:
            self._waiting.remove(name)
            self._update(name, "released while it waited for nodes", JobPhase.DONE)
        for name in [name for name in self._unexplained if name in replicas]:
            self._states[name] = self._final(self._unexplained.pop(name))
        self._send(STOP_SIGNAL, replicas)

    def end(self, replicas: Collection[str]) -> None:
        self._send(signal.SIGKILL, self._ended_by_force.intersection(replicas))
        self._send(signal.SIGTERM, set(replicas) - self._ended_by_force)
        self._ended_by_force.update(replicas)

    def _queue(self) -> dict[int, str]:
        """Ensure that each group has a held or pending job; return the numbers of the jobs."""
        self._take_untried()
        found = {job.group: job.id for job in reversed(self._pool.jobs) if job.held or job.waits}
        requested: list[str] = []
        for group in self._pool.groups:
            if group.number not in found:
                try:
                    requested.append(self._request(group.nodes, self._limit, group).id)
                except SchedulerError as error:
                    self._withdraw(requested)
                    raise self._refusal(error) from None
                found[group.number] = requested[-1]
        return found

    @property
    def _limit(self) -> int:
        return time_limit_minutes(self._manifest.hours, self._manifest.config.slurm)

    def _request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        return self._rate_limit.call(lambda: self._allocation.request(nodes, minutes, group))

    def _end_earlier(self) -> None:
        """End the steps of an earlier primary, whose replicas are replaced."""
        end_sruns(step_prefix(self._manifest))  # A waiting srun would start its step later.
        what = "the run's earlier steps cannot be ended"
        with restated(what, after=RETRY_HINT, caught=SchedulerError):
            self._stale_steps.end_earlier()

    def _take(self, job: Job) -> None:
        """Start replicas on the nodes of a granted job."""
        try:
            self._pool.take(job)
        except SchedulerSilentError as error:
            self._silent(error)  # The next query finds it granted.
        except UsageError as error:
            if not (self._attempts or self._launch):
                raise  # The run cannot match the request.
            self.problem = str(error)  # It is queried again.
        else:
            self._place()

    def _take_untried(self) -> None:
        """Adopt the nodes of jobs that an earlier primary requested."""
        for job in self._pool.untried():
            self._take(job)

    def _used(self) -> list[Place]:
        """Return the places that are unavailable to other replicas."""
        ended = (end.step for end in self._unexplained.values())
        return [step.place for step in (*self._steps.values(), *ended)]

    def _places(self, replicas: Sequence[str]) -> dict[str, Place]:
        return self._pool.places(replicas, self._used())

    def _place(self) -> None:
        """Start waiting replicas on free nodes."""
        for name, place in self._places(self._waiting).items():
            self._waiting.remove(name)
            if self._attempts[name]:
                detail = f"{self._states[name].detail}; restarted on {place}"
                self._update(name, detail, JobPhase.REQUEUED)
            self._start(name, place)

    def _start(self, name: str, place: Place) -> None:
        attempt = Attempt(name, self._launch, self._attempts[name])
        self._attempts[name] += 1
        log = self._paths.replica_log(name)
        begins = log.stat().st_size if log.exists() else 0
        command = step_command(
            self._manifest, self._paths, attempt, place, self._pool.hosts.get(place.nodes[0], ""),
            overlap=self._stale_steps.overlaps(place),
        )  # fmt: skip
        self._steps[name] = Step(attempt, place, self._spawn(command, log), log, begins)
        self._stale_steps.started(self._steps[name])

    def states(self) -> dict[str, ReplicaState]:
        self._states = dict(self._states)
        for name, step in list(self._steps.items()):
            status = step.process.poll()
            if status is None:
                self._states[name] = self._running(name, step)
                continue
            del self._steps[name]
            self._stale_steps.ended(name)
            if name in self._stuck and not self._leaves(name):
                self._start(name, step.place)
            else:
                self._ended(name, StepEnd(step, status, step.srun_errors()))
            self._stuck.discard(name)
        if not self._stopping:
            for granted in self._allocation.granted():
                self._take(granted)
            self._call_if_due()
        return self._states

    def _running(self, name: str, step: Step) -> ReplicaState:
        state, job = self._states[name], self._pool.job_at(step.place)
        if name in self._stale_steps.blocked:
            return ReplicaState(JobPhase.REQUEUED, str(step.place), BLOCKED)
        if state.phase is not JobPhase.RUNNING:
            state = ReplicaState(JobPhase.RUNNING, str(step.place))
        if job is not None and state.started_utc is None and job.started_utc is not None:
            return replace(state, submitted_utc=job.submitted_utc, started_utc=job.started_utc)
        return state

    def _call_if_due(self) -> None:
        """Make one client call if there is a query and the rate limit allows it."""
        quiet = self._rate_limit.quiet_seconds
        if quiet < SHORTEST_SECONDS:
            return
        lacking = None if self._no_more else self._pool.lacking(self._waiting)
        if lacking is not None:
            self._request_more(lacking)
        elif self.queues and not self._waiting and (jobs := self._pool.surplus(self._used())):
            self._give_back(jobs)
        elif self._wants_look() and quiet >= self._interval:
            self._look()
        elif self._stale_steps.look():
            self._free()

    def _request_more(self, group: NodeGroup) -> None:
        """Request the nodes of one replica until the end of the run's job."""
        held = [job for job in self._pool.jobs if job.held]
        if not held:
            return  # The run's job is over.
        left = min(job.end_utc for job in held) - self._clock.utc()
        minutes = self._limit
        if not math.isinf(left):
            minutes = min(minutes, max(1, math.ceil(left / 60.0)))
        try:
            self._request(self._manifest.config.replica.nodes, minutes, group)
            self.problem = None
        except SchedulerSilentError as error:
            self._silent(error)
        except SchedulerError as error:
            self._no_more = True
            for name in self._waiting:
                detail = f"{self._states[name].detail}; SLURM grants no other node: {error}"
                self._update(name, detail)

    def _give_back(self, jobs: Sequence[str]) -> None:
        try:
            self._rate_limit.call(lambda: self._client.cancel(*jobs))
        except SchedulerError as error:
            self._silent(error)
        else:
            self._pool.jobs = [job for job in self._pool.jobs if job.id not in jobs]

    def _free(self) -> None:
        """Have nodes freed of stale steps, or start steps beside those."""
        try:
            stuck = self._stale_steps.free()
            self.problem = None
        except SchedulerError as error:
            self.problem = str(error)  # It is retried.
            return
        self._stuck.update(stuck)
        self._send(signal.SIGKILL, stuck)

    def _ended(self, name: str, end: StepEnd) -> None:
        if end.foreseen or self._leaves(name):
            self._states[name] = self._final(end)
        else:
            self._unexplained[name] = end

    def _final(self, end: StepEnd) -> ReplicaState:
        """Return the state of a replica that is not restarted."""
        node, status = str(end.step.place), end.status
        if end.refused:
            return ReplicaState(JobPhase.FAILED, node, end.reason, refused=True)
        if (wrong := unfit_node(self._paths, status)) is not None:
            return ReplicaState(JobPhase.FAILED, node, wrong, status=status, refused=True)
        if end.of_node:
            return ReplicaState(JobPhase.LOST, node, end.reason)
        phase = JobPhase.FAILED if status else JobPhase.DONE
        return ReplicaState(phase, node, end.reason if status else "", status=status)

    def _wants_look(self) -> bool:
        jobs = self._pool.jobs if self.queues else ()
        unknown_start = any(job.held and job.started_utc is None for job in jobs)
        return bool(self._unexplained or self._waiting or unknown_start)

    def _look(self) -> None:
        """Query the held jobs, and handle changes."""
        before = self._pool.jobs
        try:
            self._pool.jobs = list(self._rate_limit.call(self._allocation.look))
        except SchedulerError as error:
            self._silent(error)
            return
        self.problem = None
        if self._unexplained or self._pool.jobs != before:
            self._interval = SHORTEST_SECONDS
        else:
            self._back_off()
        unexplained, self._unexplained = self._unexplained, {}
        for name, end in unexplained.items():
            self._states[name] = self._resolved(name, end)
        if self.queues:
            self._take_untried()
            for name in self._waiting:
                self._states[name] = self._queued(name)
        self._place()

    def _queued(self, name: str) -> ReplicaState:
        """Return the state of a waiting replica from its group's jobs."""
        jobs = self._pool.of_group(self._pool.group(name))
        if self._attempts[name] or any(job.held for job in jobs):
            return self._states[name]
        if waits := [job for job in jobs if job.waits]:
            job = waits[0]
            return ReplicaState(
                JobPhase.PENDING, detail=job.reason, submitted_utc=job.submitted_utc
            )
        ended = ", ".join(f"{job.id} is {job.state}" for job in jobs)
        detail = f"the allocation {ended}" if ended else "SLURM lists no job of the run"
        return ReplicaState(JobPhase.FAILED, detail=detail)

    def _resolved(self, name: str, end: StepEnd) -> ReplicaState:
        """Decide whether to restart a replica whose step ended unexpectedly."""
        place = end.step.place
        job = self._pool.job_at(place)
        # A step may start too late for its job, so that no replica uses the job's nodes.
        failed = end.refused or (job is not None and job.state == "NODE_FAIL")
        # A job that ended because its only node failed may be replaced.
        failed &= (job is None or not job.held) and self.queues
        failed &= any(each.held for each in self._pool.jobs)
        if not failed and (job is None or not job.held):
            state = "no longer there" if job is None else job.state
            detail = f"{end.reason}; the allocation {place.job} is {state}"
            return ReplicaState(JobPhase.FAILED, str(place), detail)
        if gone := [n for n in place.nodes if failed or job is None or n not in job.nodes]:
            self._waiting.append(name)
            detail = f"{','.join(gone)} left the allocation: {end.reason}"
            phase = JobPhase.REQUEUED if self.queues else JobPhase.LOST
            return ReplicaState(phase, str(place), detail)
        if end.of_node:  # Neither the replica's fault nor final: SLURM still has the job.
            self._start(name, place)
            return ReplicaState(JobPhase.REQUEUED, str(place), f"{end.reason}; tried again")
        if died(end.status) and not end.refused and self._restarts[name] < MOST_RESTARTS:
            self._restarts[name] += 1
            self._start(name, place)
            again = f"started again, {self._restarts[name]} of {MOST_RESTARTS}"
            return ReplicaState(JobPhase.REQUEUED, str(place), f"{end.reason}; {again}")
        return self._final(end)

    def ask_to_stop(self) -> None:
        self._stopping = True
        for name in self._waiting:
            if self._states[name].phase is not JobPhase.LOST:
                self._update(name, "stopped while it waited for nodes", JobPhase.DONE)
        self._waiting = []
        unexplained, self._unexplained = self._unexplained, {}
        for name, end in unexplained.items():
            self._states[name] = self._final(end)
        self._send(STOP_SIGNAL, self._steps)

    def kill(self) -> None:
        if self._killed_at is None:
            self.ask_to_stop()
            self._killed_at = self._clock.monotonic()
            self._send(signal.SIGTERM, self._steps)  # srun kills its step.
        elif self._clock.monotonic() >= self._killed_at + KILL_SECONDS:
            self._send(signal.SIGKILL, self._steps)

    def close(self) -> None:
        if not self.queues:
            return
        try:
            self._rate_limit.call(self._allocation.release)
        except SchedulerError as error:
            name = job_name(self._manifest)
            warn(f"the run's nodes are not released ({error}): scancel --name={name}")

    def _send(self, number: int, replicas: Collection[str]) -> None:
        for name, step in self._steps.items():
            if name in replicas:
                step.process.send_signal(number)


def _by_job(places: Sequence[Place]) -> list[Place]:
    """Return one place per job with all nodes of its places."""
    grouped = groupby(places, key=lambda place: place.job)
    return [Place(job, tuple(n for place in own for n in place.nodes)) for job, own in grouped]
