"""Replicas as steps of jobs that are held: the command of srun, its process, and stale steps.

A stale step has ended, but SLURM counts it as running, so that a new one on its nodes waits for
ever. A controller that is restarted while a step ends may never hear of that end. scancel ends such
a step while its daemon is there to be told. Otherwise only its job's end does, and others start
beside it (`srun --overlap`).
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
"""What a node's shell does before it becomes the replica: deaf to the request to stop until the
replica listens, it looks for the run's records and for Python."""
SRUN = "srun: error: "
"""How srun's own lines about errors begin, among those of what it runs."""
WAITING_MARKS = ("srun: ", "step creation", "retrying")
"""Parts of srun's last line while it tries again to have its step started."""
TRIAL_SECONDS = 20
"""The longest time that the step that tries the nodes waits until they are free."""
TAIL_BYTES = 4096
"""The bytes at the end of a step's output in which srun's lines are looked for."""
WATCH_SECONDS = 60.0
"""How long a new step is watched. srun says within seconds that its nodes are not free."""
STALE_SECONDS = 20.0
"""How long a step may take to end once it is cancelled. If it does end later, after all, it and its
successor share the node for so long; what it still records is fenced."""


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes of one job that a replica is started on."""

    job: str
    nodes: tuple[str, ...]
    group: int = 0
    """The number of the group of the run's nodes that they are of."""

    def __str__(self) -> str:
        return ",".join(self.nodes)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a replica."""

    replica: str
    launch: int
    """How often the primary had launched it before."""
    restart: int
    """How often it was started again since."""


class Process(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...


Spawn = Callable[[Sequence[str], Path], Process]
"""Starts a command whose output is appended to a file."""


def step_prefix(manifest: RunManifest) -> str:
    """Return the beginning of the names of a run's steps."""
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

    It has its nodes whole: nothing else of the job runs there, and a step that asks for no part of
    a node is given all of it.

    Args:
        manifest: the run.
        paths: where it keeps its records.
        attempt: of which replica, and its number.
        place: where.
        first_host: the first node's host name, by which the others of several find it.
        overlap: whether to start beside steps that SLURM counts as running there.
    """
    root = str(paths.root)
    replica = [sys.executable, "-m", "aiperf_hpc.replica", root, "--replica", attempt.replica]
    numbers = ["--launch", str(attempt.launch), "--restart", str(attempt.restart)]
    name = f"--job-name={step_prefix(manifest)}{attempt.replica}"
    shell = ["/bin/sh", "-c", ON_THE_NODE, str(paths.manifest)]
    rendezvous = _rendezvous(manifest, place, first_host)
    return [*_srun(manifest, place, overlap=overlap), name, *rendezvous, *shell, *replica, *numbers]


def _rendezvous(manifest: RunManifest, place: Place, first_host: str) -> list[str]:
    """Return how Torch's ranks are told where to meet: SLURM only tells them where srun is."""
    replica = manifest.config.replica
    if replica.ranks == 1 or replica.collective != "torch":
        return []
    host = "127.0.0.1" if len(place.nodes) == 1 else first_host or place.nodes[0]
    return [f"--export=ALL,MASTER_ADDR={host}"]


def trial_command(
    manifest: RunManifest, place: Place, count: int = 0, *, overlap: bool = False
) -> list[str]:
    """Return a step that only prints where it runs, with the options of those that work.

    It is refused, rather than waiting, when the nodes are not free within ``TRIAL_SECONDS``.

    Args:
        manifest: the run.
        place: a job, and its nodes if they are known.
        count: how many nodes the job has, where their names are not known.
        overlap: whether to start beside steps that SLURM counts as running there.
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
    """Return how srun is told whose nodes they are: a component's number is not enough for it."""
    leader, _, component = job.partition("+")
    return [f"--jobid={leader}", *([f"--het-group={component}"] if component else [])]


def spawn(command: Sequence[str], log: Path) -> Process:
    """Start a command in a session of its own, so that it outlives its primary."""
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
    """End the sruns of this user on this host whose steps' names begin so; steps that run go on."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # It has ended, or is another user's.
            command = process.cmdline()
            named = any(word.startswith(f"--job-name={prefix}") for word in command)
            if named and Path(command[0]).name == "srun" and process.uids().real == os.getuid():
                process.kill()


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was started."""

    attempt: Attempt
    place: Place
    process: Process
    log: Path
    begins: int
    """The size of the output when it was started, bytes."""

    def srun_errors(self) -> str:
        """Return srun's own last errors, in one line."""
        own = [line.removeprefix(SRUN) for line in self._last_lines() if line.startswith(SRUN)]
        return "; ".join(dict.fromkeys(line.strip() for line in own))

    def waits(self) -> bool:
        """Return whether SLURM has not started it so far, because its nodes are not free."""
        lines = self._last_lines()
        return bool(lines) and all(word in lines[-1] for word in WAITING_MARKS)

    def _last_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self.begins, size - TAIL_BYTES))
                return file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []  # Then its exit status has to do.


class StaleSteps:
    """Finds the stale steps that block a run's steps on nodes where it had steps before."""

    def __init__(self, prefix: str, client: SlurmClient, rate_limit: RateLimit) -> None:
        """Watch nothing yet; ``prefix`` begins the names of the run's steps."""
        self._prefix = prefix
        self._client = client
        self._rate_limit = rate_limit
        self._clock = rate_limit.clock
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

    def started(self, step: Step) -> None:
        """Watch a step, unless it is the first one on its nodes."""
        place = {(step.place.job, node) for node in step.place.nodes}
        if place & self._used:
            self._watched[step.attempt.replica] = step, self._clock.monotonic()
        self._used |= place

    def ended(self, replica: str) -> None:
        """Watch a replica's step no longer."""
        self._watched.pop(replica, None)
        self.blocked -= {replica}

    def look(self) -> bool:
        """Read the output of sruns; return whether any step waits. SLURM is not asked."""
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

    def free(self) -> list[str]:
        """Find the steps that are in the way or, if that is done, end them. One call of a client.

        Return the replicas whose steps will wait for ever and are to be started anew. Raises
        SchedulerError.
        """
        now = self._clock.monotonic()
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
    """Return nodes with their job's number, which all components of a heterogeneous job share."""
    return {(job.partition("+")[0], node) for node in nodes}
