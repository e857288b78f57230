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
from tests.support.processes import kill, visible
from tests.support.rules import failures_by_rule

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths

FAULTY_HOST = Path(__file__).with_name("faulty_host")
REPLICAS = ("r0", "r1")
CLOCKS = ("primary", *REPLICAS)
"""Owners of adjustable clocks, in the order of clock.c."""
HOURS = 0.006
OPTIONS = ("--nodes", len(REPLICAS), "--set", "journal.digest_interval_seconds=1")
START_SECONDS, END_SECONDS, QUIET_SECONDS = 90.0, 240.0, 20.0
PAUSE_SECONDS = (0.3, 3.0)
"""Seconds between two mishaps, and before the end."""
MISSED_SECONDS = (2.0, 5.0)
"""Seconds for which a process is suspended or a disk is full: more than heartbeats may be late."""
LATE_SECONDS = 4.0
TAILS = (b'{"v":2,"seq":', b'{"v":2,"s', bytes(100), b"")
"""What a power cut leaves behind the last record that is on stable storage."""
DISK = "128m"
CHECKED_SECONDS = 1000.0
"""Seconds by which a clock is set to check its library."""
NOTHING = "(nothing)"
"""What follows the name of a mishap that met no process or file."""
VERIFYING = threading.Lock()
"""Held while a report is made again, whose pictures are not drawn by two threads at once."""


class MishapError(Exception):
    """A run does not begin or does not end, or its clocks cannot be set."""


@dataclass(frozen=True)
class Plan:
    """What happens to a run."""

    rng: random.Random
    """Draws when, and to whom."""
    kinds: Sequence[str]
    late: bool = False
    """Whether its processes list new journals late."""
    until_interrupted: bool = False
    """Whether it lasts until it is interrupted after the last mishap, not for ``HOURS``."""


def build_clock(folder: Path) -> Path:
    """Return the library of clocks that can be set. Raises MishapError if it has no effect."""
    path = folder / "clock.so"
    source = FAULTY_HOST / "clock.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, source, "-lm"], check=True)
    check_clock(path, folder)
    return path


def check_clock(library: Path, folder: Path) -> None:
    """Raise MishapError unless a process that preloads the library has a clock that can be set.

    The dynamic linker only warns of a library that it cannot preload.
    """
    clocks = folder / "checked-clocks"
    clocks.write_bytes(struct.pack("d", CHECKED_SECONDS).ljust(4096, b"\0"))
    done = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env={**os.environ, "LD_PRELOAD": str(library), "AIPERF_CLOCKS": str(clocks)},
        capture_output=True,
        text=True,
        check=True,
    )
    if float(done.stdout) - time.time() < CHECKED_SECONDS / 2:
        raise MishapError(f"{library} does not set the clock: {done.stderr.strip()}")


class UnluckyRun:
    """A run under way, and what happens to it."""

    def __init__(self, folder: Path, clock: Path, plan: Plan) -> None:
        """Start it.

        Args:
            folder: of the run and of what is not part of it.
            clock: the library of its clocks.
            plan: what happens to it.
        """
        self.folder, self.plan, self.rng = folder, plan, plan.rng
        self.happened = ["listed late"] if plan.late else []
        self.stderr: list[str] = []
        """Standard error of each of its primaries."""
        self._clocks, self._ahead = folder / "clocks", [0.0] * len(CLOCKS)
        self._clocks.write_bytes(bytes(4096))
        path = [str(FAULTY_HOST)] if plan.late else []
        environment = {
            **os.environ,
            "LD_PRELOAD": str(clock),
            "AIPERF_CLOCKS": str(self._clocks),
            "AIPERF_LISTED_LATE": str(LATE_SECONDS),
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        }
        options = OPTIONS if plan.until_interrupted else ("--hours", HOURS, *OPTIONS)
        self.live = LiveRun(folder / "run", *options, config=CONFIG, environment=environment)
        self.paths = self.live.paths
        self._interrupted: subprocess.Popen[str] | None = None
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
                stderr = self.live.process.communicate()[1]
                raise MishapError(f"the run does not begin: {stderr}")
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
                if self.plan.until_interrupted:
                    self._interrupt()
                time.sleep(0.1)
                continue
            self.stderr.append(self.live.process.communicate()[1].strip())
            self.live.history.refresh()
            if self.live.history.run_ended is not None:
                break
            self.live.resume()
        else:
            raise MishapError(f"the run does not end: {self.stderr}")
        until = time.monotonic() + QUIET_SECONDS
        while self.processes() and time.monotonic() < until:
            time.sleep(0.1)
        if self.live.process.returncode < 0 or not self.paths.report_manifest.exists():
            # A primary that was killed may have written a part of its report.
            stderr = self.command("report")
            if not self.paths.report_manifest.exists():
                raise MishapError(f"the run has no report: {stderr}")

    def _interrupt(self) -> None:
        """Interrupt the primary once it has recorded its start and can shut down cleanly."""
        process, starts = self.live.process, RunHistory.read(self.paths).run_starts
        if process is not self._interrupted and process.pid in {each.pid for _, each in starts}:
            self._interrupted = process
            process.send_signal(signal.SIGINT)

    def command(self, name: str) -> str:
        """Execute a command on the run; return its standard error."""
        done = subprocess.run(
            [*AIPERF, name, str(self.paths.root)],
            env=self.live.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=END_SECONDS,
        )
        return done.stderr.strip()

    def close(self) -> None:
        """Leave no process behind."""
        self.heal()
        self.live.close()
        kill(self.processes())


