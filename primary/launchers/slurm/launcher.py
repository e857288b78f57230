"""Running replicas through SLURM: one job array, one batched look at a time."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from aiperf_hpc.errors import (
    PREFLIGHT_STATUS,
    UNSEEN_PYTHON_STATUS,
    UNSEEN_RUN_STATUS,
    SchedulerError,
    SchedulerSilentError,
    UsageError,
)
from aiperf_hpc.primary.launchers import base
from aiperf_hpc.primary.launchers.base import (
    MOST_RESTARTS,
    ReplicaState,
)
from aiperf_hpc.primary.launchers.slurm.batch_script import (
    batch_script,
    group_options,
    job_name,
    wait_limit,
)
from aiperf_hpc.primary.launchers.slurm.client import Element, SlurmClient
from aiperf_hpc.primary.launchers.slurm.environment import NO_OUTPUT, SHELL_SIGNAL
from aiperf_hpc.primary.launchers.slurm.node_groups import (
    NodeGroup,
    by_group,
)
from aiperf_hpc.primary.launchers.slurm.partitions import check_cluster
from aiperf_hpc.primary.launchers.slurm.rate_limit import AGAIN, SHORTEST_SECONDS, RateLimit
from aiperf_hpc.run.identity import replica_name, replica_number
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import JobPhase

LONGEST_SECONDS = 30.0
"""The longest time between two calls, while nothing changes or SLURM does not answer."""
BACK_OFF = 1.5
FORGOTTEN = "SLURM lists it no longer"
UNSEEN_RUN = (
    "its node does not see the run directory {}; name a folder that all nodes see with --run-dir"
)
PHASES = {
    "PENDING": JobPhase.PENDING,
    "CONFIGURING": JobPhase.RUNNING,
    "RUNNING": JobPhase.RUNNING,
    "COMPLETING": JobPhase.RUNNING,
    "SUSPENDED": JobPhase.RUNNING,
    "STOPPED": JobPhase.RUNNING,
    "SIGNALING": JobPhase.RUNNING,
    "STAGE_OUT": JobPhase.RUNNING,
    "RESIZING": JobPhase.RUNNING,
    "REQUEUED": JobPhase.REQUEUED,
    "REQUEUE_HOLD": JobPhase.REQUEUED,
    "REQUEUE_FED": JobPhase.REQUEUED,
    "RESV_DEL_HOLD": JobPhase.REQUEUED,
    "SPECIAL_EXIT": JobPhase.REQUEUED,
    "NODE_FAIL": JobPhase.LOST,
    "PREEMPTED": JobPhase.LOST,
    "COMPLETED": JobPhase.DONE,
    "FAILED": JobPhase.FAILED,
    "TIMEOUT": JobPhase.FAILED,
    "OUT_OF_MEMORY": JobPhase.FAILED,
    "CANCELLED": JobPhase.FAILED,
    "BOOT_FAIL": JobPhase.FAILED,
    "DEADLINE": JobPhase.FAILED,
    "REVOKED": JobPhase.FAILED,
}
RAN = (JobPhase.RUNNING, JobPhase.REQUEUED, JobPhase.LOST)
WAITS = (JobPhase.PENDING, JobPhase.REQUEUED)


def state_of(element: Element, before: ReplicaState) -> ReplicaState:
    """Return what SLURM's words about an element mean, given what was known before."""
    phase = PHASES.get(element.state, before.phase)  # A state of a later SLURM changes nothing.
    if phase is JobPhase.PENDING and before.phase in RAN:
        phase = JobPhase.REQUEUED
    plain = element.state in ("PENDING", "RUNNING", "COMPLETED")
    end = _end(element) if element.state == "FAILED" else ""
    words = ("" if plain else element.state, element.reason, end)
    return ReplicaState(
        phase,
        element.node,
        ": ".join(word for word in words if word),
        submitted_utc=element.submitted_utc,
        # One that was cancelled before it had any has a time, too.
        started_utc=None if phase in WAITS or not element.node else element.started_utc,
    )


def _end(element: Element) -> str:
    if element.signal or element.status > SHELL_SIGNAL:
        return f"signal {element.signal or element.status - SHELL_SIGNAL}"
    return f"exit status {element.status}" if element.status else ""


def died(element: Element) -> bool:
    """Return whether a replica ended by a signal or by an error that nobody foresaw."""
    if element.state == "OUT_OF_MEMORY":
        return True
    unfit = (element.status, element.signal) == NO_OUTPUT
    ended = bool(element.signal) or base.died(element.status)
    return element.state == "FAILED" and not unfit and ended


