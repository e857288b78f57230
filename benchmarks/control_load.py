"""The load of the primary while replicas write: processor, memory and response times.

python benchmarks/control_load.py primary     # of a run of 4,096 replicas; three minutes
python benchmarks/control_load.py service     # 100 runs, one of 512 replicas and a day; 3 GB
python benchmarks/control_load.py service --replicas 64 --hours 2 --seconds 20

Four processes, as in a run: one appends a heartbeat and an epoch's records to every journal each
30 s; one is the primary, with its own code except for a launcher whose jobs always run, or ``aiperf
serve``; one requests a status ten times a second, and from the service the list every second and
each of the other runs once; this one watches. The primary's run has 1,000,000 records already.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import synthetic_run
from side_by_side import heading, row
from synthetic_run import EPOCH_SECONDS, NAME, Moment, epoch_events, heartbeat, lines_of

from aiperf_hpc.primary.control.context import PrimaryContext
from aiperf_hpc.primary.control.controller import Controller
from aiperf_hpc.primary.launchers.base import Launcher, ReplicaState
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.terminal.progress import ProgressDisplay
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.search_digest import DigestWriter
from aiperf_hpc.service.runs import OneRun
from aiperf_hpc.service.server import ServerThread
from aiperf_hpc.trial import JobPhase

RUNS = 100
SETTLE_SECONDS = 15.0
"""Seconds after the first reading, before anything is measured."""
RATE = 10.0
"""Requests of the status a second."""
ME = [sys.executable, __file__, "--role"]


class AllRun(Launcher):
    """A launcher whose jobs are all running."""

    name = "all-run"

    def __init__(self, replicas: int) -> None:
        running = ReplicaState(JobPhase.RUNNING, "n1")
        self._states = {f"r{number}": running for number in range(replicas)}

    def start(self) -> dict[str, str]:
        return {name: name for name in self._states}

    def states(self) -> Mapping[str, ReplicaState]:
        return self._states

    def ask_to_stop(self) -> None:
        self._states = dict.fromkeys(self._states, ReplicaState(JobPhase.DONE, "n1"))

    def kill(self) -> None:
        pass


class Terminal(io.StringIO):
    """A terminal: progress is updated every second, in a file every 15 s."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def run_primary(root: Path) -> None:
    """Conduct the run as ``aiperf start --serve`` does, until a signal stops it."""
    paths = RunPaths(root)
    manifest = RunManifest.load(paths)
    view = RunView.read(paths)
    live = CachedView(view)
    progress = ProgressDisplay(live, Terminal())
    with (
        JournalWriter(paths.primary_journal) as journal,
        JournalWriter(paths.digest) as digest,
        ServerThread(OneRun("run", live)) as server,
    ):
        print(f"port:{server.endpoint.port}", flush=True)
        context = PrimaryContext(
            manifest=manifest,
            journal=journal,
            history=view.history,
            digest=DigestWriter(view.history, digest),
        )
        Controller(context, AllRun(manifest.nodes)).run(progress.tick)


def run_replicas(root: Path, trial: str, first_epoch: int) -> None:
    """Append for every replica, one after the other, a heartbeat and an epoch each 30 s."""
    paths = RunPaths(root)
    lines = [int(number) for number in (root / "lines").read_text("utf-8").split()]
    began, turn = time.time(), 0
    while True:
        passed, replica = divmod(turn, len(lines))
        time.sleep(max(0.0, began + turn * EPOCH_SECONDS / len(lines) - time.time()))
        events = [*epoch_events(trial, first_epoch + passed, 200), heartbeat()]
        moments = [Moment(0.0, event.model_dump_json()) for event in events]
        text = lines_of(moments, f"r{replica}", time.time(), lines[replica])
        with paths.replica_journal(f"r{replica}").open("a", encoding="utf-8") as file:
            file.write(text)
        lines[replica] += len(events)
        turn += 1


