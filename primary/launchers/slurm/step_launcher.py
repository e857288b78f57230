"""Running replicas as steps of jobs whose nodes the primary holds."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, TypeVar

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, UsageError
from aiperf_hpc.primary.launchers.base import (
    FORESEEN_STATUSES,
    MOST_RESTARTS,
    STOP_SIGNAL,
    ReplicaState,
    died,
    replica_name,
)
from aiperf_hpc.primary.launchers.slurm.held_jobs import HeldJobs, Job
from aiperf_hpc.primary.launchers.slurm.launcher import BACK_OFF, LONGEST_SECONDS, unfit_node
from aiperf_hpc.primary.launchers.slurm.rate_limit import SHORTEST_SECONDS, RateLimit
from aiperf_hpc.primary.launchers.slurm.steps import (
    Life,
    Place,
    Spawn,
    Step,
    spawn,
    step_command,
    step_prefix,
    trial_command,
)
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import JobPhase

TRIAL_SECONDS = 20
"""How long the step that tries the nodes waits until they are free."""
KILL_SECONDS = 10.0
"""How long srun may take to end its step before srun itself is ended."""
NODE_WORDS = ("node failure", "launch for", "launch failed", "connection failure")
"""What srun says, in lower case, when it was the node: its status may then be 0."""
REFUSAL_WORDS = ("unable to create step", "unable to confirm allocation", "expired or invalid job")
"""What srun says when SLURM gives it no step."""
T = TypeVar("T")


class Holding(Protocol):
    """Where the nodes come from."""

    name: str
    queues: bool
    """Whether nodes may be waited for after the start."""

    def look(self) -> Sequence[Job]:
        """Return the jobs whose nodes may be used, as they are now. One call of a client."""
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
        self._doubtful: dict[str, End] = {}
        """Those that ended as nobody foresaw, until SLURM was asked about their nodes."""
        self._waiting: list[str] = []
        """Replicas that are without nodes."""
        self._lives: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()
        self._states: dict[str, ReplicaState] = {}
        self._interval = SHORTEST_SECONDS
        self._stopping = False
        self._killed_at: float | None = None
        self.problem: str | None = None

    def start(self) -> dict[str, str]:
        if self._launch:
            self._end_earlier()
        self._jobs = list(self._ask(self._holding.look, "SLURM does not tell of the allocation"))
        names = [replica_name(number) for number in range(self._manifest.replicas)]
        self._states = dict.fromkeys(names, ReplicaState(JobPhase.PENDING))
        self._waiting = list(names)
        places = self._places(len(names))
        if len(places) < len(names):
            raise UsageError(
                f"--nodes {self._manifest.nodes}: the allocation has {held_nodes(self._jobs)}; "
                "nothing was started"
            )
        for place in _by_job(places):
            self._try(place)
        self._place()
        return {name: f"{self._steps[name].place.job}.{name}" for name in names}

    def _ask(self, request: Callable[[], T], what: str) -> T:
        try:
            return self._rate_limit.call(request)
        except SchedulerError as error:
            raise UsageError(
                f"{what}: {error}; nothing was started; try again when SLURM answers"
            ) from None

    def _end_earlier(self) -> None:
        """End the steps of an earlier primary, whose replicas this one's replace."""
        what, prefix = "the run's earlier steps cannot be ended", step_prefix(self._manifest)
        if steps := self._ask(lambda: self._held_jobs.steps(prefix), what):
            self._ask(lambda: self._held_jobs.cancel(steps), what)

    def _try(self, place: Place) -> None:
        """Start a step that does nothing on these nodes, so that a refusal is said in one line."""
        try:
            self._held_jobs.try_step(trial_command(self._manifest, place, TRIAL_SECONDS))
        except SchedulerError as error:
            raise UsageError(
                f"job {place.job} refused a step: {error}; nothing was started; see the slurm "
                "section of the configuration, and what else runs in the job"
            ) from None

    def _places(self, most: int) -> list[Place]:
        """Return places for so many replicas on nodes that no step runs on, or fewer."""
        used = {node for step in self._steps.values() for node in step.place.nodes}
        used |= {node for end in self._doubtful.values() for node in end.step.place.nodes}
        each = self._manifest.config.replica.nodes
        found = []
        for job in self._jobs:
            free = [node for node in job.nodes if job.held and node not in used]
            whole = len(free) // each * each
            found += [Place(job.id, tuple(free[at : at + each])) for at in range(0, whole, each)]
        return found[:most]

    def _place(self) -> None:
        """Start replicas that wait on nodes that are free."""
        places = self._places(len(self._waiting))
        for name, place in zip(list(self._waiting), places, strict=False):
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
        process = self._spawn(step_command(self._manifest, self._paths, life, place), log)
        self._steps[name] = Step(life, place, process, log, begins)

    def states(self) -> dict[str, ReplicaState]:
        before = self._states
        self._states = dict(before)
        for name, step in list(self._steps.items()):
            status = step.process.poll()
            if status is None:
                self._runs(name, step)
            else:
                del self._steps[name]
                self._ended(name, End(step, status, step.words()))
        if self._wants_look() and self._rate_limit.quiet_seconds >= self._interval:
            self._look()
        return self._states

    def _runs(self, name: str, step: Step) -> None:
        if self._states[name].phase is not JobPhase.RUNNING:
            self._states[name] = ReplicaState(JobPhase.RUNNING, str(step.place))

    def _ended(self, name: str, end: End) -> None:
        if end.foreseen or self._stopping:
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
        return bool(self._doubtful or self._waiting) and not self._stopping

    def _look(self) -> None:
        """Ask SLURM what is held, and act on it."""
        before = self._jobs
        try:
            self._jobs = list(self._rate_limit.call(self._holding.look))
        except SchedulerError as error:
            self.problem = str(error)
            self._interval = min(LONGEST_SECONDS, self._interval * BACK_OFF)
            return
        self.problem = None
        news = bool(self._doubtful) or self._jobs != before
        self._interval = (
            SHORTEST_SECONDS if news else min(LONGEST_SECONDS, self._interval * BACK_OFF)
        )
        doubtful, self._doubtful = self._doubtful, {}
        for name, end in doubtful.items():
            self._states[name] = self._resolved(name, end)
        self._place()

    def _resolved(self, name: str, end: End) -> ReplicaState:
        """Decide what becomes of a replica whose step ended as nobody foresaw."""
        place = end.step.place
        job = next((job for job in self._jobs if job.id == place.job), None)
        if job is None or not job.held:
            state = "no longer there" if job is None else job.state
            detail = f"{end.how}; the allocation {place.job} is {state}"
            return ReplicaState(JobPhase.FAILED, str(place), detail)
        if gone := [node for node in place.nodes if node not in job.nodes]:
            self._waiting.append(name)
            detail = f"{','.join(gone)} left the allocation: {end.how}"
            return ReplicaState(JobPhase.LOST, str(place), detail)
        if end.of_node:  # Neither the replica's doing, nor over: SLURM has not given it up.
            self._start(name, place)
            return ReplicaState(JobPhase.REQUEUED, str(place), f"{end.how}; tried again")
        if died(end.status) and not end.refused and self._restarts[name] < MOST_RESTARTS:
            self._restarts[name] += 1
            self._start(name, place)
            again = f"started again, {self._restarts[name]} of {MOST_RESTARTS}"
            return ReplicaState(JobPhase.REQUEUED, str(place), f"{end.how}; {again}")
        return self._final(end)

    def ask_to_stop(self) -> None:
        self._stopping = True
        for name in self._waiting:
            if self._states[name].phase is not JobPhase.LOST:
                detail = "stopped before it started"
                self._states[name] = replace(self._states[name], phase=JobPhase.DONE, detail=detail)
        self._waiting = []
        doubtful, self._doubtful = self._doubtful, {}
        for name, end in doubtful.items():
            self._states[name] = self._final(end)
        self._send(STOP_SIGNAL)

    def kill(self) -> None:
        if self._killed_at is None:
            self.ask_to_stop()
            self._killed_at = self._clock.monotonic()
            self._send(signal.SIGTERM)  # srun ends its step by force.
        elif self._clock.monotonic() >= self._killed_at + KILL_SECONDS:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for step in self._steps.values():
            step.process.send_signal(number)


def held_nodes(jobs: Sequence[Job]) -> int:
    """Return how many nodes may be used."""
    return sum(len(job.nodes) for job in jobs if job.held)


def _by_job(places: Sequence[Place]) -> list[Place]:
    """Return for each job one place with all nodes of its places."""
    grouped = groupby(places, key=lambda place: place.job)
    return [Place(job, tuple(n for place in own for n in place.nodes)) for job, own in grouped]
