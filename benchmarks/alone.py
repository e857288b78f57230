"""The benchmark's own trainer without a run around it, and the command line of what resumes."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from aiperf_hpc.config import RunConfig
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.data.base import Dataset
from aiperf_hpc.replica.engines.base import Engine
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import PlannedTrial, TrialResult
from aiperf_hpc.run.identity import Identity
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import FIRST, RunPaths

PLENTY = 2**40
"""A memory limit, in bytes, by which nothing is refused."""


@contextmanager
def trainer_alone(engine: Engine, dataset: Dataset, config: RunConfig) -> Iterator[Trainer]:
    """Give a trainer whose records are thrown away in the end."""
    with TemporaryDirectory() as name, JournalWriter(Path(name) / "journal.jsonl") as journal:
        paths = RunPaths(Path(name))
        context = ReplicaContext(
            config=config,
            paths=paths,
            who=Identity("r0", FIRST),
            journal=journal,
            stop=StopFlag(math.inf, paths.stop_request),
        )
        yield Trainer(context, engine, dataset, MemoryLimit(config, PLENTY))


def trained(trainer: Trainer, trial: PlannedTrial) -> TrialResult:
    """Train one trial, from building its network to freeing it."""
    built = trainer.build(trial)
    try:
        return trainer.run(built)
    finally:
        built.close()


def measure_or_report(measure: Callable[[Path], None], report: Callable[[Path], None]) -> None:
    """Run the command line: measure what the file does not have yet, then print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, help="where finished searches are kept")
    parser.add_argument("--report", action="store_true", help="only print the tables")
    options = parser.parse_args()
    if not options.report:
        measure(options.file)
    report(options.file)
