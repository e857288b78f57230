"""One run on the cluster, its faults, and its recovery from each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.conftest import Cluster
from tests.support.command import AIPERF
from tests.support.processes import kill, visible

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import Incarnation, RunPaths

CONFIG = Path(__file__).with_name("chaos.yaml")
ACKNOWLEDGE = Path(__file__).with_name("acknowledge")
REPLICAS = 3
TICK_SECONDS = 0.2
RUN_SECONDS = 60.0
"""Seconds within which somebody in the run must be credited again after a fault."""
VICTIM_SECONDS = 180.0
"""Seconds within which what was hit must be back, unless the run's rules give it up or the run
ends."""
FRESH_SECONDS = 3.0
"""A replica that was credited no longer ago is at work."""
RESUMES = 20
REFUSED = 2
"""Exit status of a command that changed nothing."""


@dataclass
class Fault:
    """Something that was done to the run, and what came of it."""

    kind: str
    victim: str
    """The replica, or empty: the whole run."""
    at: float
    """UTC seconds."""
    back: Callable[[TormentedRun], bool]
    detail: str = ""
    run_seconds: float | None = None
    """Seconds until anybody in the run was credited again."""
    seconds: float | None = None
    """Seconds until what was hit was back."""
    outcome: str = ""
    """Why it need not come back, if it does not; or that it has not although it should."""

    @property
    def open(self) -> bool:
        return self.seconds is None and not self.outcome


@dataclass
class Later:
    """Something to do, e.g. to heal what was cut."""

    at: float
    """Seconds, monotonic."""
    action: Callable[[], None]


class TormentedRun:
    """A run, its primaries, and the faults that are done to it."""

    def __init__(
        self, cluster: Cluster, folder: Path, notes: Path, hours: float, launcher: str = "array"
    ) -> None:
        """Start it.

        Args:
            cluster: where.
            folder: the run directory.
            notes: where it is written down what is not part of the run: a new folder.
            hours: its length.
            launcher: what it gets its nodes by.
        """
        self.launcher, self.nodes = launcher, REPLICAS
        self.cluster, self.paths, self.notes = cluster, RunPaths(folder), notes
        self.history = RunHistory(self.paths)
        self.acknowledged = notes / "acknowledged"
        self.acknowledged.mkdir(parents=True)
        self.outputs: list[Path] = []
        self.faults: list[Fault] = []
        self.problems: list[str] = []
        self.refusals: list[str] = []
        self.away: set[str] = set()
        """Nodes that cannot be used just now."""
        self.busy: set[str] = set()
        """Faults that are not to be added to each other just now."""
        self._later: list[Later] = []
        self._credits: dict[tuple[str, Incarnation], float] = {}
        command = ["start", "--config", CONFIG, "--nodes", REPLICAS, "--hours", hours]
        self.primary = self._aiperf(*command, "--launcher", launcher, "--yes", "--run-dir", folder)

    def _aiperf(self, *arguments: object) -> subprocess.Popen[bytes]:
        self.outputs.append(self.notes / f"primary-{len(self.outputs)}.log")
        path = f"{ACKNOWLEDGE}:{os.environ.get('PYTHONPATH', '')}"
        environment = {
            **self.cluster.environment,
            "PYTHONPATH": path,
            "AIPERF_CHAOS_ACKNOWLEDGED": str(self.acknowledged),
        }
        with self.outputs[-1].open("wb") as output:
            return subprocess.Popen(
                [*AIPERF, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while."""
        self._later.append(Later(time.monotonic() + seconds, action))

    def heal(self) -> None:
        """Do now what was to be done later."""
        while self._later:
            self._later.pop(0).action()

    def kill_primary(self) -> None:
        """Let it have no last words."""
        self.primary.kill()
        self.primary.wait()

    def resume(self) -> None:
        """Let another primary go on, if the last one is gone and the run is not over."""
        self.busy.discard("primary")
        self.history.refresh()
        if self.primary.poll() is not None and not self.ended:
            self.primary = self._aiperf("resume", self.paths.root)

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Watch the run until something holds; return whether it did. The run's end ends it."""
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end or self.over:
                return until()
            time.sleep(TICK_SECONDS)
            self._tick()
        return True

    def _tick(self) -> None:
        for due in [late for late in self._later if late.at <= time.monotonic()]:
            self._later.remove(due)
            due.action()
        self.history.refresh()
        self._credits = {}
        for e in self.history.executions:
            trial = self.history.trials[e.trial]
            key = trial.replica, trial.incarnation
            self._credits[key] = max(e.utc, self._credits.get(key, 0.0))
        self._look_at_faults()
        self._look_at_primary()

    def _look_at_faults(self) -> None:
        now = time.time()
        for fault in self.faults:
            since = now - fault.at
            if fault.run_seconds is None and self.credited_since(fault.at):
                fault.run_seconds = since
            if not fault.open:
                continue
            if fault.back(self):
                fault.seconds = since
            elif fault.victim and (given_up := self.given_up(fault.victim)):
                fault.outcome = f"given up: {given_up}"
            elif self.ended:
                fault.outcome = "the run ended first"
            elif since > VICTIM_SECONDS:
                fault.outcome = f"not within {VICTIM_SECONDS:.0f} s"
                self.problems.append(f"{fault.kind} of {fault.victim}: {fault.outcome}")

    def _look_at_primary(self) -> None:
        """Resume after a primary that nobody has killed but that left the run open."""
        status = self.primary.poll()
        if status is None or "primary" in self.busy or self.ended:
            return
        said = self.outputs[-1].read_text("utf-8").strip().splitlines()
        last = said[-1] if said else "nothing"
        if status == REFUSED and len(self.outputs) > 1 and len(self.refusals) < RESUMES:
            self.refusals.append(last)
        else:
            self.problems.append(f"a primary ended with status {status} and the run open: {last}")
        self.busy.add("primary")
        self.later(3.0, self.resume)

    @property
    def ended(self) -> bool:
        return self.history.run_ended is not None

    @property
    def over(self) -> bool:
        """Whether nothing more will happen in it."""
        return self.ended and self.primary.poll() is not None

    def credited_since(self, utc: float, replica: str | None = None) -> bool:
        """Return whether samples were credited that were executed after a time."""
        return any(at > utc for (r, _), at in self._credits.items() if replica in (None, r))

    def life_credited(self, replica: str, after: Incarnation) -> bool:
        """Return whether a later life of a replica was credited."""
        return any(r == replica and life > after for r, life in self._credits)

    def life(self, replica: str) -> Incarnation:
        """Return the latest life of a replica."""
        return max(self.history.replicas[replica].starts)

    def at_work(self) -> list[str]:
        """Return the replicas that are credited just now, on nodes that are not away."""
        fresh = time.time() - FRESH_SECONDS
        return [
            name
            for name, replica in sorted(self.history.replicas.items())
            if self.credited_since(fresh, name)
            and self.node(name) not in self.away
            and f"stopped {name}" not in self.busy
        ]

    def node(self, replica: str) -> str | None:
        """Return SLURM's name of the node that a replica works on, if that is known."""
        known = self.history.replicas[replica]
        if (
            known.machine is not None
            and (self.cluster.folder / "pids" / known.machine.host).exists()
        ):
            return known.machine.host  # Nodes that are hosts of their own have its name.
        return known.job_state.node if known.job_state is not None else None

    def given_up(self, replica: str) -> str | None:
        """Return in the primary's words why a replica is not run again, if so."""
        state = self.history.replicas[replica].job_state
        return None if state is None or not state.phase.ended else state.detail or str(state.phase)

    def leftovers(self) -> dict[int, str]:
        """Return the run's processes that are there, and their command lines."""
        root = os.fsencode(self.paths.root)
        return {
            number: command.replace(bytes(1), b" ").decode().strip()
            for number, command, _ in visible()
            if root in command
        }

    def abandon(self) -> None:
        """Leave nothing running."""
        self.heal()
        self.kill_primary()
        self.cluster.run("scancel", "--me")
        self.kill_leftovers()

    def kill_leftovers(self) -> None:
        kill(self.leftovers())


def say(text: str) -> None:
    """Tell whoever waits."""
    sys.stderr.write(f"chaos: {time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
