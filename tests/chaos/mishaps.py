"""Honest runs on this machine, each with one to three random mishaps, and what verify says of them.

    python -m tests.chaos.mishaps --runs 200 --seed 1

Exit status 0 if no rule on the consistency of the records fails. A run is named by the seed and
its number: the same mishaps happen to it again, though not at the same records.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.chaos.tormented import CONFIG, say
from tests.end_to_end.conftest import LiveRun
from tests.support.command import AIPERF
from tests.support.processes import MAY_HAVE_ENDED, visible

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.verification.audit import verify

FAULTY_HOST = Path(__file__).with_name("faulty_host")
REPLICAS = ("r0", "r1")
CLOCKS = ("primary", *REPLICAS)
"""Whose clocks can be set, in the order of clock.c."""
OPTIONS = ("--hours", 0.006, "--nodes", len(REPLICAS), "--set", "journal.digest_interval_seconds=1")
START_SECONDS, END_SECONDS, QUIET_SECONDS = 90.0, 240.0, 20.0
PAUSE_SECONDS = (0.3, 3.0)
"""Seconds between two mishaps, and before the end."""
MISSED_SECONDS = (2.0, 5.0)
"""Seconds for which something is suspended or full: more heartbeats than others wait for."""
LATE_SECONDS = 4.0
TAILS = (b'{"v":2,"seq":', b'{"v":2,"s', bytes(100), b"")
"""What a power cut leaves behind the last record that is on stable storage."""
DISK = "128m"
VERIFYING = threading.Lock()
"""Held while a report is made again, whose pictures are not drawn by two threads at once."""


class MishapError(Exception):
    """A run does not begin or does not end."""


def build_clock(folder: Path) -> Path:
    """Return the library of clocks that can be set."""
    path = folder / "clock.so"
    source = FAULTY_HOST / "clock.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, source, "-lm"], check=True)
    return path


class UnluckyRun:
    """A run under way, and what happens to it."""

    def __init__(self, folder: Path, clock: Path, rng: random.Random, *, late: bool) -> None:
        """Start it.

        Args:
            folder: of the run and of what is not part of it.
            clock: the library of its clocks.
            rng: draws all that happens to it.
            late: whether its processes list new journals late.
        """
        self.folder, self.rng = folder, rng
        self.happened = ["listed late"] if late else []
        self.said: list[str] = []
        """What its primaries printed on standard error."""
        self._clocks, self._ahead = folder / "clocks", [0.0] * len(CLOCKS)
        self._clocks.write_bytes(bytes(4096))
        path = [str(FAULTY_HOST)] if late else []
        environment = {
            **os.environ,
            "LD_PRELOAD": str(clock),
            "AIPERF_CLOCKS": str(self._clocks),
            "AIPERF_LISTED_LATE": str(LATE_SECONDS),
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        }
        self.live = LiveRun(folder / "run", *OPTIONS, config=CONFIG, environment=environment)
        self.paths = self.live.paths
        self._heal: list[Callable[[], object]] = []

    def step(self, hosts: Sequence[str], seconds: float) -> None:
        """Set the clocks of hosts."""
        for host in hosts:
            self._ahead[CLOCKS.index(host)] += seconds
        with self._clocks.open("r+b") as file:
            file.write(struct.pack(f"{len(CLOCKS)}d", *self._ahead))

    def processes(self, *words: str) -> list[int]:
        """Return the processes of this run whose command lines have these words."""
        wanted = {os.fsencode(self.paths.root), *(word.encode() for word in words)}
        return [pid for pid, command, _ in visible() if wanted <= set(command.split(b"\0"))]

    def trainers(self, replica: str) -> list[int]:
        return self.processes("aiperf_hpc.replica", replica)

    def workers(self, replica: str) -> list[int]:
        return self.processes("aiperf_hpc.replica.search.worker", replica)

    def begin(self) -> None:
        """Wait until each replica executes samples. Raises MishapError."""
        deadline, history = time.monotonic() + START_SECONDS, self.live.history
        while {history.trials[each.trial].replica for each in history.executions} != set(REPLICAS):
            if self.over or time.monotonic() > deadline:
                self.live.process.kill()
                said = self.live.process.communicate()[1]
                raise MishapError(f"the run does not begin: {said}")
            time.sleep(0.1)
            history.refresh()

    def last(self, heal: Callable[[], object]) -> None:
        """Let something last for some seconds, and heal it even if this is interrupted."""
        self._heal.append(heal)
        time.sleep(self.rng.uniform(*MISSED_SECONDS))
        self.heal()

    def heal(self) -> None:
        while self._heal:
            self._heal.pop()()

    @property
    def over(self) -> bool:
        return self.live.process.poll() is not None

    def end(self) -> None:
        """Wait for the end, by another primary if there is none. Raises MishapError."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            if not self.over:
                time.sleep(0.1)
                continue
            self.said.append(self.live.process.communicate()[1].strip())
            self.live.history.refresh()
            if self.live.history.run_ended is not None:
                break
            self.live.resume()
        else:
            raise MishapError(f"the run does not end: {self.said}")
        until = time.monotonic() + QUIET_SECONDS
        while self.processes() and time.monotonic() < until:
            time.sleep(0.1)
        if not self.paths.report_manifest.exists():
            self.command("report")

    def command(self, name: str) -> None:
        """Carry out a command on the run; what it makes of it, verify shows."""
        command = [*AIPERF, name, str(self.paths.root)]
        environment = self.live.environment
        subprocess.run(
            command, env=environment, capture_output=True, check=False, timeout=END_SECONDS
        )

    def close(self) -> None:
        """Leave no process behind."""
        self.heal()
        self.live.close()
        kill(self.processes())