def kill_replica(run: UnluckyRun, replica: str) -> int:
    return kill(run.trainers(replica))


def kill_worker(run: UnluckyRun, replica: str) -> int:
    return kill(run.workers(replica))


def _kill_running_primary(run: UnluckyRun) -> int:
    running = not run.over
    run.live.process.kill()
    return int(running)


def kill_primary(run: UnluckyRun, _: str, *, stop: bool) -> int:
    killed = _kill_running_primary(run)
    run.live.process.communicate()
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    if stop:
        run.command("stop")
    else:
        run.live.resume()
    return killed


def cut_power(run: UnluckyRun, _: str) -> int:
    """Kill everything at once; what was being written is there in part, or as zeros."""
    killed = _kill_running_primary(run) + kill(run.processes())
    run.live.process.communicate()
    for path in (*run.paths.root.rglob("*.jsonl"), *run.paths.root.rglob("study*.log")):
        with path.open("ab") as file:
            file.write(run.rng.choice(TAILS))
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    run.live.resume()
    return killed


def suspend(run: UnluckyRun, replica: str, *, who: str) -> int:
    stopped = {
        "replica": run.trainers(replica),
        "worker": run.workers(replica),
        "primary": [] if run.over else [run.live.process.pid],
        "all": run.processes(),
    }[who]
    sent = kill(stopped, signal.SIGSTOP)
    run.last(lambda: kill(stopped, signal.SIGCONT))
    return sent


def step(run: UnluckyRun, replica: str, *, seconds: float, everywhere: bool) -> int:
    hosts = CLOCKS if everywhere else [run.rng.choice([replica, "primary"])]
    run.step(hosts, seconds)
    return len(hosts)


def lose_folder(run: UnluckyRun, replica: str) -> int:
    folder = run.paths.replica(replica)
    found = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)  # It may write meanwhile.
    return int(found)


def lose_digest(run: UnluckyRun, _: str) -> int:
    found = run.paths.digest.exists()
    run.paths.digest.unlink(missing_ok=True)
    return int(found)


def lose_node(run: UnluckyRun, replica: str) -> int:
    """Kill a replica, and lose all that it has written."""
    return kill([*run.trainers(replica), *run.workers(replica)]) + lose_folder(run, replica)


def fill_disk(run: UnluckyRun, _: str) -> int:
    filler, written = run.folder / "filler", 0
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while size := file.write(bytes(2**16)):
            written += size
    run.last(filler.unlink)
    return written


def kill_at_the_end(run: UnluckyRun, _: str) -> int:
    running = not run.over
    run.live.process.send_signal(signal.SIGINT)
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    run.live.process.kill()
    return int(running)


Mishap = Callable[[UnluckyRun, str], int]
"""Has something happen to a run or a replica; returns how many processes or files it met."""
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
    "search digest lost": lose_digest,
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
    began = time.monotonic()
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        if FULL in plan.kinds:
            stack.enter_context(disk(folder))
        run = UnluckyRun(folder, clock, plan)
        stack.callback(run.close)
        try:
            torment(run)
            failures = _failures(run.paths)
        except MishapError as error:
            failures = [str(error)]
        if failures and keep is not None:
            shutil.copytree(run.paths.root, keep)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(run.happened, failures, time.monotonic() - began)


def torment(run: UnluckyRun) -> None:
    """Let a run begin, have its mishaps, and end. Raises MishapError."""
    run.begin()
    for kind in run.plan.kinds:
        time.sleep(run.rng.uniform(*PAUSE_SECONDS))
        if run.over:
            break
        replica = run.rng.choice(REPLICAS)
        met = KINDS[kind](run, replica)
        run.happened.append(f"{kind} ({replica})" if met else f"{kind} {NOTHING}")
    time.sleep(run.rng.uniform(*PAUSE_SECONDS))
    if not (run.plan.until_interrupted or run.over) and run.rng.random() < 0.5:
        run.live.process.send_signal(signal.SIGINT)
    run.end()


def _failures(paths: RunPaths) -> list[str]:
    with VERIFYING:
        found = failures_by_rule(paths)
    return [f"{rule}: {failure}" for rule, failures in found.items() for failure in failures]


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
    happened = Counter(
        each if each.endswith(NOTHING) else each.partition(" (")[0]
        for outcome in outcomes
        for each in outcome.happened
    )
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    sys.stdout.writelines(f"{count:4} x {kind}\n" for kind, count in happened.most_common())
    sys.stdout.write(f"{len(outcomes)} runs (seed {options.seed}), {failed} FAILED\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
