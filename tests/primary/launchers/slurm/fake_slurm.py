"""Fake SLURM commands for arrays and steps, on a simulated clock."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.clock import Clock
from tests.support.run_manifest import run_manifest

from aiperf_hpc.config import validate
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.primary.launchers.slurm.allocation import CurrentAllocation, SubmittedAllocation
from aiperf_hpc.primary.launchers.slurm.array_launcher import ArrayLauncher
from aiperf_hpc.primary.launchers.slurm.client import Answer, RateLimit, SlurmClient
from aiperf_hpc.primary.launchers.slurm.step_launcher import StepLauncher
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import JobPhase


def manifest(
    nodes: int = 3, hours: float = 1.0, replica: dict[str, object] | None = None, **slurm: object
) -> RunManifest:
    values = {"dataset": {"name": "synthetic"}, "slurm": slurm, "replica": replica or {}}
    facts = {"run_id": "now", "nodes": nodes, "hours": hours, "launcher": "slurm"}
    return run_manifest(validate(values, "test"), **facts)


class FakeSlurm(Clock):
    """A clock that begins at 0, and the calls of SLURM's commands."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.calls: list[tuple[float, tuple[str, ...]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def said(self, program: str) -> list[tuple[str, ...]]:
        """Return the arguments of each call of a program."""
        return [command[1:] for _, command in self.calls if command[0] == program]


class ArrayCluster(FakeSlurm):
    """SLURM's commands as a script: answers in turn, the last one for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, list[Answer]] = {
            "sbatch": [Answer(0, "17\n", "")],
            "squeue": [Answer(0, "", "")],
            "scancel": [Answer(0, "", "")],
            "scontrol": [Answer(0, "", "")],
            "sacct": [Answer(1, "", "Slurm accounting storage is disabled")],
        }
        self.environment: Mapping[str, str] | None = None

    def __call__(self, command: Sequence[str], environment: Mapping[str, str] | None) -> Answer:
        self.calls.append((self.now, tuple(command)))
        if command[0] == "sbatch":
            self.environment = environment
        answers = self.answers[command[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def queue(self, *lines: str) -> None:
        """Let squeue answer with these lines from now on, times where they have none."""
        told = (f"{line}|N/A|N/A" if line.count("|") == 4 else line for line in lines)
        self.answers["squeue"] = [Answer(0, "".join(f"{line}\n" for line in told), "")]

    def launcher(self, folder: Path, nodes: int = 3, launch: int = 0) -> ArrayLauncher:
        client, rate_limit = SlurmClient(self), RateLimit(self)
        return ArrayLauncher(manifest(nodes), RunPaths(folder), client, rate_limit, launch=launch)

    def started(self, folder: Path, *lines: str, nodes: int = 3, launch: int = 0) -> ArrayLauncher:
        """Return a launcher that has started, and has seen these lines if there are any."""
        launcher = self.launcher(folder, nodes, launch)
        launcher.start()
        if lines:
            self.queue(*lines)
            self.watch(launcher, 6)
        return launcher

    @property
    def gaps(self) -> list[float]:
        """Seconds from each call to the next."""
        return [after - before for (before, _), (after, _) in itertools.pairwise(self.calls)]

    def watch(self, launcher: ArrayLauncher, seconds: float) -> dict[str, ReplicaState]:
        """Ask for the states four times a second, as the controller does."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            launcher.states()
        return launcher.states()

    def until(
        self, launcher: ArrayLauncher, replica: str, phase: JobPhase
    ) -> dict[str, ReplicaState]:
        """Ask until a replica is in a phase, or it takes too long."""
        for _ in range(200):
            self.now += 0.25
            if launcher.states()[replica].phase is phase:
                return launcher.states()
        raise AssertionError(f"{replica} is {launcher.states()[replica]}")


def queued(name: str, state: str = "RUNNING", code: int = 0) -> str:
    """What squeue says of an element."""
    return f"{name}|{state}|None|n{name[-1]}|{code}|N/A|N/A"


SILENCE = Answer(
    1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
)
BUSY = "srun: Job 17 step creation still disabled, retrying (Requested nodes are busy)\n"
"""What srun says while its nodes are not free."""
ENDED = {signal.SIGTERM: 143, signal.SIGKILL: 137}


