"""What the primary costs while thousands of replicas write: its share of a core, its memory, and
how soon its REST service answers.

python benchmarks/primary_load.py            # 4,096 replicas, two minutes
python benchmarks/primary_load.py --json

Four processes, as in a run: one appends a heartbeat and an epoch's records to every journal each
30 s; one is the primary, with its own code but for a launcher that only says that all jobs run;
one asks for the status over HTTP; this one watches. The run has about 1,000,000 records already.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from synthetic_run import (
    EPOCH_SECONDS,
    EPOCHS,
    NAME,
    SECONDS,
    Moment,
    epoch_events,
    heartbeat,
    lines_of,
    write_run,
)

from aiperf_hpc.primary.control.context import PrimaryContext
from aiperf_hpc.primary.control.controller import Controller
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.results.terminal.progress import ProgressDisplay
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.digest import DigestWriter
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.runs import OneRun
from aiperf_hpc.service.server import ServerThread
from aiperf_hpc.trial import JobPhase

SETTLE_SECONDS = 15.0
"""Seconds after the primary has read what was there, before anything is measured."""


class AllRun:
    """A launcher whose jobs run, as a scheduler's that answers."""

    name = "told"
    exact = False
    wait_limit = None
    problem = None

    def __init__(self, replicas: int) -> None:
        states = ReplicaState(JobPhase.RUNNING, "n1")
        self._states = {f"r{number}": states for number in range(replicas)}

    def start(self) -> dict[str, str]:
        return {name: name for name in self._states}

    def states(self) -> Mapping[str, ReplicaState]:
        return self._states

    def ask_to_stop(self) -> None:
        gone = ReplicaState(JobPhase.DONE, "n1")
        self._states = dict.fromkeys(self._states, gone)

    def kill(self) -> None:
        pass


class Terminal(io.StringIO):
    """Where progress is shown; a terminal's changes every second, a file's every 15 s."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def be_primary(root: Path) -> None:
    """Conduct the run as ``aiperf start --serve`` does, until a signal stops it."""
    paths = RunPaths(root)
    manifest = RunManifest.load(paths)
    view = RunView(paths)
    view.refresh()
    live = CachedView(view)
    progress = ProgressDisplay(live, Terminal())
    with (
        JournalWriter(paths.primary_journal) as journal,
        JournalWriter(paths.digest) as digest,
        ServerThread(OneRun("run", live)) as server,
    ):
        print(server.endpoint.port, flush=True)
        writer = DigestWriter(view.history, digest)
        launcher = AllRun(manifest.nodes)
        context = PrimaryContext(
            manifest=manifest, journal=journal, history=view.history, digest=writer
        )
        Controller(context, launcher).run(progress.tick)


def be_replicas(root: Path, replicas: int, written: int) -> None:
    """Append for every replica, one after the other, a heartbeat and an epoch each 30 s."""
    paths = RunPaths(root)
    trial, epoch = f"{NAME}-{len(EPOCHS) - 1}", EPOCHS[-1]
    began = time.time()
    seqs = [int(n) for n in (root / "lines").read_text("utf-8").split()]
    turn = 0
    while True:
        replica = turn % replicas
        due = began + turn * EPOCH_SECONDS / replicas
        if due > time.time():
            time.sleep(due - time.time())
        epoch = EPOCHS[-1] + 1 + turn // replicas
        events = [*epoch_events(trial, epoch, 200), heartbeat()]
        moments = [Moment(0.0, event.model_dump_json()) for event in events]
        text = lines_of(moments, f"r{replica}", time.time(), seqs[replica])
        with paths.replica_journal(f"r{replica}").open("a", encoding="utf-8") as file:
            file.write(text)
        seqs[replica] += len(events)
        turn += 1


def be_client(port: int, seconds: float, rate: float) -> None:
    """Ask for the status ``rate`` times a second; print each answer's milliseconds and age."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    found, ages, size = [], [], 0
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        connection.request("GET", "/api/v1/status")
        answer = connection.getresponse()
        size = len(answer.read())
        found.append((time.monotonic() - began) * 1e3)
        if answer.status != 200:
            raise SystemExit(f"the status was refused: {answer.status}")
        ages.append(int(answer.headers["Age"]))
        time.sleep(max(0.0, began + 1.0 / rate - time.monotonic()))
    print(json.dumps({"milliseconds": found, "ages": ages, "bytes": size}))


def measure(root: Path, replicas: int, seconds: float, rate: float) -> dict[str, float]:
    """Run all processes and return what was measured."""
    written = write_run(
        root, replicas, start=time.time() - SECONDS - 120.0, ended=False, hours=24.0
    )
    (root / "lines").write_text(" ".join(map(str, written.lines.values())), "utf-8")
    me = [sys.executable, __file__, "--role"]
    load = subprocess.Popen([*me, "replicas", str(root), str(replicas)])
    primary = subprocess.Popen(
        [*me, "primary", str(root)], stdout=subprocess.PIPE, stderr=sys.stderr, encoding="utf-8"
    )
    try:
        assert primary.stdout is not None  # noqa: S101 -- for the type checker
        port = int(primary.stdout.readline())
        time.sleep(SETTLE_SECONDS)
        client = subprocess.Popen(
            [*me, "client", str(port), str(seconds), str(rate)],
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        share, memory = watch(primary.pid, client)
        told = json.loads(client.stdout.read())  # type: ignore[union-attr]
    finally:
        load.kill()
        primary.terminate()
        primary.wait(60)
    times = sorted(told["milliseconds"])
    return {
        "replicas": replicas,
        "records before": written.records,
        "records a second": replicas * 5 / EPOCH_SECONDS,
        "seconds": seconds,
        "core share": round(share, 3),
        "memory MB": round(memory / 1e6, 1),
        "status requests": len(times),
        "status p50 ms": round(statistics.median(times), 2),
        "status p99 ms": round(times[int(0.99 * len(times))], 2),
        "status most ms": round(times[-1], 2),
        "status KB": round(told["bytes"] / 1e3, 1),
        "oldest answer s": max(told["ages"]),
        "load average": round(os.getloadavg()[0], 2),
    }


def watch(pid: int, until: subprocess.Popen[str]) -> tuple[float, int]:
    """Return a process's share of a core while another one runs, and its highest memory."""
    process = psutil.Process(pid)
    began, before = time.monotonic(), process.cpu_times()
    memory = 0
    while until.poll() is None:
        memory = max(memory, process.memory_info().rss)
        time.sleep(0.5)
    after, took = process.cpu_times(), time.monotonic() - began
    spent = after.user + after.system - before.user - before.system
    return spent / took, memory


def main() -> None:
    """Measure, or be one of the processes."""
    if sys.argv[1:2] == ["--role"]:
        role, *rest = sys.argv[2:]
        if role == "primary":
            be_primary(Path(rest[0]))
        elif role == "replicas":
            be_replicas(Path(rest[0]), int(rest[1]), 0)
        else:
            be_client(int(rest[0]), float(rest[1]), float(rest[2]))
        return
    parser = argparse.ArgumentParser(description="Measure the primary under load.")
    parser.add_argument("--replicas", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=10.0, help="status requests a second")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.replicas, options.seconds, options.rate)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name:<20} {value:>12,}")


if __name__ == "__main__":
    main()
