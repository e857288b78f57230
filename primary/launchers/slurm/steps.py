"""A replica as a step of a job that is held: the command of srun, and the process that it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from aiperf_hpc.errors import UNSEEN_PYTHON_STATUS, UNSEEN_RUN_STATUS
from aiperf_hpc.primary.launchers.slurm.batch_script import job_name, rank_options
from aiperf_hpc.primary.launchers.slurm.environment import outside_of_a_job
from aiperf_hpc.primary.launchers.slurm.node_groups import groups_of
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
WAITING_WORDS = ("srun: ", "step creation", "retrying")
"""What srun's last line has while it tries again to have its step started."""
WORDS_BYTES = 4096
"""How much of the end of a step's output is looked through for srun's words."""


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
class Life:
    """One life of a replica."""

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
    """Return how the names of a run's steps begin."""
    return f"{job_name(manifest)}-"


def step_command(
    manifest: RunManifest,
    paths: RunPaths,
    life: Life,
    place: Place,
    first_host: str = "",
    *,
    overlap: bool = False,
) -> list[str]:
    """Return the command that runs one life of a replica as a step.

    It has its nodes whole: nothing else of the job runs there, and a step that asks for no part of
    a node is given all of it.

    Args:
        manifest: the run.
        paths: where it keeps its records.
        life: whose life.
        place: where.
        first_host: the first node's host name, by which the others of several find it.
        overlap: whether to start beside steps that SLURM counts as running there.
    """
    root = str(paths.root)
    replica = [sys.executable, "-m", "aiperf_hpc.replica", root, "--replica", life.replica]
    lives = ["--launch", str(life.launch), "--restart", str(life.restart)]
    name = f"--job-name={step_prefix(manifest)}{life.replica}"
    shell = ["/bin/sh", "-c", ON_THE_NODE, str(paths.manifest)]
    meet = _meeting(manifest, place, first_host)
    return [*_srun(manifest, place, overlap=overlap), name, *meet, *shell, *replica, *lives]


def _meeting(manifest: RunManifest, place: Place, first_host: str) -> list[str]:
    """Return how Torch's ranks are told where to meet: SLURM only tells them where srun is."""
    replica = manifest.config.replica
    if replica.ranks == 1 or replica.collective != "torch":
        return []
    host = "127.0.0.1" if len(place.nodes) == 1 else first_host or place.nodes[0]
    return [f"--export=ALL,MASTER_ADDR={host}"]


def trial_command(
    manifest: RunManifest, place: Place, seconds: int, count: int = 0, *, overlap: bool = False
) -> list[str]:
    """Return a step that does nothing but say where it is, with the options of those that work.

    It is refused, rather than waiting, when the nodes are not free within so many seconds.

    Args:
        manifest: the run.
        place: a job, and its nodes if they are known.
        seconds: how long to wait.
        count: how many nodes the job has, where their names are not known.
        overlap: whether to start beside steps that SLURM counts as running there.
    """
    own = [
        f"--immediate={seconds}",
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
            env=step_environment(),
            start_new_session=True,
        )


def step_environment() -> Mapping[str, str]:
    """Return what srun is started with: of the job that the primary is in, nothing."""
    return outside_of_a_job()


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

    life: Life
    place: Place
    process: Process
    log: Path
    begins: int
    """The size of the output when it was started, bytes."""

    def words(self) -> str:
        """Return srun's own last words, in one line."""
        own = [line.removeprefix(SRUN) for line in self._last_lines() if line.startswith(SRUN)]
        return "; ".join(dict.fromkeys(line.strip() for line in own))

    def waits(self) -> bool:
        """Return whether SLURM has not started it so far, because its nodes are not free."""
        lines = self._last_lines()
        return bool(lines) and all(word in lines[-1] for word in WAITING_WORDS)

    def _last_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self.begins, size - WORDS_BYTES))
                return file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []  # Then its exit status has to do.