class Srun:
    """A step that runs until a test ends it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = command, log
        self.pid = 0
        self.signals: list[int] = []
        self.status: int | None = None

    def option(self, name: str) -> str:
        (found,) = (word for word in self.command if word.startswith(f"--{name}="))
        return found.partition("=")[2]

    def poll(self) -> int | None:
        return self.status

    def send_signal(self, sig: int, /) -> None:
        self.signals.append(sig)
        self.status = ENDED.get(signal.Signals(sig))

    def say(self, words: str) -> None:
        with self.log.open("a") as file:
            file.write(words)

    def end(self, status: int, words: str = "") -> None:
        self.say(words)
        self.status = status


class StepCluster(FakeSlurm):
    """SLURM at its commands: jobs of n1, n2, ... and the steps that were started."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder)
        super().__init__()
        self.jobs = {"17": ("RUNNING", ["n1", "n2", "n3"])}
        self.old_steps = ""
        self.stale = False
        """Whether scancel ends none of those."""
        self.gres = "N/A"
        self.partitions: dict[str, str] = {}
        self.trial: Answer | None = None
        self.sruns: list[Srun] = []
        self.sallocs: list[Srun] = []
        self.says = "salloc: Pending job allocation 17\n"
        self.salloc_status: int | None = None

    def __call__(self, command: Sequence[str], environment: Mapping[str, str] | None) -> Answer:
        if command[:3] == ("scontrol", "show", "hostnames"):  # It asks nobody.
            return Answer(0, command[3].replace(",", "\n"), "")
        if command[0] == "srun":
            self.calls.append((self.now, tuple(command)))
            nodes = next((w for w in command if w.startswith("--nodelist=")), "")
            named = nodes.partition("=")[2].split(",") if nodes else self.jobs["17"][1]
            return self.trial or Answer(0, "".join(f"{node} host\n" for node in named), "")
        self.calls.append((self.now, tuple(command)))
        if "--steps" in command:
            return Answer(0, self.old_steps, "")
        if command[0] == "scancel":
            kept = (s for s in self.old_steps.splitlines() if s.partition("|")[0] not in command)
            self.old_steps = self.old_steps if self.stale else "\n".join(kept)
            return Answer(0, "", "")
        lines = (
            f"{job[:2]}|{job}|{s}|0|60|7200|{len(n)}|{self.gres}|None|"
            f"{self.partitions.get(job, 'bench')}|(null)|{','.join(n)}\n"
            for job, (s, n) in self.jobs.items()
        )
        return Answer(0, "".join(lines), "")

    def spawn(self, command: Sequence[str], log: Path) -> Srun:
        log.parent.mkdir(parents=True, exist_ok=True)
        process = Srun(command, log)
        if command[0] == "salloc":
            self.calls.append((self.now, tuple(command)))
            self.sallocs.append(process)
            process.say(self.says)
            process.status = self.salloc_status
        else:
            self.sruns.append(process)
        return process

    def allocating(self, run: RunManifest | None = None, launch: int = 0) -> StepLauncher:
        """Return a launcher whose jobs are its own."""
        held, run = SlurmClient(self), run or manifest(2)
        holding = SubmittedAllocation(run, self.paths, held, spawn=self.spawn, clock=self)
        return StepLauncher(
            run, self.paths, holding, held, RateLimit(self),
            launch=launch, spawn=self.spawn,
        )  # fmt: skip

    def launcher(self, run: RunManifest | None = None, launch: int = 0) -> StepLauncher:
        held = SlurmClient(self)
        return StepLauncher(
            run or manifest(2), self.paths, CurrentAllocation(held, "17"), held, RateLimit(self),
            launch=launch, spawn=self.spawn,
        )  # fmt: skip

    def looked(self, launcher: StepLauncher) -> Mapping[str, ReplicaState]:
        """Return the states once SLURM could be asked."""
        launcher.states()
        self.now += 60.0
        return launcher.states()

    def started(self, run: RunManifest | None = None, launch: int = 0) -> StepLauncher:
        """Return a launcher within an allocation that has started."""
        launcher = self.launcher(run, launch)
        launcher.start()
        return launcher

    def granted(self) -> StepLauncher:
        """Return a launcher whose own job of two nodes is granted; a further one will wait."""
        self.jobs = {"17": ("RUNNING", ["n1", "n2"])}
        launcher = self.grants()
        launcher.states()
        self.says, self.salloc_status = "salloc: Pending job allocation 18\n", None
        return launcher

    def grants(self) -> StepLauncher:
        """Return a launcher whose submitted job starts immediately."""
        self.salloc_status = 0
        launcher = self.allocating()
        launcher.start()
        return launcher


def runs_on(node: str) -> ReplicaState:
    """Return the state of a replica of a job that the cluster tells of."""
    return ReplicaState(JobPhase.RUNNING, node, submitted_utc=0.0, started_utc=60.0)
