"""Talking to SLURM: one method is one call of one of its commands, and nothing else is here.

The command line is the one interface that every site has; ``pyslurm_client.py`` looks at SLURM in
another way.
"""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aiperf_hpc.errors import SchedulerError, SchedulerSilentError
from aiperf_hpc.primary.launchers.slurm.environment import outside_of_a_job, with_epoch_times

TIMEOUT_SECONDS = 30.0
"""How long one call may take; a controller that is down is given up by SLURM after about 4 s."""
SILENT = (
    "unable to contact",
    "connect failure",
    "connection refused",
    "connection timed out",
    "socket timed out",
    "zero bytes",
    "communication connection failure",
    "configuration source",
    "configuration file",
    "authentication",
    "unspecified error",
)
"""What the client says when there was no answer, in lower case: the controller, its address,
or the daemon that signs requests is not there."""
WORDS_LENGTH = 80
"""Characters of SLURM's words about its silence."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a job array, in SLURM's words."""

    number: int
    state: str
    """SLURM's word, e.g. PENDING, RUNNING, NODE_FAIL."""
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
class Answer:
    """What a command said."""

    status: int
    out: str
    err: str


Parsed = TypeVar("Parsed")
Call = Callable[[Sequence[str], Mapping[str, str] | None], Answer]


class Commands:
    """SLURM's command line. Each method is one request.

    All raise SchedulerSilentError when SLURM does not answer and SchedulerError, in SLURM's own
    words, when it refuses.
    """

    def __init__(self, call: Call | None = None) -> None:
        """Use ``call`` to run commands: the place where tests put a cluster of their own."""
        self._run = call or run_command

    def cancel_named(self, name: str) -> None:
        """Cancel this user's job of that name, if there is one."""
        self._lines("scancel", "--me", f"--name={name}")

    def _lines(self, *command: str, environment: Mapping[str, str] | None = None) -> list[str]:
        answer = self._run(command, environment)
        if answer.status != 0:
            raise error_of(command[0], answer)
        return [line for line in answer.out.splitlines() if line.strip()]

    def _listed(self, *options: str) -> list[str]:
        """Return what squeue prints of jobs, ended ones too; nothing where SLURM forgot them."""
        command = ("squeue", "--noheader", "--states=all", *options)
        try:
            return self._lines(*command, environment=with_epoch_times())
        except SchedulerSilentError:
            raise
        except SchedulerError as error:
            if "invalid job id" in str(error).lower():
                return []  # SLURM forgets ended jobs after MinJobAge.
            raise


