"""Launcher that runs replicas as elements of a job array, with batched status requests."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from aiperf_hpc.errors import UNSEEN_RUN_STATUS, SchedulerError, SchedulerSilentError, UsageError
from aiperf_hpc.formatting import ranges
from aiperf_hpc.grouping import grouped
from aiperf_hpc.primary.launchers.base import MOST_RESTARTS, ReplicaState
from aiperf_hpc.primary.launchers.slurm.batch_script import (
    batch_script,
    group_options,
    job_name,
    wait_limit,
)
from aiperf_hpc.primary.launchers.slurm.client import (
    RETRY_HINT,
    SHORTEST_SECONDS,
    RateLimit,
    SlurmClient,
)
from aiperf_hpc.primary.launchers.slurm.jobs import NO_OUTPUT, WAITS, Element, died, state_of
from aiperf_hpc.primary.launchers.slurm.launcher import SlurmLauncher, unfit_node
from aiperf_hpc.primary.launchers.slurm.resources import by_group
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, replica_name, replica_number, write_whole
from aiperf_hpc.run.storage import Retry, no_retry
from aiperf_hpc.trial import JobPhase

ARRAY = ("array", "slurm")
"""Names of this launcher in manifests; versions with only this launcher wrote `slurm`."""
FORGOTTEN = "SLURM no longer lists it"


class ArrayLauncher(SlurmLauncher):
    """Runs every replica as an element of a job array; added replicas form further arrays.

    SLURM's client is called at most once per 5 s: requests (stop, cancel, accounting) are queued,
    and if there is none, the call is a status request for all elements.
    """

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
        """Create a launcher. Arguments as in the base class; ``retry`` writes the batch script."""
        super().__init__(manifest, paths, client, rate_limit, launch)
        self.wait_limit = wait_limit(manifest.config.slurm)
        self._retry = retry
        self._jobs: dict[str, str] = {}
        """Array job of each replica."""
        self._requests: deque[Callable[[], None]] = deque()
        self._refused: dict[str, str] = {}
        """Replicas that SLURM does not restart, with the reason."""
        self._accounting = True
        self._killing = False

    def start(self) -> dict[str, str]:
        if self._launch:
            self._cancel_earlier()
        self._write_script(self._replicas)
        if self._manifest.config.slurm.node_groups:
            return self._submit_arrays(self._replicas)
        return self._submitted(self._replicas, self._submit(self._replicas))

    def add(self, replicas: Sequence[str]) -> dict[str, str]:
        self._write_script(replicas)
        jobs = self._submit_arrays(replicas)
        self._released.difference_update(replicas)
        self._interval = SHORTEST_SECONDS
        return jobs

    def _submit_arrays(self, replicas: Sequence[str]) -> dict[str, str]:
        """Submit an array for each node group of the replicas, or none if one is rejected."""
        before, found = (self._jobs, self._states), dict[str, str]()
        grouped = bool(self._manifest.config.slurm.node_groups)
        for group, names in by_group(self._manifest, replicas):
            options = group_options(group.slurm) if grouped else []
            try:
                job = self._submit(names, array_option(names), *options)
            except UsageError:
                self._withdraw(sorted({self._jobs[name] for name in found}))
                self._jobs, self._states = before
                raise
            found |= self._submitted(names, job)
        return found

    def _submitted(self, names: Sequence[str], job: str) -> dict[str, str]:
        self._jobs = self._jobs | dict.fromkeys(names, job)
        self._states = self._states | dict.fromkeys(names, ReplicaState(JobPhase.PENDING))
        return {name: f"{job}_{replica_number(name)}" for name in names}

    def release(self, replicas: Collection[str]) -> None:
        self._released.update(replicas)
        for elements in self._elements_of(replicas):
            # Waiting elements first, so that one that starts in between gets the signal.
            self._request(partial(self._client.cancel, elements, waiting_only=True))
            self._request(partial(self._client.signal, elements, "TERM"))

    def end(self, replicas: Collection[str]) -> None:
        for elements in self._elements_of(replicas):
            self._request(partial(self._client.cancel, elements))

    def _request(self, call: Callable[[], None]) -> None:
        """Queue a call for the next time that the rate limit allows."""
        self._requests.append(call)
        self._interval = SHORTEST_SECONDS

    def _elements_of(self, replicas: Collection[str]) -> list[str]:
        """Return the array elements of these replicas, as one SLURM expression per job."""
        numbers = grouped((self._jobs[name], replica_number(name)) for name in replicas)
        return [f"{job}_[{_ranges(each)}]" for job, each in numbers.items()]

    @property
    def _arrays(self) -> list[str]:
        """Current array jobs of the replicas, first job first."""
        return list(dict.fromkeys(self._jobs.values()))

    def _write_script(self, names: Sequence[str]) -> None:
        script = batch_script(self._manifest, self._paths, self._launch)
        path = self._paths.batch_script

        def write() -> None:
            for name in names:
                # SLURM opens the output file before the job could create its folder.
                self._paths.replica(name).mkdir(parents=True, exist_ok=True)
            write_whole(path, os.fsencode(script))  # In the encoding of its file names.

        self._retry(write, f"the batch script {path}")

    def _cancel_earlier(self) -> None:
        """Cancel the job of an earlier primary, whose replicas are replaced."""
        name, what = job_name(self._manifest), "the run's earlier job cannot be cancelled"
        self._rate_limit.require(lambda: self._client.cancel_named(name), what, RETRY_HINT)

    def _submit(self, replicas: Sequence[str], *options: str) -> str:
        script = self._paths.batch_script
        try:
            return self._rate_limit.call(lambda: self._client.submit(script, *options))
        except SchedulerSilentError as error:
            return self._find(error)
        except SchedulerError as error:
            if "array" in str(error).lower():
                self._check_array(replica_number(replicas[-1]) + 1)
            raise self._refusal(error, f", or see {script}") from None

    def _check_array(self, elements: int) -> None:
        """Raise UsageError with the site's limit if the array exceeds it."""
        try:
            limit = self._rate_limit.call(self._client.largest_array)
        except SchedulerError:
            return  # SLURM's rejection message must suffice.
        if elements > limit:
            raise UsageError(
                f"{elements} replicas: this SLURM's arrays have at most {limit} elements "
                "(MaxArraySize of `scontrol show config`); nothing was started; ask for a higher "
                "limit, or use fewer nodes"
            )

    def _find(self, silence: SchedulerSilentError) -> str:
        """Return the job that was accepted although its response was lost."""
        name = job_name(self._manifest)
        try:
            job = self._rate_limit.call(lambda: self._client.find(name, self._arrays))
        except SchedulerError:
            job = None  # The first error is reported.
        if job is None:
            raise self._refusal(silence)
        return job

    def states(self) -> dict[str, ReplicaState]:
        if self._jobs and self._rate_limit.quiet_seconds >= self._interval:
            self._call()
        return self._states

    def ask_to_stop(self) -> None:
        self._stopping = True
        # Waiting elements first, so that one that starts in between gets the signal.
        for job in self._arrays:
            states = (self._states[name] for name, own in self._jobs.items() if own == job)
            if any(state.phase in WAITS for state in states):
                self._request(partial(self._client.cancel, job, waiting_only=True))
        for job in self._arrays:
            self._request(partial(self._client.signal, job, "TERM"))

    def kill(self) -> None:
        if not self._killing:
            self._killing = True
            self._requests.clear()
            for job in self._arrays:
                self._request(partial(self._client.cancel, job))

    def _call(self) -> None:
        """Make one client call: the first queued request, or a status request."""
        request = self._requests[0] if self._requests else None
        try:
            self._rate_limit.call(request or self._look)
            if request is not None:
                self._interval = SHORTEST_SECONDS
            self.problem = None
        except SchedulerSilentError as error:
            self._silent(error)
            request = None  # It is repeated.
        except SchedulerError as error:
            # A rejected request is obsolete: its elements have ended.
            if request is None:
                self._silent(error)
        if request is not None:
            self._requests.popleft()

    def _look(self) -> None:
        before = self._states
        listed = {replica_name(e.number): e for e in self._listed(self._client.elements)}
        self._states = {
            name: self._state(name, listed.get(name), state) for name, state in before.items()
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
        """Query all jobs; return the current elements of replicas, without former ones."""
        found = ask(*self._arrays)
        return [e for e in found if self._jobs.get(replica_name(e.number)) == e.job]

    def _state(self, name: str, element: Element | None, before: ReplicaState) -> ReplicaState:
        if element is None:
            # SLURM forgets ended jobs after a while, which matters only if the end was missed.
            if before.phase.ended:
                return before
            return replace(before, phase=JobPhase.LOST, detail=FORGOTTEN)
        state = self._with_fitness(state_of(element, before), element)
        if self._leaves(name) and element.state == "CANCELLED" and before.phase in WAITS:
            return replace(state, phase=JobPhase.DONE, detail="cancelled before it started")
        if before.phase is JobPhase.DONE and element.state == "CANCELLED":
            return before  # The one above.
        return state

    def _may_run_again(self, name: str, element: Element) -> bool:
        """Return whether a replica died on a healthy node, so SLURM does not requeue it."""
        if self._leaves(name) or self._killing or not died(element):
            return False
        if name in self._refused:
            refusal = f"; SLURM does not requeue it: {self._refused[name]}"
            self._update(name, self._states[name].detail + refusal)
            return False
        return self._restarts[name] < MOST_RESTARTS

    def _run_again(self, names: Sequence[str]) -> None:
        """Requeue dead replicas, with one call per job."""
        self._restarts.update(names)
        for name in names:
            again = f"requeued, {self._restarts[name]} of {MOST_RESTARTS}"
            self._update(name, f"{self._states[name].detail}; {again}", JobPhase.REQUEUED)
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

    def _with_fitness(self, state: ReplicaState, element: Element) -> ReplicaState:
        """Return the state, with the node's fault if SLURM's status reports one."""
        if state.phase is not JobPhase.FAILED:
            return state
        lost_output = (element.status, element.signal) == NO_OUTPUT
        status = UNSEEN_RUN_STATUS if lost_output else element.status
        reason = unfit_node(self._paths, status)
        return state if reason is None else replace(state, detail=reason, refused=True)

    def _account(self) -> None:
        """Query the accounting for forgotten elements once: not every site has accounting."""
        self._accounting = False
        known = {replica_name(e.number): e for e in self._listed(self._client.account)}
        self._states = {
            name: state_of(known[name], state)
            if state.detail == FORGOTTEN and name in known
            else state
            for name, state in self._states.items()
        }


def array_option(replicas: Sequence[str]) -> str:
    """Return the sbatch option for an array with these replicas as elements."""
    return f"--array={_ranges(map(replica_number, replicas))}"


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers in SLURM's array notation, e.g. 2-5,7."""
    return ranges(tuple(numbers)).replace(" ", "")
