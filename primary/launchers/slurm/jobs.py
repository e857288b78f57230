"""Types and parsers of SLURM's reports of jobs, steps and nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from aiperf_hpc.primary.launchers import base
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.trial import JobPhase

INFINITY = float("inf")
SHELL_SIGNAL = 128
"""Offset of srun's exit status for a task ended by a signal, as in shells."""
NO_OUTPUT = (0, 53)
"""Status and signal of a job whose output file its node could not open."""
HELD = ("RUNNING", "SUSPENDED")
"""States of a job whose nodes can be used."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
"""States of a job that may get nodes later."""
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
"""Phase of a replica for each state of its job."""
JOB_FORMAT = "%A|%i|%T|%V|%S|%e|%D|%b|%r|%P|%f|%N"
"""Columns of squeue that ``parse_job`` reads."""
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
    """Exit status of an ended job."""
    signal: int = 0
    """Signal that ended the job, if any."""
    submitted_utc: float | None = None
    """Submission time, UTC seconds of SLURM's clock; None if SLURM does not report it."""
    started_utc: float | None = None
    """Start time, likewise; the expected one while the element waits."""
    job: str = field(default="", compare=False)
    """Job number of the array."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of one partition with equal state and resources."""

    partition: str
    default: bool
    available: bool
    state: str
    count: int
    gres: str
    minutes: float
    """Time limit of the partition; infinity if there is none."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as SLURM reports it."""

    id: str
    """Job number; with the component's number for a heterogeneous job, e.g. 17+1."""
    state: str
    """SLURM's state, e.g. RUNNING."""
    end_utc: float = INFINITY
    """Time at which the time limit ends the job, UTC seconds; infinity if unknown."""
    nodes: tuple[str, ...] = ()
    """Allocated nodes, without failed ones."""
    count: int = 0
    """Number of allocated or requested nodes."""
    reason: str = ""
    gres: str = ""
    """Requested generic resources per node."""
    partition: str = ""
    """Requested partition."""
    constraint: str = ""
    """Requested features of the nodes."""
    group: int = 0
    """Number of the node group that the job provides."""
    submitted_utc: float | None = None
    """Submission time, UTC seconds of SLURM's clock."""
    started_utc: float | None = None
    """Start time, likewise; the expected one while the job waits."""

    @property
    def held(self) -> bool:
        """Whether the job's nodes can be used."""
        return self.state in HELD

    @property
    def waits(self) -> bool:
        """Whether the job may get nodes later."""
        return self.state in WAITING


class RunningStep(NamedTuple):
    """A step that SLURM reports as running; it may have ended unseen."""

    id: str
    """Job number and step number, e.g. 17.3."""
    nodes: tuple[str, ...]
    """Allocated nodes."""


def state_of(element: Element, before: ReplicaState) -> ReplicaState:
    """Return the replica's state from SLURM's report of its element and the previous state."""
    phase = PHASES.get(element.state, before.phase)  # Newer states are ignored.
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
        # A job cancelled before it got nodes has a start time, too.
        started_utc=None if phase in WAITS or not element.node else element.started_utc,
    )


def _end(element: Element) -> str:
    if element.signal or element.status > SHELL_SIGNAL:
        return f"signal {element.signal or element.status - SHELL_SIGNAL}"
    return f"exit status {element.status}" if element.status else ""


def died(element: Element) -> bool:
    """Return whether a replica ended by a signal or by an unexpected error."""
    if element.state == "OUT_OF_MEMORY":
        return True
    unfit = (element.status, element.signal) == NO_OUTPUT
    ended = bool(element.signal) or base.died(element.status)
    return element.state == "FAILED" and not unfit and ended


def parse_nodes(line: str) -> Nodes:
    """Parse a line of sinfo. Raises ValueError."""
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
    """Parse a line of squeue or sacct about an element. Raises ValueError."""
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
    """Parse a line of squeue about a job; ``node_names`` expands n[1-3]. Raises ValueError."""
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
    """Return a job's number, with the component's number for a heterogeneous job."""
    return tuple(int(part) for part in job.id.split("+"))


def _seconds(text: str) -> float | None:
    """Return a time in seconds since 1970, or None for SLURM's placeholders, e.g. N/A."""
    return float(text) if text.isdecimal() else None


def _exit_code(text: str) -> tuple[int, int]:
    """Return status and signal from sacct's STATUS:SIGNAL or from squeue's wait(2) status."""
    if ":" in text:
        status, _, ended_by = text.partition(":")
        return int(status), int(ended_by)
    code = int(text)
    number = code & 0x7F
    return 0 if number else code >> 8 & 0xFF, number


def limit_minutes(text: str) -> float:
    """Return minutes from SLURM's [DAYS-][HOURS:]MINUTES:SECONDS; infinity for no limit."""
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
