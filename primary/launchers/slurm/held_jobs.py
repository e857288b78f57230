"""What is asked of SLURM about jobs whose nodes a primary holds, and about their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiperf_hpc.errors import SchedulerError, SchedulerSilentError
from aiperf_hpc.primary.launchers.slurm.client import Commands
from aiperf_hpc.primary.launchers.slurm.environment import outside_of_a_job

INFINITY = float("inf")
FORMAT = "%A|%i|%T|%V|%S|%e|%D|%b|%r|%P|%f|%N"
HELD = ("RUNNING", "SUSPENDED")
"""The states of a job whose nodes can be used."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
"""The states of a job that may come to be held."""

ENDED = ("invalid job id specified", "already completing or completed")
"""What scancel says, in lower case, of what has ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as SLURM tells of it."""

    id: str
    """Its number; of a component of a heterogeneous job, the job's and its own, as in 17+1."""
    state: str
    """SLURM's word, e.g. RUNNING."""
    end_utc: float = INFINITY
    """When its time limit ends it, UTC seconds; infinity where that is not known."""
    nodes: tuple[str, ...] = ()
    """Those that it has; one that failed is no longer among them."""
    count: int = 0
    """How many nodes it has or waits for."""
    reason: str = ""
    gres: str = ""
    """The generic resources that each of its nodes was asked for."""
    partition: str = ""
    """The one that it was asked for in."""
    constraint: str = ""
    """The features that its nodes were asked for."""
    group: int = 0
    """The number of the group of the run's nodes that it gives."""
    submitted_utc: float | None = None
    """When SLURM took it, UTC seconds by SLURM's clock."""
    started_utc: float | None = None
    """When SLURM gave it its nodes, likewise; of one that waits, when SLURM expects to."""

    @property
    def held(self) -> bool:
        """Whether its nodes can be used."""
        return self.state in HELD

    @property
    def waits(self) -> bool:
        """Whether it may come to have nodes."""
        return self.state in WAITING


class RunningStep(NamedTuple):
    """A step as SLURM tells of it, which may have ended unseen."""

    id: str
    """Its job's number and its own, as in 17.3."""
    nodes: tuple[str, ...]
    """Those that it has."""


class HeldJobs(Commands):
    """SLURM's commands about them. What asks for names of nodes makes further requests."""

    def jobs(self, job: str) -> list[Job]:
        """Return a job, or the components of a heterogeneous one; none where SLURM forgot it."""
        return self._jobs(f"--jobs={job}")

    def named(self, name: str) -> list[Job]:
        """Return this user's jobs of that name, those that have ended lately too."""
        return self._jobs("--me", f"--name={name}")

    def _jobs(self, *which: str) -> list[Job]:
        lines = self._listed(*which, f"--format={FORMAT}")
        return sorted((self._job(line) for line in lines), key=_number)

    def _job(self, line: str) -> Job:
        try:
            parts = [part.strip() for part in line.split("|")]
            number, name, state, *times, count, gres, reason, partition, features, nodes = parts
            submitted, started, end = (float(t) if t.isdigit() else None for t in times)
        except ValueError:
            raise SchedulerError(f"squeue answered what cannot be understood: {line}") from None
        return Job(
            id=name if "+" in name else number,
            state=state,
            end_utc=INFINITY if end is None else end,
            nodes=self.node_names(nodes) if nodes else (),
            count=int(count),
            reason="" if reason == "None" else reason,
            gres="" if gres == "N/A" else gres,
            partition=partition,
            constraint="" if features == "(null)" else features,
            submitted_utc=submitted,
            started_utc=started,
        )

    def node_names(self, nodes: str) -> tuple[str, ...]:
        """Return the names that an expression like n[1-3] stands for; nobody is asked for it."""
        return tuple(self._lines("scontrol", "show", "hostnames", nodes))

    def steps(self, prefix: str) -> list[RunningStep]:
        """Return this user's steps whose names begin so."""
        lines = self._lines("squeue", "--noheader", "--steps", "--me", "--format=%i|%j|%N")
        told = (line.strip().split("|") for line in lines)
        return [
            RunningStep(step, self.node_names(nodes) if nodes else ())
            for step, name, nodes in told
            if name.startswith(prefix)
        ]

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs or steps at once, those that have not ended meanwhile."""
        try:
            self._lines("scancel", *ids)
        except SchedulerSilentError:
            raise
        except SchedulerError as error:
            said = str(error).lower().split("; ")
            if not all(any(sign in each for sign in ENDED) for each in said):
                raise

    def try_step(self, command: Sequence[str]) -> list[str]:
        """Run a step to its end; return what it said.

        It is no question, but the work itself, and is refused in the same words.
        """
        return self._lines(*command, environment=outside_of_a_job())


def _number(job: Job) -> tuple[int, ...]:
    return tuple(int(part) for part in job.id.split("+"))
