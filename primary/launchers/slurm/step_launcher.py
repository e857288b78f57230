"""Running replicas as steps of jobs whose nodes the primary holds."""

from __future__ import annotations

import math
import signal
import sys
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, TypeVar

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.primary.launchers.base import (
    FORESEEN_STATUSES,
    MOST_RESTARTS,
    STOP_SIGNAL,
    ReplicaState,
    died,
)
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, time_limit_minutes, wait_limit
from aiperf_hpc.primary.launchers.slurm.held_jobs import HeldJobs, Job
from aiperf_hpc.primary.launchers.slurm.launcher import BACK_OFF, LONGEST_SECONDS, unfit_node
from aiperf_hpc.primary.launchers.slurm.node_groups import (
    FOREIGN,
    NodeGroup,
    group_of,
    groups_of,
)
from aiperf_hpc.primary.launchers.slurm.rate_limit import (
    AGAIN,
    SHORTEST_SECONDS,
    RateLimit,
    answered,
)
from aiperf_hpc.primary.launchers.slurm.stale_steps import StaleSteps
from aiperf_hpc.primary.launchers.slurm.steps import (
    Life,
    Place,
    Spawn,
    Step,
    end_sruns,
    spawn,
    step_command,
    step_prefix,
    trial_command,
)
from aiperf_hpc.run.identity import replica_name
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import JobPhase

TRIAL_SECONDS = 20
"""How long the step that tries the nodes waits until they are free."""
KILL_SECONDS = 10.0
"""How long srun may take to end its step before srun itself is ended."""
NODE_WORDS = ("node failure", "launch for", "launch failed", "connection failure")
"""What srun says, in lower case, when it was the node: its status may then be 0."""
REFUSAL_WORDS = (
    "unable to create step",
    "unable to confirm allocation",
    "expired or invalid job",
    "has expired",
)
"""What srun says when SLURM gives it no step."""
BLOCKED = "waits for its node, on which SLURM counts a step that has ended as running"
T = TypeVar("T")


class Holding(Protocol):
    """Where the nodes come from."""

    name: str
    queues: bool
    """Whether nodes may be waited for after the start, and more be asked for."""

    def look(self) -> Sequence[Job]:
        """Return the jobs whose nodes may be used, as they are now. One call of a client."""
        ...

    def check(self, nodes: int) -> None:
        """Require that a run may have so many nodes. One call of a client.

        Raises UsageError where it may not, SchedulerError when SLURM does not answer.
        """
        ...

    def request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        """Ask for a job of so many nodes of a group; return it as soon as SLURM has taken it."""
        ...

    def requested(self, group: NodeGroup) -> int:
        """Return how many nodes of a group were asked for and are waited for."""
        ...

    def granted(self) -> Sequence[Job]:
        """Return the jobs that were granted since this was last asked. Asks nobody."""
        ...

    def release(self) -> None:
        """Give back what is held. One call of a client."""
        ...


@dataclass(frozen=True, slots=True)
class End:
    """How a step ended, as srun tells of it."""

    step: Step
    status: int
    words: str

    @property
    def of_node(self) -> bool:
        """Whether srun says that it was the node."""
        return any(word in self.words.lower() for word in NODE_WORDS)

    @property
    def refused(self) -> bool:
        """Whether SLURM gave no step, or not any more."""
        return any(word in self.words.lower() for word in REFUSAL_WORDS)

    @property
    def foreseen(self) -> bool:
        """Whether the replica has said why it ended, so that there is nothing to find out."""
        return self.status in FORESEEN_STATUSES and not self.of_node and not self.refused

    @property
    def how(self) -> str:
        """What became of it, in words."""
        return self.words if self.of_node or self.refused else f"ended with status {self.status}"


