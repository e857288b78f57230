"""SLURM's reports of jobs, steps and nodes: their types, and how lines are read and interpreted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from aiperf_hpc.primary.launchers import base
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.trial import JobPhase

INFINITY = float("inf")
SHELL_SIGNAL = 128
"""srun ends with this and the number of the signal that ended its task, as shells do."""
NO_OUTPUT = (0, 53)
"""Status and signal of a job whose output file its node could not open."""
HELD = ("RUNNING", "SUSPENDED")
"""The states of a job whose nodes can be used."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
"""The states of a job that may come to be held."""
PHASES = {
    state: phase
    for phase, states in {
        JobPhase.PENDING: ("PENDING",),
        JobPhase.RUNNING: (
            "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING",
            "STAGE_OUT", "RESIZING",
        ),
        JobPhase.REQUEUED: (
            "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT",
        ),
        JobPhase.LOST: ("NODE_FAIL", "PREEMPTED"),
        JobPhase.DONE: ("COMPLETED",),
        JobPhase.FAILED: (
            "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "BOOT_FAIL", "DEADLINE", "REVOKED",
        ),
    }.items()
    for state in states
}  # fmt: skip
"""The phase of a replica in each state of its job."""
JOB_FORMAT = "%A|%i|%T|%V|%S|%e|%D|%b|%r|%P|%f|%N"
"""The columns of squeue that ``parse_job`` reads."""
RAN = (JobPhase.RUNNING, JobPhase.REQUEUED, JobPhase.LOST)
WAITS = (JobPhase.PENDING, JobPhase.REQUEUED)


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a job array, as SLURM reports it."""

    number: int
    state: str
    """SLURM's state, e.g. PENDING, RUNNING, NODE_FAIL."""
    reason: str = ""
    node: str | None = None
    status: int = 0
    """The job's exit status, once it has ended."""
    signal: int = 0
    """The signal that ended it, if one did."""
    submitted_utc: float | None = None
    """When SLURM took it, UTC seconds by SLURM's clock; None where SLURM does not say."""
    started_utc: float | None = None
    """When it was given its nodes, likewise; of one that waits, when SLURM expects to."""
    job: str = field(default="", compare=False)
    """The array's number."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of one partition in one state with equal resources."""

    partition: str
    default: bool
    available: bool
    state: str
    count: int
    gres: str
    minutes: float
    """The partition's time limit; infinity where there is none."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as SLURM reports it."""

    id: str
    """Its number; of a component of a heterogeneous job, the job's and its own, as in 17+1."""
    state: str
    """SLURM's state, e.g. RUNNING."""
    end_utc: float = INFINITY
    """When its time limit ends it, UTC seconds; infinity where that is not known."""
    nodes: tuple[str, ...] = ()
    """Those that it has; one that failed is no longer among them."""
    count: int = 0
    """How many nodes it has or waits for."""
    reason: str = ""
    gres: str = ""
    """The generic resources requested for each of its nodes."""
    partition: str = ""
    """The partition it was requested in."""
    constraint: str = ""
    """The features requested for its nodes."""
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
    """A step that SLURM reports as running; it may have ended unseen."""

    id: str
    """Its job's number and its own, as in 17.3."""
    nodes: tuple[str, ...]
    """Those that it has."""


def state_of(element: Element, before: ReplicaState) -> ReplicaState:
    """Return the replica's state by SLURM's report of its element and the state before."""
    phase = PHASES.get(element.state, before.phase)  # A state of a later SLURM changes nothing.
    if phase is JobPhase.PENDING and before.phase in RAN:
        phase = JobPhase.REQUEUED
    plain = element.state in ("PENDING", "RUNNING", "COMPLETED")
    end = _end(element) if element.state == "FAILED" else ""
    parts = ("" if plain else element.state, element.reason, end)
    return ReplicaState(
        phase,
        element.node,
        ": ".join(part for part in parts if part),
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


def parse_nodes(line: str) -> Nodes:
    """Read a line of sinfo. Raises ValueError."""
    partition, available, state, count, gres, limit = line.split("|")
    return Nodes(
        partition=partition.rstrip("*"),
        default=partition.endswith("*"),
        available=available == "up",
        state=state,
        count=int(count),
        gres="" if gres == "(null)" else gres,
        minutes=limit_minutes(limit),
    )


def parse_element(line: str) -> Element:
    """Read a line of squeue or sacct about an element. Raises ValueError."""
    name, state, reason, node, code, submitted, started = (part.strip() for part in line.split("|"))
    status, number = _exit_code(code)
    job, _, place = name.rpartition("_")
    return Element(
        number=int(place),
        job=job,
        state=state.partition(" ")[0],  # sacct: CANCELLED by 1000
        reason="" if reason in ("None", "none") else reason,
        node=None if node in ("", "(null)", "None assigned") else node,
        status=status,
        signal=number,
        submitted_utc=_seconds(submitted),
        started_utc=_seconds(started),
    )


def parse_job(line: str, node_names: Callable[[str], tuple[str, ...]]) -> Job:
    """Read a line of squeue about a job; ``node_names`` expands n[1-3]. Raises ValueError."""
    parts = [part.strip() for part in line.split("|")]
    number, name, state, *times, count, gres, reason, partition, features, nodes = parts
    submitted, started, end = map(_seconds, times)
    return Job(
        id=name if "+" in name else number,
        state=state,
        end_utc=INFINITY if end is None else end,
        nodes=node_names(nodes),
        count=int(count),
        reason="" if reason == "None" else reason,
        gres="" if gres == "N/A" else gres,
        partition=partition,
        constraint="" if features == "(null)" else features,
        submitted_utc=submitted,
        started_utc=started,
    )


def job_number(job: Job) -> tuple[int, ...]:
    """Return a job's number, with the component's for a heterogeneous job's component."""
    return tuple(int(part) for part in job.id.split("+"))


def _seconds(text: str) -> float | None:
    """Return a time in seconds since 1970; None for SLURM's words for no time, e.g. N/A."""
    return float(text) if text.isdecimal() else None


def _exit_code(text: str) -> tuple[int, int]:
    """Return status and signal of sacct's STATUS:SIGNAL, or of what wait(2) says, as squeue's."""
    if ":" in text:
        status, _, ended_by = text.partition(":")
        return int(status), int(ended_by)
    code = int(text)
    number = code & 0x7F
    return 0 if number else code >> 8 & 0xFF, number


def limit_minutes(text: str) -> float:
    """Return SLURM's [DAYS-][HOURS:]MINUTES:SECONDS in minutes; infinity for no limit."""
    if text in ("infinite", "UNLIMITED", "n/a"):
        return INFINITY
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days and len(parts) < 3:
        parts += [0] * (3 - len(parts))
    if len(parts) == 1:
        parts.append(0)  # MINUTES alone
    hours, minutes, seconds = ([0] * (3 - len(parts)) + parts)[-3:]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60
