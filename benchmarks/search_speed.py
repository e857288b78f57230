"""How long a choice of the guided search takes, and the learning that it goes by.

    python benchmarks/search_speed.py        # on one core, some minutes; tables in Markdown

Trained graphs are chains of up to ten random morphisms from ResNet-50, with accuracies from the
smooth landscape of ``landscapes.py``, and the searcher is the one of the default configuration.
Graphs come from a lineage, as a search worker's do, which remembers as many as that one.

A choice is timed as it happens in a run: one graph was observed since the one before, and one more
is in training. Each has a random generator of its own. Every part is a process of its own with one
thread, because a searcher's memory is that of its process.
"""

from __future__ import annotations

import argparse
import copy
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from landscapes import NOISE, Smooth
from peers import mutated
from side_by_side import machine

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.lineage import Descent, Lineage
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.search.base import Bounds, Observation, View
from aiperf_hpc.morphism.search.registry import bounds_of, load_searcher
from aiperf_hpc.morphism.surrogate.gaussian_process import Repeats, Surrogate
from aiperf_hpc.morphism.surrogate.graph_description import describe
from aiperf_hpc.replica.search.worker import MOST_GRAPHS
from aiperf_hpc.trial import MorphismData

CHAIN = 10
"""Morphisms, at most, between ResNet-50 and a trained graph."""
CALLS = 200
SIZES, PENDING = (10, 100, 1000), (64, 512)
LARGE, LARGE_CALLS = 10_000, 20


class Seconds(NamedTuple):
    """Of something timed."""

    wall: float
    processor: float


@dataclass(frozen=True, slots=True)
class Descended:
    """Where a graph comes from."""

    graph: str
    parent: str | None
    morphisms: tuple[MorphismData, ...]


@dataclass(slots=True)
class Past:
    """What a run has trained and proposed."""

    lineage: Lineage
    bounds: Bounds
    observations: list[Observation]
    pending: list[tuple[str, str]] = field(default_factory=list)
    """The hashes and names of pending graphs."""

    def view(self, observed: int, pending: int, later: int = 0) -> View:
        """Return what is seen of the first ``observed``, and of ``pending`` from ``later`` on."""
        observations = self.observations[:observed]
        waiting = dict(self.pending[later : later + pending])
        known = {o.graph for o in observations} | waiting.keys()
        return View(observations, waiting, self.lineage.graph, known, Counter(), self.bounds)


def past(trained: int, pending: int = 0, seed: int = 1) -> Past:
    """Draw what was trained, and what grows from it and waits."""
    rng = np.random.default_rng(seed)
    initial = resnet50()
    landscape, bounds = Smooth.draw(seed, initial), bounds_of(SearchConfig(), initial)
    descents: dict[str, Descent] = {"0": Descended(initial.hash, None, ())}
    observations: list[Observation] = []
    seen = {initial.hash}

    def observe(name: str, graph: Graph) -> None:
        accuracy = landscape.value(graph) + NOISE * float(rng.standard_normal())
        observations.append(Observation(name, graph.hash, accuracy, True))

    def grown(graph: Graph) -> tuple[Graph, tuple[MorphismData, ...]] | None:
        """Return a child and its morphism, in a tuple; None if it is out of bounds."""
        (_, child), morphisms = mutated(graph, 1, rng)
        if bounds.broken(child, graph) is not None:
            return None
        return child, tuple(morphism.to_data() for morphism in morphisms)

    observe("0", initial)
    while len(observations) < trained:
        parent, graph = "0", initial
        since: tuple[MorphismData, ...] = ()
        for _ in range(int(rng.integers(1, CHAIN + 1))):
            step = grown(graph)
            if step is None or len(observations) == trained:
                break
            graph, since = step[0], since + step[1]
            # Many chains begin with the same graph; they go on beyond it.
            if graph.hash not in seen:
                seen.add(graph.hash)
                name = str(len(observations))
                descents[name] = Descended(graph.hash, parent, since)
                observe(name, graph)
                parent, since = name, ()
    lineage = Lineage(descents.get, initial, most=MOST_GRAPHS)
    waiting: list[tuple[str, str]] = []
    while len(waiting) < pending:
        parent, name = str(rng.integers(trained)), f"p{len(waiting)}"
        step = grown(lineage.graph(parent))
        if step is not None and step[0].hash not in seen:
            seen.add(step[0].hash)
            descents[name] = Descended(step[0].hash, parent, step[1])
            waiting.append((step[0].hash, name))
    return Past(lineage, bounds, observations, waiting)


