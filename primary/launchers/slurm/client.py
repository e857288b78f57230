"""Client for SLURM's command line, which every site has: each method calls one command once.

``pyslurm_client.py`` uses SLURM's library for queries instead.
"""

from __future__ import annotations

import math
import os
import subprocess
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import SchedulerError, SchedulerSilentError, restated
from aiperf_hpc.primary.launchers.slurm.jobs import (
    JOB_FORMAT,
    Element,
    Job,
    Nodes,
    RunningStep,
    job_number,
    parse_element,
    parse_job,
    parse_nodes,
)

TIMEOUT_SECONDS = 30.0
"""Timeout of one call in seconds; SLURM's own, for a controller that is down, is about 4 s."""
SHORTEST_SECONDS = 5.0
"""Minimum time in seconds between two client calls, independent of the number of nodes."""
RETRY_HINT = "; nothing was started; try again when SLURM responds"
"""Remedy if SLURM did not respond to a start."""
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
"""Client messages, in lower case, without a response: the controller, its address, or the daemon
that signs requests is unavailable."""
SILENCE_LENGTH = 80
"""Maximum characters of the client's message about a missing response."""
ENDED = ("invalid job id specified", "already completing or completed")
"""Messages of scancel, in lower case, about jobs and steps that have ended."""
SITE_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
"""Environment variables of a site or a user, which do not belong to one job."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a command."""

    status: int
    out: str
    err: str


T = TypeVar("T")
Call = Callable[[Sequence[str], Mapping[str, str] | None], Answer]


class SlurmClient:
    """SLURM's command line. Each method is one request.

    All raise SchedulerSilentError if SLURM does not respond, and SchedulerError with SLURM's
    message if it rejects the request.
    """

    def __init__(self, call: Call | None = None) -> None:
        """Use ``call`` to run commands; tests replace it by a simulated cluster."""
        self._run = call or run_command

    def partitions(self) -> list[Nodes]:
        """Return the cluster's nodes by partition, state and resources."""
        lines = self._lines("sinfo", "--noheader", "--format=%P|%a|%T|%D|%G|%l")
        return _parsed("sinfo", lines, parse_nodes)

    def submit(self, script: Path, *options: str) -> str:
        """Submit a batch script with overriding options; return the job's number."""
        # A primary within a job must not pass on that job's sizes.
        environment = outside_of_a_job()
        lines = self._lines("sbatch", "--parsable", *options, str(script), environment=environment)
        job = lines[-1].partition(";")[0] if lines else ""  # NUMBER or NUMBER;CLUSTER
        if not job.isdigit():
            raise SchedulerError(f"sbatch printed {lines} instead of a job number")
        return job

    def find(self, name: str, known: Collection[str] = ()) -> str | None:
        """Return the number of this user's job of that name except known ones, or None."""
        lines = self._lines("squeue", "--noheader", "--me", f"--name={name}", "--format=%F")
        return next((job for line in lines if (job := line.strip()) not in known), None)

    def elements(self, *jobs: str) -> list[Element]:
        """Return the elements that SLURM still lists, including ended ones."""
        lines = self._listed(
            "--array", f"--jobs={','.join(jobs)}",
            "--Format=JobArrayID:64|,State:32|,Reason:64|,NodeList:256|,exit_code:16|,"
            "SubmitTime:32|,StartTime:32",
        )  # fmt: skip
        return _parsed("squeue", lines, parse_element)

    def account(self, *jobs: str) -> list[Element]:
        """Return the accounting's records of elements; rejected at sites without accounting."""
        lines = self._lines(
            "sacct", "--noheader", "--parsable2", "--allocations", "--array",
            f"--jobs={','.join(jobs)}",
            "--format=JobID,State,Reason,NodeList,ExitCode,Submit,Start",
            environment=with_epoch_times(),
        )  # fmt: skip
        return _parsed("sacct", lines, parse_element)

    def jobs(self, job: str) -> list[Job]:
        """Return a job, or the components of a heterogeneous job; empty if SLURM forgot it."""
        return self._jobs(f"--jobs={job}")

    def named(self, name: str) -> list[Job]:
        """Return this user's jobs of that name, including recently ended ones."""
        return self._jobs("--me", f"--name={name}")

    def _jobs(self, *which: str) -> list[Job]:
        lines = self._listed(*which, f"--format={JOB_FORMAT}")
        parsed = _parsed("squeue", lines, lambda line: parse_job(line, self.node_names))
        return sorted(parsed, key=job_number)

    def node_names(self, nodes: str) -> tuple[str, ...]:
        """Return the node names of an expression like n[1-3], without a controller request."""
        return tuple(self._lines("scontrol", "show", "hostnames", nodes)) if nodes else ()

    def steps(self, prefix: str) -> list[RunningStep]:
        """Return this user's steps whose names have this prefix."""
        lines = self._lines("squeue", "--noheader", "--steps", "--me", "--format=%i|%j|%N")
        columns = (line.strip().split("|") for line in lines)
        return [
            RunningStep(step, self.node_names(nodes))
            for step, name, nodes in columns
            if name.startswith(prefix)
        ]

    def try_step(self, command: Sequence[str]) -> list[str]:
        """Run a step to its end; return its output. Errors are those of any request."""
        return self._lines(*command, environment=outside_of_a_job())

    def signal(self, job: str, name: str) -> None:
        """Send a signal to the steps of all running elements."""
        self._lines("scancel", f"--signal={name}", job)

    def cancel(self, *ids: str, waiting_only: bool = False) -> None:
        """Cancel jobs, elements or steps that have not ended, or only the waiting ones."""
        try:
            self._lines("scancel", *(("--state=PENDING",) if waiting_only else ()), *ids)
        except SchedulerSilentError:
            raise
        except SchedulerError as error:
            lines = str(error).lower().split("; ")
            if not all(any(words in line for words in ENDED) for line in lines):
                raise

    def cancel_named(self, name: str) -> None:
        """Cancel this user's job of that name, if there is one."""
        self._lines("scancel", "--me", f"--name={name}")

    def requeue(self, job: str, numbers: Sequence[int]) -> None:
        """Requeue ended elements."""
        self._lines("scontrol", "requeue", ",".join(f"{job}_{number}" for number in numbers))

    def largest_array(self) -> int:
        """Return the maximum size of an array."""
        for line in self._lines("scontrol", "show", "config"):
            name, _, value = line.partition("=")
            if name.strip() == "MaxArraySize":
                return int(value)
        raise SchedulerError("scontrol: its configuration has no MaxArraySize")

    def _lines(self, *command: str, environment: Mapping[str, str] | None = None) -> list[str]:
        answer = self._run(command, environment)
        if answer.status != 0:
            raise error_of(command[0], answer)
        return [line for line in answer.out.splitlines() if line.strip()]

    def _listed(self, *options: str) -> list[str]:
        """Return squeue's output for jobs, including ended ones; empty if SLURM forgot them."""
        command = ("squeue", "--noheader", "--states=all", *options)
        try:
            return self._lines(*command, environment=with_epoch_times())
        except SchedulerSilentError:
            raise
        except SchedulerError as error:
            if "invalid job id" in str(error).lower():
                return []  # SLURM forgets ended jobs after MinJobAge.
            raise


