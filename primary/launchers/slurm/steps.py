"""Replicas as steps of held jobs: the command of srun, its process, and stale steps.

A stale step has ended, but SLURM counts it as running, so a new step on its nodes waits forever.
This happens if the controller restarts while a step ends. scancel ends a stale step if the step's
daemon is still running. Otherwise it remains until the end of its job, and new steps overlap it
(`srun --overlap`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from aiperf_hpc.errors import UNSEEN_PYTHON_STATUS, UNSEEN_RUN_STATUS
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, rank_options
from aiperf_hpc.primary.launchers.slurm.client import RateLimit, SlurmClient, outside_of_a_job
from aiperf_hpc.primary.launchers.slurm.jobs import RunningStep
from aiperf_hpc.primary.launchers.slurm.resources import groups_of
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths

ON_THE_NODE = (
    f"trap '' USR1; [ -s \"$0\" ] || exit {UNSEEN_RUN_STATUS}; "
    f'[ -x "$1" ] || exit {UNSEEN_PYTHON_STATUS}; exec "$@"'
)
"""Shell script that runs on a node before it executes the replica: it ignores the stop signal until
the replica handles it, and checks for the run's records and for Python."""
SRUN = "srun: error: "
"""Prefixes of srun's own error lines in the output of a step."""
WAITING_MARKS = ("srun: ", "step creation", "retrying")
"""Parts of srun's last line while it retries to start its step."""
TRIAL_SECONDS = 20
"""Maximum time in seconds for which the test step waits for free nodes."""
TAIL_BYTES = 4096
"""Bytes at the end of a step's output that are searched for srun's lines."""
WATCH_SECONDS = 60.0
"""Time for which a new step is monitored. srun reports within seconds that nodes are not free."""
STALE_SECONDS = 20.0
"""Time for a cancelled step to end. If it ends later, it shares the node with its successor until
then; its records are fenced."""


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes of one job on which a replica is started."""

    job: str
    nodes: tuple[str, ...]
    group: int = 0
    """Number of the node group."""

    def __str__(self) -> str:
        return ",".join(self.nodes)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a replica."""

    replica: str
    launch: int
    """Number of previous launches."""
    restart: int
    """Number of restarts since the launch."""


class Process(Protocol):
    """A started process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...


Spawn = Callable[[Sequence[str], Path], Process]
"""Starts a command and appends its output to a file."""


def step_prefix(manifest: RunManifest) -> str:
    """Return the name prefix of a run's steps."""
    return f"{job_name(manifest)}-"


def step_command(
    manifest: RunManifest,
    paths: RunPaths,
    attempt: Attempt,
    place: Place,
    first_host: str = "",
    *,
    overlap: bool = False,
) -> list[str]:
    """Return the command that runs one attempt of a replica as a step.

    It uses whole nodes: nothing else of the job runs there, and a step that requests no part of a
    node gets all of it.

    Args:
        manifest: manifest of the run.
        paths: paths of the run directory.
        attempt: attempt of the replica.
        place: job and nodes.
        first_host: host name of the first node, at which the nodes rendezvous if there are several.
        overlap: whether to overlap steps that SLURM counts as running there.
    """
    root = str(paths.root)
    replica = [sys.executable, "-m", "aiperf_hpc.replica", root, "--replica", attempt.replica]
    numbers = ["--launch", str(attempt.launch), "--restart", str(attempt.restart)]
    name = f"--job-name={step_prefix(manifest)}{attempt.replica}"
    shell = ["/bin/sh", "-c", ON_THE_NODE, str(paths.manifest)]
    rendezvous = _rendezvous(manifest, place, first_host)
    return [*_srun(manifest, place, overlap=overlap), name, *rendezvous, *shell, *replica, *numbers]


def _rendezvous(manifest: RunManifest, place: Place, first_host: str) -> list[str]:
    """Return the rendezvous variables of Torch's ranks: SLURM only provides the host of srun."""
    replica = manifest.config.replica
    if replica.ranks == 1 or replica.collective != "torch":
        return []
    host = "127.0.0.1" if len(place.nodes) == 1 else first_host or place.nodes[0]
    return [f"--export=ALL,MASTER_ADDR={host}"]


def trial_command(
    manifest: RunManifest, place: Place, count: int = 0, *, overlap: bool = False
) -> list[str]:
    """Return the command of a test step that prints its hosts, with the options of real steps.

    It fails instead of waiting if the nodes are not free within ``TRIAL_SECONDS``.

    Args:
        manifest: manifest of the run.
        place: a job, and its nodes if they are known.
        count: number of nodes of the job if their names are unknown.
        overlap: whether to overlap steps that SLURM counts as running there.
    """
    own = [
        f"--immediate={TRIAL_SECONDS}",
        "--quiet",
        "/bin/sh",
        "-c",
        'echo "$SLURMD_NODENAME" "$(uname -n)"',
    ]
    return [*_srun(manifest, place, count, overlap=overlap), *own]


def _srun(
    manifest: RunManifest, place: Place, count: int = 0, *, overlap: bool = False
) -> list[str]:
    slurm, replica = groups_of(manifest)[place.group].slurm, manifest.config.replica
    nodes = len(place.nodes) or count
    gres = [f"--gres={slurm.gres}"] if slurm.gres else []
    return [
        "srun",
        *_job_options(place.job),
        f"--nodes={nodes}",
        f"--ntasks={nodes * replica.ranks_per_node}",
        f"--ntasks-per-node={replica.ranks_per_node}",
        *([f"--nodelist={place}"] if place.nodes else []),
        "--input=none",
        "--cpu-bind=none",
        *(["--overlap"] if overlap else []),
        *gres,
        *rank_options(slurm, replica),
    ]