ARRAY = ("array", "slurm")
"""What manifests call this launcher; `slurm` is from versions that had no other."""


class SlurmLauncher:
    """Runs every replica as an element of a job array: one, and one more each time some are added.

    At most one call of SLURM's client every 5 s: requests (stop, cancel, accounting) wait in
    line, and when there is none the call is a look at all elements at once.
    """

    exact = False

    def __init__(
        self,
        manifest: RunManifest,
        paths: RunPaths,
        client: SlurmClient,
        rate_limit: RateLimit,
        *,
        launch: int = 0,
        retry: Retry = no_retry,
    ) -> None:
        """Submit nothing yet.

        Args:
            manifest: the run.
            paths: where it keeps its records.
            client: what speaks to SLURM.
            rate_limit: keeps its calls apart, those before this launcher's too.
            launch: how often these replicas had been launched before.
            retry: how to write the batch script.
        """
        self.name = manifest.launcher
        self.wait_limit = wait_limit(manifest.config.slurm)
        self._manifest = manifest
        self._paths = paths
        self._launch = launch
        self._retry = retry
        self._client = client
        self._rate_limit = rate_limit
        self._jobs: dict[str, str] = {}
        """The job of which each replica is an element."""
        self._released: set[str] = set()
        """Replicas that were asked to leave the run."""
        self._states: dict[str, ReplicaState] = {}
        self._requests: deque[Callable[[], None]] = deque()
        self._interval = SHORTEST_SECONDS
        self._restarts: Counter[str] = Counter()
        self._refused: dict[str, str] = {}
        """Replicas that SLURM does not run again, and why."""
        self._accounting = True
        self._stopping = self._killing = False
        self.problem: str | None = None

    def start(self) -> dict[str, str]:
        if self._launch:
            self._cancel_earlier()
        script = batch_script(self._manifest, self._paths, self._launch)
        names = [replica_name(number) for number in range(self._manifest.replicas)]
        path = self._paths.batch_script
        self._retry(lambda: self._make_files(names, script), f"the batch script {path}")
        if self._manifest.config.slurm.node_groups:
            return self._submit_arrays(names)
        return self._submitted(names, self._submit(names))

    def _submit_arrays(self, replicas: Sequence[str]) -> dict[str, str]:
        """Submit an array for each group of nodes that replicas are of, or none at all."""
        before, found = (self._jobs, self._states), dict[str, str]()
        for group, names in by_group(self._manifest, replicas):
            try:
                job = self._submit(names, array_of(names), *self._group_options(group))
            except UsageError:
                self._withdraw(sorted({self._jobs[name] for name in found}))
                self._jobs, self._states = before
                raise
            found |= self._submitted(names, job)
        return found

    def _group_options(self, group: NodeGroup) -> list[str]:
        return group_options(group.slurm) if self._manifest.config.slurm.node_groups else []

    def _withdraw(self, jobs: Sequence[str]) -> None:
        """Cancel jobs of a start that could not be completed."""
        try:
            for job in jobs:
                self._rate_limit.call(partial(self._client.cancel, job))
        except SchedulerError as error:
            sys.stderr.write(f"aiperf: cannot cancel {', '.join(jobs)} ({error}): use scancel\n")

    def _submitted(self, names: Sequence[str], job: str) -> dict[str, str]:
        self._jobs = self._jobs | dict.fromkeys(names, job)
        self._states = self._states | dict.fromkeys(names, ReplicaState(JobPhase.PENDING))
        return {name: f"{job}_{replica_number(name)}" for name in names}

    def check(self, nodes: int) -> None:
        what = f"--nodes {nodes}: SLURM does not say what it has"
        found = self._rate_limit.require(self._client.partitions, what)
        check_cluster(self._manifest.config.slurm, nodes, self._manifest.hours, found)

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        script = batch_script(self._manifest, self._paths, self._launch)
        path = self._paths.batch_script
        self._retry(lambda: self._make_files(replicas, script), f"the batch script {path}")
        jobs = self._submit_arrays(replicas)
        self._released.difference_update(replicas)
        self._interval = SHORTEST_SECONDS
        return jobs

    def release(self, replicas: Collection[str]) -> None:
        self._released.update(replicas)
        for elements in self._elements_of(replicas):
            # First those that wait, so that one that starts in between gets the signal.
            self._requests.append(partial(self._client.cancel, elements, waiting_only=True))
            self._requests.append(partial(self._client.signal, elements, "TERM"))
        self._interval = SHORTEST_SECONDS

    def end(self, replicas: Collection[str]) -> None:
        for elements in self._elements_of(replicas):
            self._requests.append(partial(self._client.cancel, elements))
        self._interval = SHORTEST_SECONDS

    def _elements_of(self, replicas: Collection[str]) -> list[str]:
        """Return the elements of each job that are these replicas, as SLURM's commands take them.

        Those of one job are named together.
        """
        numbers: dict[str, list[int]] = {}
        for name in replicas:
            numbers.setdefault(self._jobs[name], []).append(replica_number(name))
        return [f"{job}_[{_ranges(each)}]" for job, each in numbers.items()]

    @property
    def _arrays(self) -> list[str]:
        """The jobs that replicas are elements of now, the first one first."""
        return list(dict.fromkeys(self._jobs.values()))

    def _make_files(self, names: Sequence[str], script: str) -> None:
        for name in names:
            # SLURM opens the output before anything of ours could make its folder.
            self._paths.replica(name).mkdir(parents=True, exist_ok=True)
        # In the encoding of file names, of which it is full.
        write_whole(self._paths.batch_script, os.fsencode(script))

    def _cancel_earlier(self) -> None:
        """Cancel the job of an earlier primary, whose replicas this one's replace."""
        name, what = job_name(self._manifest), "the run's earlier job cannot be cancelled"
        self._rate_limit.require(lambda: self._client.cancel_named(name), what, AGAIN)

    def _submit(self, replicas: Sequence[str], *options: str) -> str:
        script = self._paths.batch_script
        try:
            return self._rate_limit.call(lambda: self._client.submit(script, *options))
        except SchedulerSilentError as error:
            return self._find(error)
        except SchedulerError as error:
            if "array" in str(error).lower():
                self._check_array(replica_number(replicas[-1]) + 1)
            raise UsageError(
                f"SLURM refused the job: {error}; nothing was started; change the slurm section "
                f"of the configuration, or see {script}"
            ) from None

    def _check_array(self, elements: int) -> None:
        """Say what the site's limit is, if the array is larger than that."""
        try:
            limit = self._rate_limit.call(self._client.largest_array)
        except SchedulerError:
            return  # What it said of the array has to do.
        if elements > limit:
            raise UsageError(
                f"{elements} replicas: this SLURM's arrays have at most {limit} elements "
                "(MaxArraySize of `scontrol show config`); nothing was started; have it raised, "
                "or run on fewer nodes"
            )

    def _find(self, silence: SchedulerSilentError) -> str:
        """Return the job that was accepted although the answer got lost."""
        name = job_name(self._manifest)
        try:
            job = self._rate_limit.call(lambda: self._client.find(name, self._arrays))
        except SchedulerError:
            job = None  # The first error says it.
        if job is None:
            raise UsageError(
                f"SLURM did not take the job: {silence}; if it did all the same, "
                f"`scancel --name={name}` removes it"
            )
        return job

    def states(self) -> dict[str, ReplicaState]:
        if self._jobs and self._rate_limit.quiet_seconds >= self._interval:
            self._call()
        return self._states

    def ask_to_stop(self) -> None:
        self._stopping = True
        # First those that wait, so that one that starts in between gets the signal.
        for job in self._arrays:
            states = (self._states[name] for name, own in self._jobs.items() if own == job)
            if any(state.phase in WAITS for state in states):
                self._requests.append(partial(self._client.cancel, job, waiting_only=True))
        for job in self._arrays:
            self._requests.append(partial(self._client.signal, job, "TERM"))
        self._interval = SHORTEST_SECONDS

    def kill(self) -> None:
        if not self._killing:
            self._killing = True
            self._requests.clear()
            for job in self._arrays:
                self._requests.append(partial(self._client.cancel, job))
            self._interval = SHORTEST_SECONDS

    def close(self) -> None:
        pass  # Elements hold their nodes while they run.

    def _call(self) -> None:
        """Make one call of the client: the first request, or a look."""
        request = self._requests[0] if self._requests else None
        try:
            self._rate_limit.call(request or self._look)
            if request is not None:
                self._interval = SHORTEST_SECONDS
            self.problem = None
        except SchedulerSilentError as error:
            self._silent(error)
            request = None  # It is made again.
        except SchedulerError as error:
            # A request that is refused is of no use any more: its elements have ended.
            if request is None:
                self._silent(error)
        if request is not None:
            self._requests.popleft()

    def _silent(self, error: SchedulerError) -> None:
        self.problem = str(error)
        self._back_off()

    def _back_off(self) -> None:
        self._interval = min(LONGEST_SECONDS, self._interval * BACK_OFF)

    def _look(self) -> None:
        before = self._states
        listed = {replica_name(e.number): e for e in self._listed(self._client.elements)}
        self._states = {
            name: self._seen(name, listed.get(name), state) for name, state in before.items()
        }
        self._run_again([name for name, e in listed.items() if self._may_run_again(name, e)])
        if self._accounting and any(s.detail == FORGOTTEN for s in self._states.values()):
            self._requests.append(self._account)
        if self._states == before:
            self._states = before
            self._back_off()
        else:
            self._interval = SHORTEST_SECONDS

    def _listed(self, ask: Callable[..., list[Element]]) -> list[Element]:
        """Ask about all jobs; return the elements that are replicas now, and not what one was."""
        found = ask(*self._arrays)
        return [e for e in found if self._jobs.get(replica_name(e.number)) == e.job]

    def _seen(self, name: str, element: Element | None, before: ReplicaState) -> ReplicaState:
        if element is None:
            # A job that has ended is forgotten after a while: no news, unless we missed its end.
            if before.phase.ended:
                return before
            return replace(before, phase=JobPhase.LOST, detail=FORGOTTEN)
        state = self._fit(state_of(element, before), element)
        leaves = self._stopping or name in self._released
        if leaves and element.state == "CANCELLED" and before.phase in WAITS:
            return replace(state, phase=JobPhase.DONE, detail="cancelled before it started")
        if before.phase is JobPhase.DONE and element.state == "CANCELLED":
            return before  # The one above, seen again.
        return state

    def _may_run_again(self, name: str, element: Element) -> bool:
        """Return whether a replica died on a node that is up, so that SLURM takes it for done."""
        if self._stopping or self._killing or name in self._released or not died(element):
            return False
        if name in self._refused:
            refusal = f"; SLURM does not run it again: {self._refused[name]}"
            state = self._states[name]
            self._states[name] = replace(state, detail=state.detail + refusal)
            return False
        return self._restarts[name] < MOST_RESTARTS

    def _run_again(self, names: Sequence[str]) -> None:
        """Have SLURM queue dead replicas again, in one call."""
        if not names:
            return
        for name in names:
            self._restarts[name] += 1
            state = self._states[name]
            detail = f"{state.detail}; queued again, {self._restarts[name]} of {MOST_RESTARTS}"
            self._states[name] = replace(state, phase=JobPhase.REQUEUED, detail=detail)
        for job in self._arrays:
            if own := [name for name in names if self._jobs[name] == job]:
                self._requests.append(partial(self._requeue, job, own))

    def _requeue(self, job: str, names: Sequence[str]) -> None:
        try:
            self._client.requeue(job, [replica_number(name) for name in names])
        except SchedulerSilentError:
            raise
        except SchedulerError as error:
            self._refused |= dict.fromkeys(names, str(error))

    def _fit(self, state: ReplicaState, element: Element) -> ReplicaState:
        """Return the state, with what is wrong with the node where SLURM's status says so."""
        if state.phase is not JobPhase.FAILED:
            return state
        lost_output = (element.status, element.signal) == NO_OUTPUT
        status = UNSEEN_RUN_STATUS if lost_output else element.status
        wrong = unfit_node(self._paths, status)
        return state if wrong is None else replace(state, detail=wrong, refused=True)

    def _account(self) -> None:
        """Ask the accounting about the forgotten ones, once: not every site has one."""
        self._accounting = False
        known = {replica_name(e.number): e for e in self._listed(self._client.account)}
        self._states = {
            name: state_of(known[name], state)
            if state.detail == FORGOTTEN and name in known
            else state
            for name, state in self._states.items()
        }


def unfit_node(paths: RunPaths, status: int) -> str | None:
    """Return what is wrong with a node, if a replica's status says so."""
    said = {
        PREFLIGHT_STATUS: "its node is not like the others; its output says how",
        UNSEEN_RUN_STATUS: UNSEEN_RUN.format(paths.root),
        UNSEEN_PYTHON_STATUS: f"its node does not see {sys.executable}; install the "
        "environment where all nodes see it",
    }
    return said.get(status)


def array_of(replicas: Sequence[str]) -> str:
    """Return how sbatch is told which elements an array has."""
    return f"--array={_ranges(map(replica_number, replicas))}"


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as SLURM writes those of an array, e.g. 2-5,7."""
    places = enumerate(sorted(numbers))
    # Those that follow each other are as far from their places.
    runs = [[n for _, n in run] for _, run in groupby(places, key=lambda each: each[1] - each[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
