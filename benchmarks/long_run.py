"""A run of 512 replicas and 24 hours, at the rhythm of ImageNet, and how long its report takes.

python benchmarks/long_run.py FOLDER                     # writes it, 2.6 GB, and measures
python benchmarks/long_run.py FOLDER --replicas 64 --hours 3

Every replica records its progress each 5 s and a heartbeat each 10 s, as by default. Measured are,
in processes of their own: reading the journals, and `aiperf report` from its start to its end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from synthetic_run import (
    DATASET,
    START,
    Moment,
    Pattern,
    Player,
    configuration,
    draw,
    heartbeat,
    write_copy,
    write_primary,
)

from aiperf_hpc.config import RunConfig
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.run import records
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths

EPOCH_SECONDS, PROGRESS_SECONDS, HEARTBEAT_SECONDS = 300.0, 5.0, 10.0
WARMUP_EPOCHS, EPOCHS = (5, 10, 15), 20
DISTINCT = 4
READ = """
import sys
from pathlib import Path
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.results.views.run_view import RunView
view = RunView(RunPaths(Path(sys.argv[1])))
view.refresh()
"""


class LongPlayer(Player):
    """Records trials whose epochs take minutes."""

    def epoch(self, name: str, epoch: int, correct: int) -> None:
        steps = int(EPOCH_SECONDS / PROGRESS_SECONDS)
        whole, tested = DATASET.train_samples, DATASET.validation_samples
        for step in range(steps):
            last = step == steps - 1
            done = whole * (step + 1) // (steps - 1) - whole * step // (steps - 1)
            progress = records.Progress(
                trial=name,
                epoch=epoch,
                train_samples=0 if last else done,
                validation_samples=tested if last else 0,
            )
            self.say(progress, PROGRESS_SECONDS)
            if step * PROGRESS_SECONDS % HEARTBEAT_SECONDS == 0.0:
                self.say(heartbeat())
        self.say(
            records.Evaluated(
                trial=name,
                epoch=epoch,
                learning_rate=0.1 / epoch,
                train_loss=2.3456789 / epoch,
                validation_loss=2.4567891 / epoch,
                sums={"correct": correct},
                samples=tested,
            )
        )


def long_configuration() -> RunConfig:
    """Return the configuration that the run keeps to."""
    base = configuration()
    return base.model_copy(
        update={
            "training": base.training.model_copy(update={"max_epochs": EPOCHS}),
            "rounds": base.rounds.model_copy(update={"warmup_epochs": WARMUP_EPOCHS}),
            "journal": base.journal.model_copy(update={"heartbeat_seconds": HEARTBEAT_SECONDS}),
            "score": base.score.model_copy(update={"interval_hours": 0.1}),
        }
    )


def play(config: RunConfig, graphs: GraphStore, number: int, seconds: float) -> Pattern:
    """Return the records of a replica that trains for so long."""
    rng = np.random.default_rng(number)
    player = LongPlayer(config, graphs, Pattern([], []))
    player.start()
    graph = resnet50(DATASET.input_shape("image"), 10, stem="cifar", base_width=4)
    parent, trial, steps = None, 0, ()
    while True:
        limit = WARMUP_EPOCHS[trial] if trial < len(WARMUP_EPOCHS) else EPOCHS
        if player.now + (limit + 1) * EPOCH_SECONDS > seconds:
            break
        if parent is not None and trial <= len(WARMUP_EPOCHS):
            step, graph = draw(graph, rng)
            steps = (step,)
            player.propose(graph, parent, step, trial)
        name = player.trial(graph, parent, steps, trial, limit, rng)
        parent = name if trial < len(WARMUP_EPOCHS) else parent
        trial += 1
    player.end()
    return player.pattern


def write_run(root: Path, replicas: int, hours: float) -> int:
    """Write the run; return how many records it has."""
    paths = RunPaths(root)
    chosen = RunManifest(
        run_id=f"synthetic-{replicas}n",
        nodes=replicas,
        hours=hours,
        launcher="local",
        versions={"aiperf-hpc": "0.1.0"},
        commit=None,
        config=long_configuration(),
    )
    chosen.save(paths)
    seconds = hours * 3600.0
    written = write_primary(paths, replicas, hours, START, START + seconds)
    graphs = GraphStore(paths)
    patterns = [play(chosen.config, graphs, number, seconds - 60.0) for number in range(DISTINCT)]
    for number in range(replicas):
        name, pattern = f"r{number}", patterns[number % DISTINCT]
        late = START + 50.0 * number / replicas
        for path, moments in _journals(paths, name, pattern):
            written += write_copy(path, moments, name, late)
    return written


def _journals(paths: RunPaths, name: str, pattern: Pattern) -> list[tuple[Path, list[Moment]]]:
    return [
        (paths.replica_journal(name), pattern.trainer),
        (paths.search_journal(name, 0), pattern.search),
    ]


def timed(name: str, command: list[str]) -> None:
    """Run a command to its end; print its wall and processor seconds and most memory."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    processor = used.ru_utime + used.ru_stime
    memory = used.ru_maxrss / 1024
    print(f"{name}: {wall:.1f} s, of the processor {processor:.1f} s, {memory:.0f} MiB", flush=True)
    if process.returncode:
        raise SystemExit(f"{command} ended with status {process.returncode}")


def main() -> None:
    """Write a run unless it is there, and measure."""
    parser = argparse.ArgumentParser(description="Measure the report of a long run.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replicas", type=int, default=512)
    parser.add_argument("--hours", type=float, default=24.0)
    options = parser.parse_args()
    paths = RunPaths(options.folder)
    if not paths.manifest.exists():
        written = write_run(options.folder, options.replicas, options.hours)
        size = sum(path.stat().st_size for path in paths.journals())
        print(f"{written:,} records, {size / 1e9:.2f} GB in {options.folder}")
    timed("reading", [sys.executable, "-c", READ, str(paths.root)])
    aiperf = [sys.executable, "-m", "aiperf_hpc.cli"]
    timed("aiperf report", [*aiperf, "report", str(paths.root)])
    for path in sorted(paths.report.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