def run_client(port: int, seconds: float, status: str, others: Sequence[str]) -> None:
    """Request the status from the first moment on, and ``others`` in between; print the times."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def request(path: str) -> tuple[int, float, int]:
        began = time.monotonic()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status, (time.monotonic() - began) * 1e3, int(answer.headers.get("Age", 0))

    began, code, loading = time.monotonic(), 202, [0.0]
    while code == 202:
        code, took, _ = request(status)
        loading.append(took)
        time.sleep(0.5)
    print(json.dumps([max(loading), time.monotonic() - began]), flush=True)
    connection.close()  # The server would, and is connected to again.
    time.sleep(SETTLE_SECONDS)
    times, ages, asked = [], [], []
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        code, took, age = request(status)
        if code != 200:
            raise SystemExit(f"the status was refused: {code}")
        times.append(took)
        ages.append(age)
        turn = len(times) - 1
        if others and turn % 10 == 0:
            asked.append(request(others[0])[1])
        elif turn % 3 == 0 and turn // 3 + 1 < len(others):
            asked.append(request(others[turn // 3 + 1])[1])
        time.sleep(max(0.0, now + 1.0 / RATE - time.monotonic()))
    print(json.dumps([times, asked, ages]))


def lengthen(hours: float) -> None:
    """Set the simulated hours of the replicas."""
    trials = round(hours * 3600.0 / (8 * EPOCH_SECONDS))
    epochs = (*synthetic_run.EPOCHS[: synthetic_run.WARMUP], *(8,) * trials)
    between = len(epochs) * synthetic_run.BETWEEN_SECONDS
    synthetic_run.EPOCHS = epochs  # type: ignore[assignment]
    synthetic_run.SECONDS = 10.0 + sum(epochs) * EPOCH_SECONDS + between


def write_lasting(root: Path, replicas: int, distinct: int) -> int:
    """Write the running run; return its number of records."""
    start = time.time() - synthetic_run.SECONDS - 120.0
    written = synthetic_run.write_run(
        root, replicas, distinct=distinct, start=start, ended=False, hours=48.0
    )
    (root / "lines").write_text(" ".join(map(str, written.lines.values())), "utf-8")
    return written.records


def write_ended(folder: Path) -> list[str]:
    """Write small runs that have ended; return the paths of the list and of their statuses."""
    first = folder / "run-00"
    synthetic_run.write_run(first, 2)
    write_report(RunView(RunPaths(first)))
    names = [first.name, *(f"run-{number:02d}" for number in range(1, RUNS - 1))]
    for name in names[1:]:
        shutil.copytree(first, folder / name)
    return ["/api/v1/runs", *(f"/api/v1/runs/{name}/status" for name in names)]


def measure(root: Path, server: Sequence[str], seconds: float, paths: Sequence[str]) -> Any:  # noqa: ANN401
    """Run all processes; return the server's share of a core and memory, and the client's times."""
    trial, epoch = f"{NAME}-t{len(synthetic_run.EPOCHS)}", synthetic_run.EPOCHS[-1] + 1
    load = subprocess.Popen([*ME, "replicas", str(root), trial, str(epoch)])
    service = subprocess.Popen(server, stdout=subprocess.PIPE, encoding="utf-8")
    try:
        assert service.stdout is not None  # noqa: S101 -- for the type checker
        port = service.stdout.readline().strip().rpartition(":")[2]
        command = [*ME, "client", port, str(seconds), *paths]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
        assert client.stdout is not None  # noqa: S101 -- for the type checker
        loading = json.loads(client.stdout.readline())
        time.sleep(SETTLE_SECONDS)
        watched = watch(service.pid, client)
        return *loading, *watched, *json.loads(client.stdout.read())
    finally:
        load.kill()
        service.terminate()
        service.wait(60)


def watch(pid: int, until: subprocess.Popen[str]) -> tuple[float, int]:
    """Return a process's share of a core while another one runs, and its highest memory."""
    process = psutil.Process(pid)
    began, before = time.monotonic(), process.cpu_times()
    memory = 0
    while until.poll() is None:
        memory = max(memory, process.memory_info().rss)
        time.sleep(0.5)
    after, took = process.cpu_times(), time.monotonic() - began
    return (after.user + after.system - before.user - before.system) / took, memory


def slowest(times: Sequence[float]) -> str:
    """Return the median, the 99th percentile and the longest."""
    ordered = sorted(times)
    return f"{median(times):.2f}, {ordered[int(0.99 * len(times))]:.2f}, {ordered[-1]:.2f}"


def main() -> None:
    """Measure, or run one of the processes."""
    match sys.argv[1:]:
        case ["--role", "primary", root]:
            run_primary(Path(root))
        case ["--role", "replicas", root, trial, epoch]:
            run_replicas(Path(root), trial, int(epoch))
        case ["--role", "client", port, seconds, status, *others]:
            run_client(int(port), float(seconds), status, others)
        case _:
            compare()


def compare() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subject", choices=["primary", "service"])
    parser.add_argument("--replicas", type=int, help="of the run that goes on")
    parser.add_argument("--hours", type=float, default=24.0, help="of that run, for the service")
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "big"
        if options.subject == "primary":
            records = write_lasting(root, options.replicas or 4096, 8)
            server, paths = [*ME, "primary", str(root)], ["/api/v1/status"]
        else:
            others = write_ended(Path(name))
            lengthen(options.hours)
            records = write_lasting(root, options.replicas or 512, 2)
            server = [sys.executable, "-m", "aiperf_hpc.cli", "serve", name]
            server += ["--address", "127.0.0.1:0"]
            paths = ["/api/v1/runs/big/status", *others]
        longest, loaded, share, memory, times, asked, ages = measure(
            root, server, options.seconds, paths
        )
    heading(options.subject, "")
    row("records", f"{records:,}")
    row("first reading, s; longest request meanwhile, ms", f"{loaded:.1f}; {longest:.0f}")
    row(f"{len(times)} status requests: p50, p99, longest, ms", slowest(times))
    if asked:
        row(f"{len(asked)} requests of the list and other runs, ms", slowest(asked))
    row("oldest answer, s", max(ages))
    row("share of a core; memory, MB", f"{share:.3f}; {memory / 1e6:.0f}")
    row("load average", f"{os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
