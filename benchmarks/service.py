"""How soon the service answers: a run of 512 replicas with a day of records, which goes on, among
100 runs in a folder.

python benchmarks/service.py                      # ten minutes, 3 GB in a temporary folder
python benchmarks/service.py --replicas 64 --day-hours 2 --seconds 20

Four processes: one appends a heartbeat and an epoch's records for each replica every 30 s, one is
``aiperf serve``, one asks for the run's status ten times a second, for the list every second and
for each of the other runs once; this one watches.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import primary_load
import psutil
import synthetic_run

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

RUNS = 100
BIG = "big"


def lengthen(hours: float) -> None:
    """Let replicas be played for so many hours."""
    trials = round(hours * 3600.0 / (8 * synthetic_run.EPOCH_SECONDS))
    epochs = (*synthetic_run.EPOCHS[: synthetic_run.WARMUP], *(8,) * trials)
    synthetic_run.EPOCHS = primary_load.EPOCHS = epochs  # type: ignore[assignment]
    seconds = sum(epochs) * synthetic_run.EPOCH_SECONDS
    between = len(epochs) * synthetic_run.BETWEEN_SECONDS
    synthetic_run.SECONDS = 10.0 + seconds + between


def write(folder: Path, replicas: int, hours: float) -> int:
    """Write small runs that have ended, and the large one; return its number of records."""
    first = folder / "run-00"
    synthetic_run.write_run(first, 2)
    view = RunView(RunPaths(first))
    write_report(view)
    for number in range(1, RUNS - 1):
        shutil.copytree(first, folder / f"run-{number:02d}")
    lengthen(hours)
    start = time.time() - synthetic_run.SECONDS - 120.0
    big = synthetic_run.write_run(
        folder / BIG, replicas, distinct=2, start=start, ended=False, hours=48.0
    )
    (folder / BIG / "lines").write_text(" ".join(map(str, big.lines.values())), "utf-8")
    return big.records


def be_client(port: int, seconds: float) -> None:
    """Ask, from the first moment of the service on; print what was measured."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(path: str) -> tuple[int, float, int]:
        began = time.monotonic()
        connection.request("GET", f"/api/v1/runs{path}")
        answer = connection.getresponse()
        age = int(answer.headers.get("Age", 0))
        answer.read()
        return answer.status, (time.monotonic() - began) * 1e3, age

    began, loading = time.monotonic(), []
    loading.append(ask("")[1])
    while True:
        status, took, _ = ask(f"/{BIG}/status")
        loading.append(took)
        if status != 202:
            break
        time.sleep(0.5)
    loaded = time.monotonic() - began
    times, others, ages, turn = [], [], [], 0
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        status, took, age = ask(f"/{BIG}/status")
        if status != 200:
            raise SystemExit(f"the status was refused: {status}")
        times.append(took)
        ages.append(age)
        if turn % 10 == 0:
            others.append(ask("")[1])
        elif turn % 3 == 0 and turn // 3 < RUNS - 1:
            others.append(ask(f"/run-{turn // 3:02d}/status")[1])
        turn += 1
        time.sleep(max(0.0, now + 0.1 - time.monotonic()))
    told = {"loading": loading, "loaded": loaded, "times": times, "others": others, "ages": ages}
    print(json.dumps(told))


def measure(folder: Path, replicas: int, hours: float, seconds: float) -> dict[str, float]:
    """Run all processes and return what was measured."""
    began = time.monotonic()
    records = write(folder, replicas, hours)
    wrote = time.monotonic() - began
    me = [sys.executable, __file__, "--role"]
    load = subprocess.Popen([*me, "replicas", str(folder / BIG), str(replicas), str(hours)])
    serve = [sys.executable, "-m", "aiperf_hpc.cli", "serve", str(folder)]
    service = subprocess.Popen(
        [*serve, "--address", "127.0.0.1:0"], stdout=subprocess.PIPE, encoding="utf-8"
    )
    try:
        assert service.stdout is not None  # noqa: S101 -- for the type checker
        port = service.stdout.readline().strip().rpartition(":")[2]
        client = subprocess.Popen(
            [*me, "client", port, str(seconds)], stdout=subprocess.PIPE, encoding="utf-8"
        )
        share, memory = primary_load.watch(service.pid, client)
        told = json.loads(client.stdout.read())  # type: ignore[union-attr]
    finally:
        load.kill()
        service.terminate()
        service.wait(60)
    times, others = sorted(told["times"]), sorted(told["others"])
    return {
        "replicas": replicas,
        "records": records,
        "seconds to write them": round(wrote, 1),
        "runs": RUNS,
        "loading: most ms": round(max(told["loading"]), 1),
        "loading: seconds": round(told["loaded"], 1),
        "status requests": len(times),
        "status p50 ms": round(statistics.median(times), 2),
        "status p99 ms": round(times[int(0.99 * len(times))], 2),
        "status most ms": round(times[-1], 2),
        "oldest answer s": max(told["ages"]),
        "list and other runs: p99 ms": round(others[int(0.99 * len(others))], 2),
        "list and other runs: most ms": round(others[-1], 2),
        "core share": round(share, 3),
        "memory GB": round(memory / 1e9, 2),
        "processors": psutil.cpu_count() or 0,
    }


def main() -> None:
    """Measure, or be one of the processes."""
    if sys.argv[1:2] == ["--role"]:
        role, *rest = sys.argv[2:]
        if role == "replicas":
            lengthen(float(rest[2]))
            primary_load.be_replicas(Path(rest[0]), int(rest[1]), 0)
        else:
            be_client(int(rest[0]), float(rest[1]))
        return
    parser = argparse.ArgumentParser(description="Measure the service.")
    parser.add_argument("--replicas", type=int, default=512)
    parser.add_argument("--day-hours", type=float, default=24.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.replicas, options.day_hours, options.seconds)
    for name, value in found.items():
        print(f"{name:<30} {value:>14,}")


if __name__ == "__main__":
    main()