def _job_options(job: str) -> list[str]:
    """Return the srun options that select the job: a component's number does not suffice."""
    leader, _, component = job.partition("+")
    return [f"--jobid={leader}", *([f"--het-group={component}"] if component else [])]


def spawn(command: Sequence[str], log: Path) -> Process:
    """Start a command in its own session, so that it outlives its primary."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=outside_of_a_job(),
            start_new_session=True,
        )


def end_sruns(prefix: str) -> None:
    """Kill this user's local sruns of steps with this name prefix; running steps continue."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # It has ended, or belongs to another user.
            command = process.cmdline()
            named = any(word.startswith(f"--job-name={prefix}") for word in command)
            if named and Path(command[0]).name == "srun" and process.uids().real == os.getuid():
                process.kill()


@dataclass(frozen=True, slots=True)
class Step:
    """A started step."""

    attempt: Attempt
    place: Place
    process: Process
    log: Path
    begins: int
    """Size of the output file at the start of the step, in bytes."""

    def srun_errors(self) -> str:
        """Return the last error messages of srun itself in one line."""
        own = [line.removeprefix(SRUN) for line in self._last_lines() if line.startswith(SRUN)]
        return "; ".join(dict.fromkeys(line.strip() for line in own))

    def waits(self) -> bool:
        """Return whether SLURM has not started the step because its nodes are not free."""
        lines = self._last_lines()
        return bool(lines) and all(word in lines[-1] for word in WAITING_MARKS)

    def _last_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self.begins, size - TAIL_BYTES))
                return file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []  # Then its exit status must suffice.


class StaleSteps:
    """Finds stale steps that block a run's steps on nodes that it used before."""

    def __init__(self, prefix: str, client: SlurmClient, rate_limit: RateLimit) -> None:
        """Create a monitor without steps; ``prefix`` is the name prefix of the run's steps."""
        self._prefix = prefix
        self._client = client
        self._rate_limit = rate_limit
        self._clock = rate_limit.clock
        self._used: set[tuple[str, str]] = set()
        """Jobs and nodes on which the run had a step."""
        self._watched: dict[str, tuple[Step, float]] = {}
        """Last step of each replica, with its start time."""
        self._found: list[str] = []
        """Steps to cancel."""
        self._cancelled: dict[str, float] = {}
        """Cancelled steps, with the time."""
        self._stale: set[tuple[str, str]] = set()
        """Jobs and nodes with a stale step that cannot be ended."""
        self.blocked: frozenset[str] = frozenset()
        """Replicas whose step was waiting at the last check."""

    def started(self, step: Step) -> None:
        """Monitor a step, unless it is the first one on its nodes."""
        place = {(step.place.job, node) for node in step.place.nodes}
        if place & self._used:
            self._watched[step.attempt.replica] = step, self._clock.monotonic()
        self._used |= place

    def ended(self, replica: str) -> None:
        """Stop monitoring a replica's step."""
        self._watched.pop(replica, None)
        self.blocked -= {replica}

    def look(self) -> bool:
        """Read the output of sruns; return whether any step waits, without a query of SLURM."""
        now = self._clock.monotonic()
        waits = {name for name, (step, _) in self._watched.items() if step.waits()}
        self._watched = {
            name: (step, since)
            for name, (step, since) in self._watched.items()
            if name in waits or now - since < WATCH_SECONDS
        }
        self.blocked = frozenset(waits)
        return bool(waits)

    def overlaps(self, place: Place) -> bool:
        """Return whether a step at a place must overlap a step that cannot be ended."""
        return not self._stale.isdisjoint(_nodes_of(place.job, place.nodes))

    def end_earlier(self) -> None:
        """Cancel the steps of an earlier primary, and wait until they have ended or are stale.

        Raises SchedulerError.
        """
        if there := self._steps():
            self._cancel([each.id for each in there])
        cancelled_at = self._clock.monotonic()
        while there and self._clock.monotonic() < cancelled_at + STALE_SECONDS:
            there = self._steps()
        self._give_up(there)

    def free(self) -> list[str]:
        """Find the blocking steps or, if they are known, cancel them. One client call.

        Return the replicas whose steps are stuck and must be restarted. Raises SchedulerError.
        """
        now = self._clock.monotonic()
        if self._found:
            found, self._found = self._found, []
            self._cancel(found)
            self._cancelled |= dict.fromkeys(found, now)
            return []
        there = self._steps()
        # Steps that still wait are not among the steps that SLURM reported.
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
        there = self._rate_limit.call(lambda: self._client.steps(self._prefix))
        return [each for each in there if each.nodes]

    def _cancel(self, steps: Sequence[str]) -> None:
        self._rate_limit.call(lambda: self._client.cancel(*steps))

    def _give_up(self, steps: Sequence[RunningStep]) -> None:
        for step in steps:
            self._stale |= _nodes_of(step.id.partition(".")[0], step.nodes)


def _is_at(step: RunningStep, place: Place) -> bool:
    """Return whether a step is on any of a place's nodes."""
    own = _nodes_of(step.id.partition(".")[0], step.nodes)
    return not own.isdisjoint(_nodes_of(place.job, place.nodes))


def _nodes_of(job: str, nodes: Sequence[str]) -> set[tuple[str, str]]:
    """Return nodes with their job's number, which components of a heterogeneous job share."""
    return {(job.partition("+")[0], node) for node in nodes}