def kill(processes: Sequence[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in processes:
        with MAY_HAVE_ENDED:
            os.kill(pid, number)


def kill_replica(run: UnluckyRun, replica: str) -> None:
    kill(run.trainers(replica))


def kill_worker(run: UnluckyRun, replica: str) -> None:
    kill(run.workers(replica))


def kill_primary(run: UnluckyRun, _: str, *, stop: bool) -> None:
    run.live.process.kill()
    run.live.process.communicate()
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    if stop:
        run.command("stop")
    else:
        run.live.resume()


def cut_power(run: UnluckyRun, _: str) -> None:
    """Kill everything at once; what was being written is there in part, or as zeros."""
    run.live.process.kill()
    kill(run.processes())
    run.live.process.communicate()
    for path in (*run.paths.root.rglob("*.jsonl"), *run.paths.root.rglob("study*.log")):
        with path.open("ab") as file:
            file.write(run.rng.choice(TAILS))
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    run.live.resume()


def suspend(run: UnluckyRun, replica: str, *, who: str) -> None:
    stopped = {
        "replica": run.trainers(replica),
        "worker": run.workers(replica),
        "primary": [run.live.process.pid],
        "all": run.processes(),
    }[who]
    kill(stopped, signal.SIGSTOP)
    run.last(lambda: kill(stopped, signal.SIGCONT))


def step(run: UnluckyRun, replica: str, *, seconds: float, everywhere: bool) -> None:
    run.step(CLOCKS if everywhere else [run.rng.choice([replica, "primary"])], seconds)


def lose_folder(run: UnluckyRun, replica: str) -> None:
    shutil.rmtree(run.paths.replica(replica), ignore_errors=True)  # It may write meanwhile.


def lose_node(run: UnluckyRun, replica: str) -> None:
    """Kill a replica, and lose all that it has written."""
    kill([*run.trainers(replica), *run.workers(replica)])
    lose_folder(run, replica)


def fill_disk(run: UnluckyRun, _: str) -> None:
    filler = run.folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(2**16)):
            pass
    run.last(filler.unlink)


def kill_at_the_end(run: UnluckyRun, _: str) -> None:
    run.live.process.send_signal(signal.SIGINT)
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    run.live.process.kill()


Mishap = Callable[[UnluckyRun, str], object]
FULL = "disk full"
KINDS: dict[str, Mishap] = {
    "replica killed": kill_replica,
    "search worker killed": kill_worker,
    "primary killed, resumed": partial(kill_primary, stop=False),
    "primary killed, stopped": partial(kill_primary, stop=True),
    "power cut": cut_power,
    "replica suspended": partial(suspend, who="replica"),
    "search worker suspended": partial(suspend, who="worker"),
    "primary suspended": partial(suspend, who="primary"),
    "all suspended": partial(suspend, who="all"),
    "clocks set forward": partial(step, seconds=10.0, everywhere=True),
    "clocks set back": partial(step, seconds=-10.0, everywhere=True),
    "a clock set forward": partial(step, seconds=10.0, everywhere=False),
    "a clock set back": partial(step, seconds=-10.0, everywhere=False),
    "folder lost": lose_folder,
    "node lost": lose_node,
    FULL: fill_disk,
    "primary killed at the end": kill_at_the_end,
}
"""What may happen, to a replica or to all."""


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """Give a run a small disk of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@dataclass(frozen=True)
class Plan:
    """What happens to a run."""

    rng: random.Random
    """Draws when, and to whom."""
    kinds: Sequence[str]
    late: bool = False
    """Whether its processes list new journals late."""


def draw(seed: int, number: int) -> Plan:
    """Return the mishaps of a run. Only root can fill its disk."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 -- to draw mishaps
    kinds = [kind for kind in KINDS if kind != FULL or os.getuid() == 0]
    return Plan(rng, rng.sample(kinds, rng.randint(1, 3)), rng.random() < 0.2)


@dataclass
class Outcome:
    """What happened to a run, and what verify found."""

    happened: list[str]
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def conduct(folder: Path, clock: Path, plan: Plan, keep: Path | None = None) -> Outcome:
    """Let a run begin, have its mishaps, and end; verify it.

    Args:
        folder: a new folder.
        clock: the library of clocks that can be set.
        plan: its mishaps.
        keep: where to copy it if a rule fails.
    """
    began, failures = time.monotonic(), []
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        if FULL in plan.kinds:
            stack.enter_context(disk(folder))
        run = UnluckyRun(folder, clock, plan.rng, late=plan.late)
        stack.callback(run.close)
        try:
            _torment(run, plan.kinds)
            failures = _failures(run.paths)
        except MishapError as error:
            failures = [str(error)]
        if failures and keep is not None:
            shutil.copytree(run.paths.root, keep)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(run.happened, failures, time.monotonic() - began)


def _torment(run: UnluckyRun, kinds: Sequence[str]) -> None:
    run.begin()
    for kind in kinds:
        time.sleep(run.rng.uniform(*PAUSE_SECONDS))
        if run.over:
            break
        replica = run.rng.choice(REPLICAS)
        run.happened.append(f"{kind} ({replica})")
        KINDS[kind](run, replica)
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    if not run.over and run.rng.random() < 0.5:
        run.live.process.send_signal(signal.SIGINT)
    run.end()


def _failures(paths: RunPaths) -> list[str]:
    with VERIFYING:
        found = verify(RunView(RunPaths(paths.root)))
    return [f"{each.rule}: {failure}" for each in found for failure in each.failures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Conduct the runs; print each, and how many failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mishaps")
    parser.add_argument("--runs", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="number of the first run")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="runs at a time")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep runs that fail here")
    options = parser.parse_args(arguments)
    if os.getuid() != 0:
        say(f"without root there is no: {FULL}")
    numbers, outcomes = range(options.first, options.first + options.runs), list[Outcome]()
    with (
        tempfile.TemporaryDirectory(prefix="aiperf-mishaps-") as name,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        folder, clock = Path(name), build_clock(Path(name))

        def one(number: int) -> Outcome:
            keep = options.keep and options.keep / f"{options.seed}-{number}"
            return conduct(folder / str(number), clock, draw(options.seed, number), keep)

        for number, outcome in zip(numbers, pool.map(one, numbers), strict=True):
            outcomes.append(outcome)
            say(f"{number}: {', '.join(outcome.happened)}; {outcome.seconds:.0f} s")
            sys.stdout.writelines(f"{number}: {failure}\n" for failure in outcome.failures)
            sys.stdout.flush()
    happened = Counter(each.partition(" (")[0] for outcome in outcomes for each in outcome.happened)
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    sys.stdout.writelines(f"{count:4} x {kind}\n" for kind, count in happened.most_common())
    sys.stdout.write(f"{len(outcomes)} runs (seed {options.seed}), {failed} FAILED\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
