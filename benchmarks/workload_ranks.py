"""Two ranks, a core each, against one rank on one core, on a public benchmark's network.

    python benchmarks/workload_ranks.py [FILE.json] [--only cosmoflow-64] [--rounds 3]

Prints a table in Markdown. Weak scaling, as in ``benchmarks/ranks.py``: each rank has as large a
batch, so that two do twice the work in, at best, the same time. Each run is a process tree of its
own; one rank and two take turns. The load is that of the machine when a case begins. Where others
want the cores too, rank 0's processor time says more: one rank evades them to the other core, two
have no other, and wait for whichever of them is held up.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import in_turns, machine, save
from workload_cases import CASES, RATE, WARM, Case, tell, told

from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.parallel.collectives import join
from aiperf_hpc.replica.parallel.collectives.base import ALONE
from aiperf_hpc.replica.parallel.cores import share_cores
from aiperf_hpc.replica.parallel.follower import follow
from aiperf_hpc.replica.parallel.handshake import Ranks, facts_of
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine
from aiperf_hpc.replica.parallel.protocol import Announce, Command
from aiperf_hpc.trial import DatasetInfo, TensorSpec

COLLECTIVE = "mpi"
STEPS = 6


@dataclass
class Repeated:
    """A rank's batch again and again."""

    case: Case
    ranks: int

    @property
    def info(self) -> DatasetInfo:
        batch = self.case.samples(0)
        return DatasetInfo(
            name="repeated",
            sha256="0" * 64,
            inputs={n: TensorSpec(shape=a.shape[1:]) for n, a in batch.inputs.items()},
            targets=self.case.objective.targets,
            train_samples=(WARM + STEPS) * self.case.batch * self.ranks,
            validation_samples=1,
        )

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        del epoch
        batch = self.case.samples(seed + part.rank)
        for _ in range(WARM + STEPS):
            yield Batch(batch.inputs, batch.targets, batch_size)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        raise NotImplementedError


def work(name: str, precision: str, size: int) -> None:
    """Be one rank of some; rank 0 prints the seconds of its steps after the first ones, those that
    passed and those of the processor."""
    collective = ALONE if size == 1 else join(COLLECTIVE)
    if size == 1:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    share_cores(collective)
    case, ranks = CASES[name], Ranks(collective)
    engine = load_engine("torch", 1, objective=case.objective)
    dataset = Repeated(case, size)
    ranks.handshake(facts_of(engine.versions, dataset.info, 0), probe=engine.probe())
    if collective.rank:
        follow(engine, dataset, collective)
        collective.close()
        return
    leading = LeadingEngine(engine, collective) if ranks.several else engine
    data = LeadingDataset(dataset, collective) if ranks.several else dataset
    graph, used = case.graph(), case.used(precision, size)
    weights = initial_weights(graph, np.random.default_rng(0))
    network = leading.build(graph, weights, used)
    seconds = []
    for step in data.train(1, used.batch_size, 0):
        begun = time.perf_counter(), time.process_time()
        network.train_step(step, RATE)
        network.drain_training()
        seconds.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    network.close()
    if ranks.several:
        Announce(collective)(Command.END)
    tell(seconds[WARM:])
    collective.close()


def measured(name: str, precision: str, size: int) -> list[tuple[float, float]]:
    """Start the ranks of one measurement; return what rank 0 found."""
    command = [*rank_starter(size, COLLECTIVE), sys.executable, __file__, "--work", name, precision]
    done = subprocess.run(
        [*command, str(size)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    found: list[tuple[float, float]] = told(done.stdout)
    return found


def compare(names: list[str], precisions: list[str], rounds: int) -> dict[str, Any]:
    """Let one rank and two take turns; print a row for each case."""
    found: dict[str, Any] = {}
    print(
        "| network | precision | one rank, ms | two ranks, ms | times one | of processors | load |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in names:
        for precision in precisions:
            load = os.getloadavg()[0]
            cases = {str(size): partial(measured, name, precision, size) for size in (1, 2)}
            runs = in_turns(cases, rounds)
            one, two = (
                [
                    statistics.median(each)
                    for each in zip(*itertools.chain(*runs[size]), strict=True)
                ]
                for size in ("1", "2")
            )
            found[f"{name} {precision}"] = {**runs, "load": load}
            print(
                f"| {name}, batch {CASES[name].batch} a rank | {precision} | {1e3 * one[0]:,.0f} "
                f"| {1e3 * two[0]:,.0f} | {2 * one[0] / two[0]:.2f} "
                f"| {2 * one[1] / two[1]:.2f} | {load:.1f} |",
                flush=True,
            )
    return found


def main() -> None:
    """Measure what is asked for, print the table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--work", nargs=3, metavar=("CASE", "PRECISION", "RANKS"))
    parser.add_argument("--only", choices=CASES, nargs="*", default=["cosmoflow-64"])
    parser.add_argument("--precision", nargs="*", default=["fp32"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.work:
        name, precision, size = options.work
        work(name, precision, int(size))
        return
    save(options.result, machine(), compare(options.only, options.precision, options.rounds))


if __name__ == "__main__":
    main()