def _parsed(program: str, lines: Sequence[str], parse: Callable[[str], T]) -> list[T]:
    found = []
    for line in lines:
        try:
            found.append(parse(line))
        except ValueError:
            reason = f"{program} printed an unexpected line: {line}"
            raise SchedulerError(reason) from None
    return found


def run_command(command: Sequence[str], environment: Mapping[str, str] | None) -> Answer:
    """Run one of SLURM's commands.

    Raises:
        SchedulerSilentError: the command is not installed or times out.
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
            start_new_session=True,  # Only the primary gets Ctrl-C.
        )
    except FileNotFoundError:
        raise SchedulerSilentError(f"{command[0]} is not on the PATH") from None
    except subprocess.TimeoutExpired:
        reason = f"{command[0]} has not responded within {TIMEOUT_SECONDS:.0f} s"
        raise SchedulerSilentError(reason) from None
    return Answer(done.returncode, done.stdout, done.stderr)


def error_of(program: str, answer: Answer) -> SchedulerError:
    """Return SLURM's error message in one line."""
    output = (answer.err.strip() or answer.out.strip()).splitlines()
    lines = [_without_prefix(line, program) for line in output]
    if (silence := silence_in(lines)) is not None:
        return SchedulerSilentError(f"{program}: {silence}")
    text = "; ".join(dict.fromkeys(lines)) or f"exit status {answer.status} without a message"
    return SchedulerError(f"{program}: {text}")


def _without_prefix(line: str, program: str) -> str:
    """Return a line without the program's name and severity."""
    text = line.strip().removeprefix(f"{program}: ")
    return text.removeprefix("error: ").removeprefix("fatal: ")


def silence_in(lines: Sequence[str]) -> str | None:
    """Return the line that reports a missing response, if any: the last one, which concludes.

    Earlier lines describe intermediate steps. The line is shortened.
    """
    found = [line for line in lines if any(words in line.lower() for words in SILENT)]
    return textwrap.shorten(found[-1], SILENCE_LENGTH, placeholder=" ...") if found else None


def outside_of_a_job() -> dict[str, str]:
    """Return this process's environment without the variables of its enclosing job."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name in SITE_VARIABLES
    }


def with_epoch_times() -> dict[str, str]:
    """Return the environment in which squeue and sacct print times as seconds since 1970."""
    return {**os.environ, "SLURM_TIME_FORMAT": "%s"}


class RateLimit:
    """Rate limit of all calls of SLURM's client in this process."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._last = -math.inf

    @property
    def quiet_seconds(self) -> float:
        """Seconds since the end of the last call."""
        return self.clock.monotonic() - self._last

    def wait(self) -> None:
        """Wait until a call is allowed."""
        self.clock.sleep(SHORTEST_SECONDS - self.quiet_seconds)

    def call(self, request: Callable[[], T]) -> T:
        """Wait until a call is allowed, and make it."""
        self.wait()
        try:
            return request()
        finally:
            self._last = self.clock.monotonic()

    def require(self, request: Callable[[], T], what: str, hint: str = "") -> T:
        """Make a call. Raises UsageError, with ``what`` and the hint, if SLURM does not respond."""
        with restated(what, after=hint, caught=SchedulerError):
            return self.call(request)


RATE_LIMIT = RateLimit(SYSTEM)
"""The rate limit of this process."""