class StepLauncher:
    """Runs every replica as a step on nodes that are held, each started by an srun of its own.

    A step that runs needs no look at SLURM: its srun is a process of this machine. SLURM is asked,
    once in 5 s at most, when a step ended as nobody foresaw and its nodes may be the reason, and
    while nodes are waited for.
    """

    exact = False

    def __init__(
        self,
        manifest: RunManifest,
        paths: RunPaths,
        holding: Holding,
        held_jobs: HeldJobs,
        rate_limit: RateLimit,
        *,
        launch: int = 0,
        spawn: Spawn = spawn,
        clock: Clock = SYSTEM,
    ) -> None:
        """Start nothing yet.

        Args:
            manifest: the run.
            paths: where it keeps its records.
            holding: where the nodes come from.
            held_jobs: what asks SLURM.
            rate_limit: keeps those calls apart.
            launch: how often these replicas had been launched before.
            spawn: starts an srun.
            clock: the clock of pauses.
        """
        self.name, self.queues = holding.name, holding.queues
        self.wait_limit = wait_limit(manifest.config.slurm) if self.queues else None
        self._manifest = manifest
        self._paths = paths
        self._holding = holding
        self._held_jobs = held_jobs
        self._rate_limit = rate_limit
        self._launch = launch
        self._spawn = spawn
        self._clock = clock
        self._jobs: list[Job] = []
        self._steps: dict[str, Step] = {}
        """Those that run."""
        self._stale = StaleSteps(step_prefix(manifest), held_jobs, rate_limit, clock)
        self._in_vain: set[str] = set()
        """Replicas whose sruns waited for ever and were ended, to be started anew."""
        self._doubtful: dict[str, End] = {}
        """Those that ended as nobody foresaw, until SLURM was asked about their nodes."""
        self._waiting: list[str] = []
        """Replicas that are without nodes."""
        self._lives: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()
        self._states: dict[str, ReplicaState] = {}
        self._groups = groups_of(manifest)
        self._tried: dict[str, int] = {}
        """Jobs on whose nodes a step was started, and the group of each."""
        self._hosts: dict[str, str] = {}
        """The host name of each node."""
        self._released: set[str] = set()
        """Replicas that were asked to leave the run."""
        self._ended_by_force: set[str] = set()
        """Of them those whose sruns were told to end their steps."""
        self._no_more = False
        """Whether SLURM has refused nodes in the place of lost ones."""
        self._interval = SHORTEST_SECONDS
        self._stopping = False
        self._killed_at: float | None = None
        self.problem: str | None = None

    def start(self) -> dict[str, str]:
        if self._launch:
            self._end_earlier()
        names = [replica_name(number) for number in range(self._manifest.replicas)]
        self._states = dict.fromkeys(names, ReplicaState(JobPhase.PENDING))
        self._waiting = list(names)
        if self._launch or not self.queues:
            what = "SLURM does not tell of the allocation"
            self._jobs = list(self._rate_limit.require(self._holding.look, what, AGAIN))
        if self.queues:
            jobs = self._queue()
            return {name: jobs[self._group(name)] for name in names}
        places = self._places(names)
        if len(places) < len(names):
            raise UsageError(
                f"--nodes {self._manifest.nodes}: the allocation has {held_nodes(self._jobs)}; "
                "nothing was started"
            )
        for place in _by_job(list(places.values())):
            try:
                self._try(place)
            except SchedulerSilentError as error:
                raise UsageError(
                    f"SLURM does not start a step: {error}; nothing was started; try again when it "
                    "answers"
                ) from None
        self._place()
        return {name: self._steps[name].place.job for name in names}

    def check(self, nodes: int) -> None:
        what = f"--nodes {nodes}: SLURM does not say what it has"
        self._rate_limit.require(lambda: self._holding.check(nodes), what)

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
        # What waits gets its nodes by a job that has no number yet, but its name.
        placed = {name: step.place.job for name, step in self._steps.items()}
        return {name: placed.get(name, job_name(self._manifest)) for name in replicas}

    def release(self, replicas: Collection[str]) -> None:
        self._released.update(replicas)
        for name in [name for name in self._waiting if name in replicas]:
            self._waiting.remove(name)
            detail = "released while it waited for nodes"
            self._states[name] = replace(self._states[name], phase=JobPhase.DONE, detail=detail)
        for name in [name for name in self._doubtful if name in replicas]:
            self._states[name] = self._final(self._doubtful.pop(name))
        self._send(STOP_SIGNAL, replicas)

    def end(self, replicas: Collection[str]) -> None:
        self._send(signal.SIGKILL, self._ended_by_force.intersection(replicas))
        self._send(signal.SIGTERM, set(replicas) - self._ended_by_force)
        self._ended_by_force.update(replicas)

    def _queue(self) -> dict[int, str]:
        """Have a job of each group that is held or waited for; return their numbers."""
        self._try_new()
        found = {job.group: job.id for job in reversed(self._jobs) if job.held or job.waits}
        asked: list[str] = []
        minutes = time_limit_minutes(self._manifest.hours, self._manifest.config.slurm)
        for group in self._groups:
            if group.number not in found:
                try:
                    asked.append(self._request(group.nodes, minutes, group).id)
                except SchedulerError as error:
                    self._withdraw(asked)
                    raise self._not_taken(error) from None
                found[group.number] = asked[-1]
        return found

    def _withdraw(self, jobs: Sequence[str]) -> None:
        """Give back the jobs of other groups."""
        try:
            if jobs:
                self._rate_limit.call(lambda: self._held_jobs.cancel(jobs))
        except SchedulerError as error:
            sys.stderr.write(f"aiperf: cannot cancel {', '.join(jobs)} ({error}): use scancel\n")

    def _not_taken(self, error: SchedulerError) -> UsageError:
        if isinstance(error, SchedulerSilentError):
            return UsageError(
                f"SLURM did not take the job: {error}; if it did all the same, "
                f"`scancel --name={job_name(self._manifest)}` removes it"
            )
        return UsageError(
            f"SLURM refused the job: {error}; nothing was started; change the slurm section "
            "of the configuration"
        )

    def _request(self, nodes: int, minutes: int, group: NodeGroup) -> Job:
        return self._rate_limit.call(lambda: self._holding.request(nodes, minutes, group))

    def _end_earlier(self) -> None:
        """End the steps of an earlier primary, whose replicas this one's replace."""
        end_sruns(step_prefix(self._manifest))  # One that waits would start its step later.
        answered(self._stale.end_earlier, "the run's earlier steps cannot be ended", AGAIN)

    def _try(self, place: Place, count: int = 0) -> list[str]:
        """Start a step that does nothing on these nodes, so that a refusal is said in one line.

        Return their names. Raises UsageError when it is refused, SchedulerSilentError when nobody
        answers.
        """
        overlap = self._stale.overlaps(place)
        command = trial_command(self._manifest, place, TRIAL_SECONDS, count, overlap=overlap)
        try:
            said = self._held_jobs.try_step(command)
        except SchedulerSilentError:
            raise
        except SchedulerError as error:
            raise UsageError(
                f"job {place.job} refused a step: {error}; nothing was started; see the slurm "
                "section of the configuration, and what else runs in the job"
            ) from None
        self._tried[place.job] = place.group
        told = (line.split() for line in said)
        hosts = {words[0]: words[1] for words in told if len(words) == 2}
        self._hosts |= hosts
        return sorted(hosts, key=lambda node: (len(node), node))

    def _arrived(self, job: Job) -> None:
        """Start replicas on the nodes of a job that was granted."""
        try:
            nodes = self._try(Place(job.id, job.nodes, job.group), job.count)
        except SchedulerSilentError as error:
            self._silent(error)  # The next look finds it granted.
            return
        except UsageError as error:
            if not (self._lives or self._launch):
                raise  # The run cannot be what was asked for.
            self.problem = str(error)  # It is looked at again.
            return
        others = [other for other in self._jobs if other.id != job.id]
        self._jobs = [*others, replace(job, state="RUNNING", nodes=tuple(nodes))]
        self._place()

    def _group(self, replica: str) -> int:
        return group_of(self._manifest, replica)

    def _places(self, replicas: Sequence[str]) -> dict[str, Place]:
        """Return places for these replicas, or for some, on nodes that no step runs on."""
        free: dict[int, deque[Place]] = {}
        for place in self._free_places():
            free.setdefault(place.group, deque()).append(place)
        own = ((name, free.get(self._group(name))) for name in replicas)
        return {name: places.popleft() for name, places in own if places}

    def _free_places(self) -> Iterator[Place]:
        used = {node for step in self._steps.values() for node in step.place.nodes}
        used |= {node for end in self._doubtful.values() for node in end.step.place.nodes}
        each = self._manifest.config.replica.nodes
        for job in self._jobs:
            usable = job.held and (job.id in self._tried or not self.queues)
            free = [node for node in job.nodes if usable and node not in used]
            for at in range(0, len(free) // each * each, each):
                yield Place(job.id, tuple(free[at : at + each]), job.group)

    def _place(self) -> None:
        """Start replicas that wait on nodes that are free."""
        for name, place in self._places(self._waiting).items():
            self._waiting.remove(name)
            if self._lives[name]:
                was = self._states[name]
                detail = f"{was.detail}; started again on {place}"
                self._states[name] = replace(was, phase=JobPhase.REQUEUED, detail=detail)
            self._start(name, place)

    def _start(self, name: str, place: Place) -> None:
        life = Life(name, self._launch, self._lives[name])
        self._lives[name] += 1
        log = self._paths.replica_log(name)
        begins = log.stat().st_size if log.exists() else 0
        first_host = self._hosts.get(place.nodes[0], "")
        overlap = self._stale.overlaps(place)
        command = step_command(
            self._manifest, self._paths, life, place, first_host, overlap=overlap
        )
        process = self._spawn(command, log)
        self._steps[name] = Step(life, place, process, log, begins)
        self._stale.started(self._steps[name], self._clock.monotonic())

    def states(self) -> dict[str, ReplicaState]:
        before = self._states
        self._states = dict(before)
        for name, step in list(self._steps.items()):
            status = step.process.poll()
            if status is None:
                self._runs(name, step)
            else:
                del self._steps[name]
                self._stale.ended(name)
                if name in self._in_vain and not self._stopping and name not in self._released:
                    self._start(name, step.place)
                else:
                    self._ended(name, End(step, status, step.words()))
                self._in_vain.discard(name)
        if not self._stopping:
            for granted in self._holding.granted():
                self._arrived(granted)
            self._call_if_due()
        return self._states

    def _runs(self, name: str, step: Step) -> None:
        state, job = self._states[name], self._job(step.place)
        if name in self._stale.blocked:
            self._states[name] = ReplicaState(JobPhase.REQUEUED, str(step.place), BLOCKED)
            return
        if state.phase is not JobPhase.RUNNING:
            state = ReplicaState(JobPhase.RUNNING, str(step.place))
        if job is not None and state.started_utc is None and job.started_utc is not None:
            state = replace(state, submitted_utc=job.submitted_utc, started_utc=job.started_utc)
        self._states[name] = state

    def _job(self, place: Place) -> Job | None:
        return next((job for job in self._jobs if job.id == place.job), None)

    def _call_if_due(self) -> None:
        """Make one call of the client, if there is something to ask and it is time to."""
        quiet = self._rate_limit.quiet_seconds
        if quiet >= SHORTEST_SECONDS and (lacking := self._lacking()) is not None:
            self._ask_for_more(lacking)
        elif quiet >= SHORTEST_SECONDS and (surplus := self._surplus()):
            self._give_back(surplus)
        elif self._wants_look() and quiet >= self._interval:
            self._look()
        elif quiet >= SHORTEST_SECONDS and self._stale.look(self._clock.monotonic()):
            self._free()

    def _lacking(self) -> NodeGroup | None:
        """Return the group of which nodes are to be asked for in the place of lost ones."""
        begun = self._tried.values() if self.queues and not self._no_more else ()
        lacking = (g for g in self._groups if g.number in begun and self._waits_in_vain(g))
        return next(lacking, None)

    def _waits_in_vain(self, group: NodeGroup) -> bool:
        """Return whether more replicas of a group wait than nodes that were asked for."""
        waiting = sum(self._group(name) == group.number for name in self._waiting)
        own = (job for job in self._jobs if job.group == group.number and job.waits)
        waited = max(self._holding.requested(group), sum(job.count for job in own))
        return waited < waiting * self._manifest.config.replica.nodes

    def _ask_for_more(self, group: NodeGroup) -> None:
        """Ask for the nodes of one replica until the end of the run's job."""
        held = [job for job in self._jobs if job.held]
        if not held:
            return  # The run's job is over.
        left = min(job.end_utc for job in held) - self._clock.utc()
        limit = time_limit_minutes(self._manifest.hours, self._manifest.config.slurm)
        minutes = limit if math.isinf(left) else min(limit, max(1, math.ceil(left / 60.0)))
        try:
            self._request(self._manifest.config.replica.nodes, minutes, group)
            self.problem = None
        except SchedulerSilentError as error:
            self._silent(error)
        except SchedulerError as error:
            self._no_more = True
            for name in self._waiting:
                detail = f"{self._states[name].detail}; SLURM gives no other node: {error}"
                self._states[name] = replace(self._states[name], detail=detail)

    def _surplus(self) -> list[str]:
        """Return the jobs beside each group's first on whose nodes nobody is, or will be."""
        if not self.queues or self._waiting:
            return []
        there = [*self._steps.values(), *(end.step for end in self._doubtful.values())]
        used = {step.place.job for step in there}
        first = {job.group: job.id for job in reversed(self._jobs) if job.group != FOREIGN}
        kept = used.union(first.values())
        return [job.id for job in self._jobs if (job.held or job.waits) and job.id not in kept]

    def _give_back(self, jobs: Sequence[str]) -> None:
        try:
            self._rate_limit.call(lambda: self._held_jobs.cancel(jobs))
        except SchedulerError as error:
            self._silent(error)
            return
        self._jobs = [job for job in self._jobs if job.id not in jobs]

    def _free(self) -> None:
        """Have nodes freed of steps whose end SLURM has missed, or start beside those."""
        try:
            in_vain = self._stale.free(self._clock.monotonic())
            self.problem = None
        except SchedulerError as error:
            self.problem = str(error)  # It is tried again.
            return
        self._in_vain.update(in_vain)
        self._send(signal.SIGKILL, in_vain)

    def _ended(self, name: str, end: End) -> None:
        if end.foreseen or self._stopping or name in self._released:
            self._states[name] = self._final(end)
        else:
            self._doubtful[name] = end

    def _final(self, end: End) -> ReplicaState:
        """Return the state of a replica that is not started again."""
        node, status = str(end.step.place), end.status
        if end.refused:
            return ReplicaState(JobPhase.FAILED, node, end.how, refused=True)
        if (wrong := unfit_node(self._paths, status)) is not None:
            return ReplicaState(JobPhase.FAILED, node, wrong, status=status, refused=True)
        if end.of_node:
            return ReplicaState(JobPhase.LOST, node, end.how)
        phase = JobPhase.FAILED if status else JobPhase.DONE
        return ReplicaState(phase, node, end.how if status else "", status=status)

    def _wants_look(self) -> bool:
        untold = self.queues and any(j.held and j.started_utc is None for j in self._jobs)
        return bool(self._doubtful or self._waiting or untold)

    def _silent(self, error: SchedulerError) -> None:
        self.problem = str(error)
        self._interval = min(LONGEST_SECONDS, self._interval * BACK_OFF)

    def _look(self) -> None:
        """Ask SLURM what is held, and act on it."""
        before = self._jobs
        try:
            self._jobs = list(self._rate_limit.call(self._holding.look))
        except SchedulerError as error:
            self._silent(error)
            return
        self.problem = None
        news = bool(self._doubtful) or self._jobs != before
        self._interval = (
            SHORTEST_SECONDS if news else min(LONGEST_SECONDS, self._interval * BACK_OFF)
        )
        doubtful, self._doubtful = self._doubtful, {}
        for name, end in doubtful.items():
            self._states[name] = self._resolved(name, end)
        if self.queues:
            self._told()
        self._place()

    def _told(self) -> None:
        """Act on what was said of the run's own jobs."""
        self._try_new()
        for name in self._waiting:
            jobs = [job for job in self._jobs if job.group == self._group(name)]
            if self._lives[name] or any(job.held for job in jobs):
                continue
            if waits := [job for job in jobs if job.waits]:
                about = waits[0]
                self._states[name] = ReplicaState(
                    JobPhase.PENDING, detail=about.reason, submitted_utc=about.submitted_utc
                )
            else:
                ended = ", ".join(f"{job.id} is {job.state}" for job in jobs)
                detail = f"the allocation {ended}" if ended else "SLURM knows no job of the run"
                self._states[name] = ReplicaState(JobPhase.FAILED, detail=detail)

    def _resolved(self, name: str, end: End) -> ReplicaState:
        """Decide what becomes of a replica whose step ended as nobody foresaw."""
        place = end.step.place
        job = self._job(place)
        # A step may come too late for its job, whose nodes then nobody of the run has.
        failed = end.refused or (job is not None and job.state == "NODE_FAIL")
        failed &= (job is None or not job.held) and self._may_be_replaced()
        if not failed and (job is None or not job.held):
            state = "no longer there" if job is None else job.state
            detail = f"{end.how}; the allocation {place.job} is {state}"
            return ReplicaState(JobPhase.FAILED, str(place), detail)
        if gone := [n for n in place.nodes if failed or job is None or n not in job.nodes]:
            self._waiting.append(name)
            detail = f"{','.join(gone)} left the allocation: {end.how}"
            phase = JobPhase.REQUEUED if self.queues else JobPhase.LOST
            return ReplicaState(phase, str(place), detail)
        if end.of_node:  # Neither the replica's doing, nor over: SLURM has not given it up.
            self._start(name, place)
            return ReplicaState(JobPhase.REQUEUED, str(place), f"{end.how}; tried again")
        if died(end.status) and not end.refused and self._restarts[name] < MOST_RESTARTS:
            self._restarts[name] += 1
            self._start(name, place)
            again = f"started again, {self._restarts[name]} of {MOST_RESTARTS}"
            return ReplicaState(JobPhase.REQUEUED, str(place), f"{end.how}; {again}")
        return self._final(end)

    def _try_new(self) -> None:
        """Take the nodes of jobs that an earlier primary asked for."""
        for job in list(self._jobs):
            if job.held and job.id not in self._tried and job.group != FOREIGN:
                self._arrived(job)

    def _may_be_replaced(self) -> bool:
        """Return whether a job whose only node failed, which ends it, may have a successor."""
        return self.queues and any(job.held for job in self._jobs)

    def ask_to_stop(self) -> None:
        self._stopping = True
        for name in self._waiting:
            if self._states[name].phase is not JobPhase.LOST:
                detail = "stopped while it waited for nodes"
                self._states[name] = replace(self._states[name], phase=JobPhase.DONE, detail=detail)
        self._waiting = []
        doubtful, self._doubtful = self._doubtful, {}
        for name, end in doubtful.items():
            self._states[name] = self._final(end)
        self._send(STOP_SIGNAL, self._steps)

    def kill(self) -> None:
        if self._killed_at is None:
            self.ask_to_stop()
            self._killed_at = self._clock.monotonic()
            self._send(signal.SIGTERM, self._steps)  # srun ends its step by force.
        elif self._clock.monotonic() >= self._killed_at + KILL_SECONDS:
            self._send(signal.SIGKILL, self._steps)

    def close(self) -> None:
        if not self.queues:
            return
        try:
            self._rate_limit.call(self._holding.release)
        except SchedulerError as error:
            name = job_name(self._manifest)
            sys.stderr.write(
                f"aiperf: the run's nodes are not given back ({error}): scancel --name={name}\n"
            )

    def _send(self, number: int, replicas: Collection[str]) -> None:
        for name, step in self._steps.items():
            if name in replicas:
                step.process.send_signal(number)


def held_nodes(jobs: Sequence[Job]) -> int:
    """Return how many nodes may be used."""
    return sum(len(job.nodes) for job in jobs if job.held)


def _by_job(places: Sequence[Place]) -> list[Place]:
    """Return for each job one place with all nodes of its places."""
    grouped = groupby(places, key=lambda place: place.job)
    return [Place(job, tuple(n for place in own for n in place.nodes)) for job, own in grouped]
