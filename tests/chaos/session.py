"""Sequential runs on one cluster until all faults have been injected."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.chaos.evidence import ChaosCounts, gather
from tests.chaos.faults import KINDS, OF_AN_ARRAY, OF_STEPS, OWN_DISK, SEPARATE_HOSTS, draw
from tests.chaos.tormented import RUN_SECONDS, Fault, TormentedRun, say
from tests.slurm.conftest import Cluster

NODES = 4
DISK = "256m"
START_SECONDS = 90.0
END_SECONDS = 240.0
"""Seconds from the end of its hours, or a request to stop, until a run must have ended."""
QUIET_SECONDS = 60.0
"""Seconds after the end of a run until all its processes must be gone."""
SAID = 20
"""Problems of a run that are printed at its end; the summary has them all."""
PAUSE_SECONDS = (0.2, 3.5)
"""Seconds between a run's recovery from a fault and the next one."""
Score = dict[str, float | None]


@dataclass
class RunResult:
    """One run, over."""

    reason: str
    seconds: float
    evidence: ChaosCounts
    faults: list[Fault]
    restarts: int
    primaries: int
    stated_operations: float | None
    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


class Session:
    """A cluster with a disk of its own, as a context, and the runs on it."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        hours: float,
        keep: Path | None = None,
        kinds: Sequence[str] = tuple(KINDS),
        launcher: str = "array",
    ) -> None:
        """Begin with no cluster and no run.

        Args:
            folder: of everything, with a short name, since sockets are in it.
            seed: of the faults.
            hours: of one run.
            keep: where all files of all runs are kept; nowhere when not given.
            kinds: of faults; those that this machine cannot do are left out, and that is said.
            launcher: what the runs get their nodes by; faults of other ones are left out.
        """
        self._launcher = launcher
        kinds = [k for k in kinds if k not in (OF_STEPS if launcher == "array" else OF_AN_ARRAY)]
        self._rng, self._hours, self._keep = random.Random(seed), hours, keep  # noqa: S311
        self.seed, self._folder, self._disk = seed, folder, folder / "disk"
        self._cluster = Cluster(folder / "c")
        self.runs: list[RunResult] = []
        self.problems: list[str] = []
        self.drained = 0
        """How often a node was put back that SLURM had drained."""
        root = os.getuid() == 0
        possible = (OWN_DISK if root else set()) | (
            SEPARATE_HOSTS if root and shutil.which("ip") else set()
        )
        left_out = (OWN_DISK | SEPARATE_HOSTS) & set(kinds) - possible
        if left_out:
            say(f"without root and ip there is no: {', '.join(sorted(left_out))}")
        self.kinds = [kind for kind in kinds if kind not in left_out]
        self._mounts = bool(OWN_DISK & set(self.kinds))
        self._separate = bool(SEPARATE_HOSTS & set(self.kinds))

    def __enter__(self) -> Self:
        self._disk.mkdir()
        self._cluster.folder.mkdir()
        if self._mounts:  # Before the cluster, whose hosts have mounts of their own.
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(self._disk)]
            subprocess.run(mount, check=True)
        try:
            options = ["--separate-hosts"] if self._separate else []
            started = self._cluster.control("start", "--nodes", NODES, *options)
            if started.returncode != 0:
                raise RuntimeError(started.stderr)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._cluster.control("stop")
        self._close()

    def _close(self) -> None:
        if self._mounts:
            subprocess.run(["umount", "--lazy", self._disk], check=True)

    def torment(self, faults: int) -> None:
        """Do so many faults to as many runs as it takes, and look at each run afterwards."""
        while (done := sum(len(run.faults) for run in self.runs)) < faults:
            number = len(self.runs)
            run = TormentedRun(
                self._cluster,
                self._disk / f"run{number}",
                self._folder / f"notes{number}",
                self._hours,
                self._launcher,
            )
            try:
                self._torment(run, done, faults)
                self._settle(run)
            except BaseException:
                run.abandon()
                raise
            self.runs.append(self._examine(run))
            found = [f"run {number}: {problem}" for problem in self.runs[-1].problems]
            self.problems += found
            for problem in found[:SAID]:
                say(problem)
            if found[SAID:]:
                say(f"run {number}: and {len(found) - SAID} more")
            self._put_away(run)

    def _torment(self, run: TormentedRun, done: int, faults: int) -> None:
        if not run.pass_time(
            START_SECONDS, lambda: len(run.at_work()) == len(run.history.replicas) > 0
        ):
            run.problems.append(f"not all replicas work within {START_SECONDS:.0f} s")
        while done + len(run.faults) < faults and not run.ended and not run.over:
            run.pass_time(self._rng.uniform(*PAUSE_SECONDS), lambda: run.ended)
            if "controller" not in run.busy:  # Its clients would wait, and its return with them.
                self._undrain()
            fault = None if run.ended else draw(run, self._rng, self.kinds)
            if fault is None:
                continue
            say(f"{done + len(run.faults)}/{faults} {fault.kind} {fault.victim} {fault.detail}")
            run.pass_time(RUN_SECONDS, lambda f=fault: f.run_seconds is not None or run.ended)  # type: ignore[misc]
            if fault.run_seconds is None and not run.ended:
                run.problems.append(f"{fault.kind}: nobody credited within {RUN_SECONDS:.0f} s")

    def _settle(self, run: TormentedRun) -> None:
        """Let the run end: by itself if its time is over, else in order."""
        run.pass_time(QUIET_SECONDS, lambda: not any(fault.open for fault in run.faults))
        run.heal()
        if not run.ended:
            stopped = self._cluster.aiperf("stop", run.paths.root)
            if stopped.returncode != 0:
                run.problems.append(f"aiperf stop: {stopped.stderr.strip()}")
        if not run.pass_time(END_SECONDS, lambda: run.over):
            run.problems.append(f"the run does not end within {END_SECONDS:.0f} s")
            run.abandon()
        self._wait_until_quiet(run)

    def _wait_until_quiet(self, run: TormentedRun) -> None:
        end = time.monotonic() + QUIET_SECONDS
        while left := run.leftovers():
            if time.monotonic() > end:
                run.problems += [f"left behind: {command}" for command in left.values()]
                run.kill_leftovers()
                return
            time.sleep(0.5)
        while self._idle() != str(NODES):
            self._undrain()
            if time.monotonic() > end:
                run.problems.append(f"nodes do not become idle: {self._idle()} of {NODES}")
                return
            time.sleep(0.5)

    def _undrain(self) -> None:
        """Put nodes back that SLURM took away because it could not kill a step: a site's work."""
        options = ["-h", "-N", "-p", "bench", "-o", "%N %T"]
        for line in self._cluster.run("sinfo", *options).stdout.splitlines():
            node, state = line.split()
            if state.startswith("drain"):
                self.drained += 1
                self._cluster.run("scontrol", "update", f"nodename={node}", "state=resume")

    def _idle(self) -> str:
        options = ["-h", "-p", "bench", "-t", "idle", "-o", "%D"]
        return self._cluster.run("sinfo", *options).stdout.strip()

    def _examine(self, run: TormentedRun) -> RunResult:
        """Compare what the files prove with what the product says of them."""
        if not run.paths.report_json.exists():
            run.refusals.append("no report, so that `aiperf report` was to write it")
            self._command(run, "report")
        found = gather(run.paths.root, run.acknowledged, run.outputs)
        run.history.refresh()
        history = run.history
        run.problems += [*found.problems, *map(str, history.problems)]
        said = {"lines": history.record_count, "fenced": history.fenced}
        run.problems += _different("records", {"lines": found.lines, "fenced": found.fenced}, said)
        if found.tracebacks:
            run.problems.append(f"{found.tracebacks} tracebacks in the output")
        rules = json.loads(self._command(run, "verify", "--json") or '{"rules": []}')["rules"]
        run.problems += [f"verify: {r['rule']}: {f}" for r in rules for f in r["failures"]]
        checked = {"lines": sum(r["checked"] for r in rules if r["rule"] == "journals")}
        run.problems += _different("records verified", {"lines": found.lines}, checked)
        recount: Score = {
            "operations": found.operations, "ops": found.ops, "regulated": found.regulated
        }  # fmt: skip
        report = json.loads(run.paths.report_json.read_text("utf-8"))
        stated: Score = {key: report["score"][key] for key in recount}
        run.problems += _different("score", recount, stated)
        restarts = sum(replica.restarts for replica in history.replicas.values())
        say(f"the run ended: {report['end_reason']}; {found.lines} records, {restarts} restarts")
        return RunResult(
            report["end_reason"], found.elapsed, found, run.faults, restarts,
            len(history.run_starts), stated["operations"], run.problems, run.refusals,
        )  # fmt: skip

    def _command(self, run: TormentedRun, name: str, *options: str) -> str:
        """Run one of aiperf's commands on a run; return what it prints."""
        done = self._cluster.aiperf(name, run.paths.root, *options)
        if done.stderr:
            run.problems.append(f"aiperf {name}: {done.stderr.strip()}")
        return done.stdout

    def _put_away(self, run: TormentedRun) -> None:
        if self._keep is not None:
            shutil.copytree(run.paths.root, self._keep / run.paths.root.name)
            shutil.copytree(run.notes, self._keep / run.notes.name)
            shutil.copytree(self._cluster.folder / "log", self._keep / f"log{len(self.runs)}")
        shutil.rmtree(run.paths.root)

    def result(self) -> dict[str, Any]:
        """Return all figures, as plain data."""
        evidence = [run.evidence for run in self.runs]
        faults = [fault for run in self.runs for fault in run.faults]
        totals = ("lines", "counted", "fenced", "unfinished", "set_aside", "acknowledged",
                  "tracebacks", "operations")  # fmt: skip
        return {
            "seed": self.seed,
            "faults": len(faults),
            "runs": len(self.runs),
            "seconds": sum(run.seconds for run in self.runs),
            **{name: sum(getattr(e, name) for e in evidence) for name in totals},
            "drained": self.drained,
            "restarts": sum(run.restarts for run in self.runs),
            "primaries": sum(run.primaries for run in self.runs),
            "stated_operations": sum(run.stated_operations or 0 for run in self.runs),
            "problems": self.problems,
            "kinds": {kind: _summary([f for f in faults if f.kind == kind]) for kind in self.kinds},
            "outcomes": Counter(f"{f.kind}: {f.outcome}" for f in faults if f.outcome),
            "refusals": Counter(said for run in self.runs for said in run.refusals),
            "ends": Counter(run.reason for run in self.runs),
        }


def _different(what: str, found: dict[str, Any], stated: dict[str, Any]) -> list[str]:
    """Return in words where two sets of numbers differ."""
    return [
        f"{what}: {key} is {stated[key]}, in the files it is {value}"
        for key, value in found.items()
        if not _same(value, stated[key])
    ]


def _same(one: float | None, other: float | None) -> bool:
    if isinstance(one, int) or one is None or other is None:
        return one == other
    return math.isclose(one, other, rel_tol=1e-12)


def _summary(faults: list[Fault]) -> dict[str, Any]:
    return {
        "times": len(faults),
        "run": _middle_and_most([f.run_seconds for f in faults]),
        "victim": _middle_and_most([f.seconds for f in faults]),
        "given_up": sum(f.outcome.startswith("given up") for f in faults),
        "run_ended": sum(f.outcome == "the run ended first" for f in faults),
    }


def _middle_and_most(seconds: list[float | None]) -> tuple[float, float] | None:
    known = [s for s in seconds if s is not None]
    return (statistics.median(known), max(known)) if known else None