class SlurmClient(Commands):
    """What the launcher of arrays asks of SLURM."""

    def partitions(self) -> list[Nodes]:
        """Return what nodes there are, by partition."""
        lines = self._lines("sinfo", "--noheader", "--format=%P|%a|%T|%D|%G|%l")
        return _parsed("sinfo", lines, _nodes)

    def submit(self, script: Path, *options: str) -> str:
        """Submit a batch script, with options over its own; return the job's number."""
        # A primary that itself runs in a job must not pass that job's sizes on.
        environment = outside_of_a_job()
        lines = self._lines("sbatch", "--parsable", *options, str(script), environment=environment)
        job = lines[-1].partition(";")[0] if lines else ""  # NUMBER or NUMBER;CLUSTER
        if not job.isdigit():
            raise SchedulerError(f"sbatch answered {lines} where the number of a job was due")
        return job

    def find(self, name: str, known: Collection[str] = ()) -> str | None:
        """Return the number of this user's job of that name, but for known ones; None for none."""
        lines = self._lines("squeue", "--noheader", "--me", f"--name={name}", "--format=%F")
        return next((job for line in lines if (job := line.strip()) not in known), None)

    def elements(self, *jobs: str) -> list[Element]:
        """Return the elements that SLURM still lists, ended ones too; none when it forgot all."""
        lines = self._listed(
            "--array", f"--jobs={','.join(jobs)}",
            "--Format=JobArrayID:64|,State:32|,Reason:64|,NodeList:256|,exit_code:16|,"
            "SubmitTime:32|,StartTime:32",
        )  # fmt: skip
        return _parsed("squeue", lines, _element)

    def account(self, *jobs: str) -> list[Element]:
        """Return what the accounting says; refused where there is none."""
        lines = self._lines(
            "sacct", "--noheader", "--parsable2", "--allocations", "--array",
            f"--jobs={','.join(jobs)}",
            "--format=JobID,State,Reason,NodeList,ExitCode,Submit,Start",
            environment=with_epoch_times(),
        )  # fmt: skip
        return _parsed("sacct", lines, _element)

    def signal(self, job: str, name: str) -> None:
        """Send a signal to the steps of all running elements."""
        self._lines("scancel", f"--signal={name}", job)

    def cancel(self, job: str, *, waiting_only: bool = False) -> None:
        """Cancel all elements, or only those that have not started."""
        self._lines("scancel", *(("--state=PENDING",) if waiting_only else ()), job)

    def requeue(self, job: str, numbers: Sequence[int]) -> None:
        """Queue elements again that have ended."""
        self._lines("scontrol", "requeue", ",".join(f"{job}_{number}" for number in numbers))

    def largest_array(self) -> int:
        """Return how many elements an array may have."""
        for line in self._lines("scontrol", "show", "config"):
            name, _, value = line.partition("=")
            if name.strip() == "MaxArraySize":
                return int(value)
        raise SchedulerError("scontrol: its configuration has no MaxArraySize")


def run_command(command: Sequence[str], environment: Mapping[str, str] | None) -> Answer:
    """Run one of SLURM's commands.

    Raises:
        SchedulerSilentError: it is not there, or does not end.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="locale",
            errors="replace",
            check=False,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the primary alone.
        )
    except FileNotFoundError:
        raise SchedulerSilentError(f"{command[0]} is not on the PATH") from None
    except subprocess.TimeoutExpired:
        what = f"{command[0]} has not answered within {TIMEOUT_SECONDS:.0f} s"
        raise SchedulerSilentError(what) from None
    return Answer(done.returncode, done.stdout, done.stderr)


def error_of(program: str, answer: Answer) -> SchedulerError:
    """Return the error in SLURM's own words, in one line."""
    said = (answer.err.strip() or answer.out.strip()).splitlines()
    words = [_bare(line, program) for line in said]
    if (silence := silence_in(words)) is not None:
        return SchedulerSilentError(f"{program}: {silence}")
    text = "; ".join(dict.fromkeys(words)) or f"exit status {answer.status} without a word"
    return SchedulerError(f"{program}: {text}")


def _bare(line: str, program: str) -> str:
    """Return what a line says, without who says it and how grave it is."""
    said = line.strip().removeprefix(f"{program}: ")
    return said.removeprefix("error: ").removeprefix("fatal: ")


def silence_in(lines: Sequence[str]) -> str | None:
    """Return the line that says that nobody answered, if one does: the last, which concludes.

    Those before it tell by which steps the client came to know. It is never longer than is read
    at a glance.
    """
    told = [line for line in lines if any(sign in line.lower() for sign in SILENT)]
    return textwrap.shorten(told[-1], WORDS_LENGTH, placeholder=" ...") if told else None


def _parsed(program: str, lines: Sequence[str], parse: Callable[[str], Parsed]) -> list[Parsed]:
    try:
        return [parse(line) for line in lines]
    except ValueError as error:
        raise SchedulerError(f"{program} answered what cannot be understood: {error}") from None


def _nodes(line: str) -> Nodes:
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


def _element(line: str) -> Element:
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


def _seconds(text: str) -> float | None:
    """Return a time as they tell it; None for their words where there is none, e.g. N/A."""
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
        return float("inf")
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days and len(parts) < 3:
        parts += [0] * (3 - len(parts))
    if len(parts) == 1:
        parts.append(0)  # MINUTES alone
    hours, minutes, seconds = ([0] * (3 - len(parts)) + parts)[-3:]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60
