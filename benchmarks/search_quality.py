"""Quality of the guided search compared with its peers, and calibration of its predictions.

    python benchmarks/search_quality.py quality.json        # on one core; tables in Markdown
    python benchmarks/search_quality.py quality.json --report

From ResNet-50, on the landscapes of ``landscapes.py``: 64 evaluations, 30 seeds. The searcher is
the one of the default configuration. Each peer is measured with 1 and with up to 3 morphisms a
candidate. Best is the true value of the best graph found, without noise.

The rank correlation is Spearman's, between what the surrogate predicts of each graph if it is left
out and the truth. What is finished is kept in the file, and the benchmark goes on from there:
when the searcher has changed, begin a new file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from landscapes import LANDSCAPES, NOISE, Landscape
from numpy.typing import NDArray
from peers import RandomMorphing, RegularisedEvolution, Search, run
from scipy.stats import spearmanr
from side_by_side import heading, machine, row

from aiperf_hpc.config import SearchConfig
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.search import load_searcher
from aiperf_hpc.morphism.search.base import Bounds, Choice, Searcher, View
from aiperf_hpc.morphism.surrogate.gaussian_process import Repeats, Surrogate
from aiperf_hpc.morphism.surrogate.graph_description import describe
from aiperf_hpc.run.paths import write_whole

SEEDS, EVALUATIONS = 30, 64
GUIDED = "guided"
STEPS = (1, 3)
"""Morphisms of a peer's candidate, at most."""


def searchers() -> dict[str, Searcher]:
    """Return new ones by their names."""
    peers = [peer(steps) for peer in (RandomMorphing, RegularisedEvolution) for steps in STEPS]
    return {GUIDED: load_searcher(SearchConfig())} | {peer.name: peer for peer in peers}


class Timed:
    """A searcher that measures its time."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self.seconds: list[float] = []

    def choose(self, view: View, rng: np.random.Generator) -> Choice:
        began = time.process_time()
        choice = self._searcher.choose(view, rng)
        self.seconds.append(time.process_time() - began)
        return choice


def noise_of(seed: int) -> NDArray[np.float64]:
    """Return the noise of each evaluation, the same for every search."""
    noise: NDArray[np.float64] = NOISE * np.random.default_rng([seed, 1]).normal(size=EVALUATIONS)
    return noise


def search(searcher: Searcher, landscape: Landscape, seed: int) -> Search:
    """Search once."""
    initial, noise = resnet50(), noise_of(seed)
    return run(
        searcher,
        initial,
        Bounds.of(SearchConfig(), initial),
        EVALUATIONS,
        lambda trial, choice: landscape.value(choice.child) + float(noise[int(trial)]),
        np.random.default_rng([seed, 2]),
    )


def correlation(found: Search, landscape: Landscape) -> float:
    """Return Spearman's correlation of predicted and true accuracies of held-out graphs."""
    surrogate = Surrogate()
    graphs = {graph.hash: graph for graph in found.graphs.values()}
    observed = {o.graph: Repeats.of([o.value]) for o in found.observations}
    surrogate.learn(observed, lambda graph: describe(graphs[graph]))
    predicted = surrogate.leave_one_out()
    truth = [landscape.value(graphs[graph]) for graph in predicted]
    return float(spearmanr(list(predicted.values()), truth).statistic)


def result(name: str, method: str, searcher: Searcher, seed: int) -> dict[str, Any]:
    """Run one search; return its summary."""
    landscape = LANDSCAPES[name](seed, resnet50())
    timed = Timed(searcher)
    found = search(timed, landscape, seed)
    values = [landscape.value(graph) for graph in found.graphs.values()]
    return {
        "landscape": name,
        "search": method,
        "seed": seed,
        "initial": values[0],
        "best": max(values),
        "half_way": max(values[: EVALUATIONS // 2]),
        "correlation": correlation(found, landscape),
        "seconds": median(timed.seconds),
    }


def measure(file: Path) -> None:
    """Add the searches that ``file`` does not have."""
    results = _read(file)
    finished = {(r["landscape"], r["search"], r["seed"]) for r in results}
    for seed in range(SEEDS):
        for name in LANDSCAPES:
            for method, searcher in searchers().items():
                if (name, method, seed) not in finished:
                    results.append(result(name, method, searcher, seed))
        write_whole(file, json.dumps(results, indent=1).encode())
        print(f"seed {seed}", flush=True)


def _read(file: Path) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.exists() else []
    return results


def show(results: list[dict[str, Any]]) -> None:
    """Print the tables."""

    def of(landscape: str, search: str, what: str) -> list[float]:
        own = [r for r in results if r["landscape"] == landscape and r["search"] == search]
        return [r[what] for r in sorted(own, key=lambda r: int(r["seed"]))]

    def better(landscape: str, peer: str) -> str:
        pairs = zip(of(landscape, GUIDED, "best"), of(landscape, peer, "best"), strict=True)
        return f"{fmean(ours > theirs for ours, theirs in pairs):.0%}"

    print(f"{machine()}; {EVALUATIONS} evaluations, {len(of('smooth', GUIDED, 'best'))} seeds\n")
    heading("landscape", "search", "mean best", "after half", "guided is better in",
            "rank correlation, mean", "least", "processor ms a choice")  # fmt: skip
    for landscape in LANDSCAPES:
        row(landscape, "ResNet-50", f"{fmean(of(landscape, GUIDED, 'initial')):.4f}", *[""] * 5)
        for name in searchers():
            correlations = of(landscape, name, "correlation")
            row(
                landscape,
                name,
                f"{fmean(of(landscape, name, 'best')):.4f}",
                f"{fmean(of(landscape, name, 'half_way')):.4f}",
                "" if name == GUIDED else better(landscape, name),
                f"{fmean(correlations):.2f}",
                f"{min(correlations):.2f}",
                f"{1e3 * median(of(landscape, name, 'seconds')):.1f}",
            )


def main() -> None:
    """Run the command line: add the missing measurements, then print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="where finished searches are kept")
    parser.add_argument("--report", action="store_true", help="only print the tables")
    options = parser.parse_args()
    if not options.report:
        measure(options.file)
    show(_read(options.file))


if __name__ == "__main__":
    main()