def timed(what: Callable[[], object]) -> Seconds:
    """Time it once."""
    began, busy = time.perf_counter(), time.process_time()
    what()
    return Seconds(time.perf_counter() - began, time.process_time() - busy)


def row(label: str, found: list[Seconds], target: str = "") -> None:
    """Print one line of a table, in milliseconds."""
    cells = [label, str(len(found))]
    for kind in range(2):
        of = 1e3 * np.array([one[kind] for one in found])
        cells += [f"{figure:.1f}" for figure in (np.median(of), np.percentile(of, 99), of.max())]
    print(f"| {' | '.join(cells)} | {target} |", flush=True)


HEAD = "| wall ms: median | 99th | most | processor ms: median | 99th | most | target |"


def choices(trained: int, pending: int, target: str) -> None:
    """Time choices."""
    run = past(trained, pending + 1)
    before = load_searcher(SearchConfig())
    before.choose(run.view(trained - 1, pending), np.random.default_rng(0))
    view = run.view(trained, pending, later=1)

    def choose(seed: int) -> Seconds:
        searcher, rng = copy.deepcopy(before), np.random.default_rng([seed, 1])
        return timed(lambda: searcher.choose(view, rng))

    label = f"a choice, {trained:,} trained" + (f", {pending} in training" if pending else "")
    row(label, [choose(seed) for seed in range(CALLS)], target)


def learning() -> None:
    """Time the fit of the process, and adding points to it until it is learned anew."""
    most = 1250
    run = past(most)
    names = {o.graph: o.trial for o in run.observations}
    observed = {o.graph: Repeats.of([o.value]) for o in run.observations}
    graphs = list(observed)

    def learn(surrogate: Surrogate, number: int) -> None:
        surrogate.learn(
            {graph: observed[graph] for graph in graphs[:number]},
            lambda graph: describe(run.lineage.graph(names[graph])),
        )

    grow = timed(lambda: [run.lineage.graph(o.trial) for o in run.observations])
    row(f"growing {most:,} graphs again", [grow])
    fits = [timed(lambda: learn(Surrogate(), 1000)) for _ in range(3)]
    row("the fit from scratch, 1,000 graphs", fits, "20 s")
    surrogate = Surrogate()
    learn(surrogate, 1000)
    added = [timed(partial(learn, surrogate, number)) for number in range(1001, most + 1)]
    row("one graph more, 1,001 to 1,249", added[:-1], "50 ms")
    row("one more and learning anew, 1,250", added[-1:])


def large() -> None:
    """Time ten thousand graphs, and say how much memory they take."""
    run = past(LARGE, LARGE_CALLS)
    empty = _peak()
    searcher = load_searcher(SearchConfig())
    began = LARGE - LARGE_CALLS

    def choose(number: int) -> Seconds:
        view = run.view(number, LARGE_CALLS)
        return timed(lambda: searcher.choose(view, np.random.default_rng([number, 1])))

    row(f"the first choice, {began:,} trained: growing, describing, fitting", [choose(began)])
    later = [choose(number) for number in range(began + 1, LARGE + 1)]
    row(f"a choice, {LARGE:,} trained, {LARGE_CALLS} in training", later)
    print(f"\nPeak memory with {LARGE:,}: {_peak():.0f} MB (target 2,000), {empty:.0f} MB before.")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run one part, or all of them in processes of their own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="*", help="choices TRAINED PENDING TARGET, learning or large")
    match parser.parse_args().part:
        case ["choices", trained, pending, target]:
            choices(int(trained), int(pending), target)
        case ["learning"]:
            learning()
        case ["large"]:
            large()
        case []:
            everything()
        case part:
            parser.error(f"no part {part}")


def everything() -> None:
    """Run all parts."""
    print(f"{machine()}, one core; numpy {np.__version__}\n\n| | times {HEAD}")
    print("|---" * 9 + "|", flush=True)
    targets = {10: "median 20", 1000: "median 200, 99th 1,000"}
    parts = [["choices", str(size), "0", targets.get(size, "")] for size in SIZES]
    parts += [["choices", "1000", str(pending), targets[1000]] for pending in PENDING]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for part in [*parts, ["learning"], ["large"]]:
        command = [sys.executable, str(Path(__file__)), *part]
        subprocess.run(command, env={**os.environ, **threads}, check=True)


if __name__ == "__main__":
    main()
