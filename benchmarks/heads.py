"""What heads and witnesses take: the primary's processor time, and that of verification.

python benchmarks/heads.py                     # 4,096 replicas, about 1,000,000 records
python benchmarks/heads.py --replicas 512 --json

A finished run is written, and its heads are taken as if it grew, every 30 s of its time, by the
primary's own code: how long that takes, and how long ``heads.jsonl`` becomes. Then the rule
``heads`` of ``aiperf verify`` recomputes them. Last, a witness in another process is shown heads:
the processor time that a statement takes the primary, its record written and synced too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from synthetic_run import write_run

from aiperf_hpc.primary.control.heads import HeadsTaker
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.heads import Hash, Head, new_hash
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.verification.evidence import Evidence
from aiperf_hpc.verification.rules.heads import heads
from aiperf_hpc.verification.witness_client.witness import StatingWitness

PERIOD = 30.0
"""Seconds between two heads."""
STATEMENTS = 200
DAY = 86_400.0


class Growing:
    """A history whose journals are read up to a time, as its primary would have read them."""

    def __init__(self, paths: RunPaths, evidence: Evidence) -> None:
        self.paths = paths
        self.lock = threading.RLock()
        self.hashes: dict[Path, tuple[int, Hash]] = {}
        self._left: dict[Path, tuple[list[bytes], Any]] = {}
        for path, journal in evidence.journals.items():
            self._left[path] = (path.read_bytes().splitlines(keepends=True), journal.times)
        self._at = dict.fromkeys(self._left, 0)
        self.hashed = 0.0
        """Processor seconds that hashing what is new took."""

    def read_until(self, utc: float) -> None:
        added = [(path, self._added(path, utc)) for path in self._left]
        began = time.process_time()
        for path, lines in added:
            size, sha = self.hashes.get(path) or (0, new_hash())
            sha.update(lines)
            self.hashes[path] = size + len(lines), sha
        self.hashed += time.process_time() - began

    def _added(self, path: Path, utc: float) -> bytes:
        lines, times = self._left[path]
        at = begin = self._at[path]
        while at < len(lines) and times[at] <= utc:
            at += 1
        self._at[path] = at
        return b"".join(lines[begin:at])


def main() -> None:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=4096)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.replicas)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<58} {value:,.6g}")


def measure(folder: Path, replicas: int) -> dict[str, float]:
    """Return what was measured, by what it is."""
    written = write_run(folder / "run", replicas, distinct=8)
    evidence = Evidence(RunView(written.paths))
    took, hashed, size, taken = take_heads(written.paths, evidence)
    primary = evidence.journals[written.paths.primary_journal]
    primary.heads = taken
    began = time.process_time()
    failures = list(heads(evidence))
    verified = time.process_time() - began
    if failures:
        raise SystemExit(f"the heads are wrong: {failures[0]}")
    shown = show_heads(folder)
    count = len(taken)
    return {
        "replicas": replicas,
        "records": written.records,
        "journals": len(evidence.journals) - 1,
        "times that heads were taken": count,
        "processor seconds to take them once": took / count,
        "share of a core, %": 100.0 * took / count / PERIOD,
        "share of a core to hash what is read, %": 100.0 * hashed / count / PERIOD,
        "share of a core together, %": 100.0 * (took + hashed) / count / PERIOD,
        "bytes of heads.jsonl each time": size / count,
        "MB of heads.jsonl in 24 h": size / count * DAY / PERIOD / 1e6,
        "processor seconds of the rule heads": verified,
        "processor seconds of a statement": shown,
        "share of a core for a witness, %": 100.0 * shown / PERIOD,
    }


def take_heads(
    paths: RunPaths, evidence: Evidence
) -> tuple[float, float, int, list[tuple[float, Head]]]:
    """Take heads as if the run grew; return the seconds, those of hashing, the bytes, the heads."""
    history = Growing(paths, evidence)
    start, end = evidence.history.start_utc or 0.0, evidence.end
    took, taken = 0.0, list[tuple[float, Head]]()
    with JournalWriter(paths.heads, clock=_At(start)) as own:  # type: ignore[arg-type]
        clock = own._clock
        taker = HeadsTaker(history, SimpleNamespace(), own, seconds=PERIOD)  # type: ignore[arg-type]
        utc = start
        while utc < end + PERIOD:
            history.read_until(utc)
            clock.now = utc  # type: ignore[attr-defined]
            began = time.process_time()
            taken.append((utc, taker.take(utc).heads))
            took += time.process_time() - began
            utc += PERIOD
    return took, history.hashed, paths.heads.stat().st_size, taken


class _At:
    """A clock that is put to a time."""

    def __init__(self, now: float) -> None:
        self.now = now

    def utc(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def show_heads(folder: Path) -> float:
    """Return the processor seconds of this process for a statement."""
    with witness(folder / "witness") as url, JournalWriter(folder / "journal.jsonl") as journal:
        one = StatingWitness(url, "run", "t" * 32)
        journal.append_all(one.show(journal.head, 10.0))
        began = time.process_time()
        for _ in range(STATEMENTS):
            journal.append_all(one.show(journal.head, 10.0))
        return (time.process_time() - began) / STATEMENTS


@contextmanager
def witness(folder: Path) -> Iterator[str]:
    """Give the URL of a witness in another process."""
    words = ("-m", "aiperf_hpc.cli", "witness", str(folder), "--per-minute", "100000")
    command = [sys.executable, *words, "--address", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            lines = process.stdout or ()
            yield next(line.strip() for line in lines if line.startswith("http"))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
