"""Does the guided search find better networks than random morphing, trained for real?

    python benchmarks/search_digits.py digits.json        # on one core, most of an hour
    python benchmarks/search_digits.py digits.json --report

On scikit-learn's digits, by the benchmark's own engine and trainer: 40 trials of equal epochs,
5 seeds, each trial from the weights that it inherits, as a replica does. Networks are small ones
of ResNet-50's kind. The first trial of a seed is the same in all searches; the accuracy of a trial
is the best that its evaluations reached. A finished search is kept in the file, and the benchmark
goes on from there: when the searcher has changed, begin a new file.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from alone import measure_or_report, trained, trainer_alone
from peers import RandomMorphing, RegularisedEvolution, run
from side_by_side import machine

from aiperf_hpc.config import RunConfig, validate
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.grow import grow, inherit
from aiperf_hpc.morphism.operators.registry import from_data
from aiperf_hpc.morphism.search.base import Choice, Searcher
from aiperf_hpc.morphism.search.registry import bounds_of, load_searcher
from aiperf_hpc.morphism.weights.checkpoint import Weights, initial_weights
from aiperf_hpc.replica.data import digits
from aiperf_hpc.replica.data.arrays import ArrayDataset
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Engine
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import (
    Candidate,
    PlannedTrial,
    TrialProgress,
    configured_hyperparameters,
)
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import RoundPhase
from aiperf_hpc.workloads.registry import initial_graph

SEEDS, TRIALS, EPOCHS = 5, 40, 3
CONFIG = validate(
    {
        "dataset": {"name": "digits"},
        "model": {"stem": "cifar", "base_width": 4, "blocks": [1, 1, 1, 1]},
        "training": {
            "precision": "fp32",
            "batch_size": 64,
            "learning_rate": 0.01,
            "weight_decay": 1e-4,
            "checkpoint_seconds": 86_400.0,
        },
    },
    "benchmark",
)


def searchers(config: RunConfig) -> dict[str, Searcher]:
    """Return new ones, by the names in the file.

    Evolution grows the good ones too, so that its networks inherit about as much training as the
    guided search's; random morphing's inherit less.
    """
    peers = RandomMorphing(1), RandomMorphing(3), RegularisedEvolution(1)
    found = (load_searcher(config.search), *peers)
    return {searcher.name: searcher for searcher in found}


@dataclass(slots=True)
class Training:
    """Trains the trials of one search; remembers the weights that children inherit."""

    trainer: Trainer
    seed: int
    weights: dict[str, Weights] = field(default_factory=dict)
    """The weights of trials, after training; those of the initial graph under no name."""
    trials: list[dict[str, Any]] = field(default_factory=list)
    """The trials as the file has them."""

    def evaluate(self, trial: str, choice: Choice) -> float | None:
        """Train a choice; return its best validation accuracy, None where it failed."""
        rng = np.random.default_rng([self.seed, int(trial)])
        graph = choice.child
        if choice.morphisms:
            inherited = self.weights[choice.parent]
            weights = inherit(choice.graphs, inherited, choice.morphisms, rng)
        else:
            weights = initial_weights(graph, rng)
        result = trained(
            self.trainer,
            PlannedTrial(
                name=trial,
                round=1,
                phase=RoundPhase.WARMUP,
                candidate=Candidate(
                    graph, weights, choice.parent or None, morphisms=choice.morphisms
                ),
                hyperparameters=configured_hyperparameters(CONFIG.training),
                epoch_limit=EPOCHS,
                seed=int(rng.integers(2**31)),
                course=TrialProgress(trial=trial),
            ),
        )
        accuracy = None
        if result.weights is not None:
            self.weights[trial] = result.weights
            accuracy = max(result.values)
        self.trials.append(
            {
                "parent": choice.parent,
                "morphisms": [morphism.to_data() for morphism in choice.morphisms],
                "accuracy": accuracy,
                "reason": result.reason,
            }
        )
        return accuracy


def search(method: str, seed: int, engine: Engine, dataset: ArrayDataset) -> dict[str, Any]:
    """Search once; return what is kept of it."""
    initial = initial_graph(CONFIG, dataset.info)
    began, busy = time.perf_counter(), time.process_time()
    with trainer_alone(engine, dataset, CONFIG) as trainer:
        training = Training(trainer, seed)
        found = run(
            searchers(CONFIG)[method],
            initial,
            bounds_of(CONFIG.search, initial),
            TRIALS,
            training.evaluate,
            np.random.default_rng([seed, TRIALS]),
        )
    best = max(found.observations, key=lambda o: o.value)
    return {
        "method": method,
        "seed": seed,
        "trials": training.trials,
        "best_parameters": found.graphs[best.trial].parameter_count,
        "best_depth": found.graphs[best.trial].depth,
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - busy, 1),
    }


def measure(file: Path) -> None:
    """Add the searches that ``file`` does not have."""
    engine = load_engine("tensorflow", 1)
    dataset = digits.load(CONFIG.dataset, 1)
    searches = read(file)
    finished = {(s["method"], s["seed"]) for s in searches}
    for seed in range(SEEDS):
        for method in searchers(CONFIG):
            if (method, seed) in finished:
                continue
            searches.append(search(method, seed, engine, dataset))
            write_whole(file, json.dumps(searches, indent=1).encode())
            error, seconds = _best_error(searches[-1]), searches[-1]["seconds"]
            print(f"{method}, seed {seed}: best error {error:.4f}, {seconds} s", flush=True)


def read(file: Path) -> list[dict[str, Any]]:
    """Return the searches in ``file``, none where there is no file."""
    searches: list[dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.exists() else []
    return searches


def evaluated(found: dict[str, Any]) -> tuple[list[Graph], list[float]]:
    """Return the graphs that a search trained, grown again, and their accuracies."""
    graphs = {"": initial_graph(CONFIG, digits.load(CONFIG.dataset, 1).info)}
    accuracies: dict[str, float] = {}
    for number, trial in enumerate(found["trials"]):
        morphisms = map(from_data, trial["morphisms"])
        graphs[str(number)] = grow(graphs[trial["parent"]], morphisms)
        if trial["accuracy"] is not None:
            accuracies[str(number)] = trial["accuracy"]
    return [graphs[number] for number in accuracies], list(accuracies.values())


def _best_error(found: dict[str, Any], trials: int = TRIALS) -> float:
    accuracies: list[float | None] = [trial["accuracy"] for trial in found["trials"]]
    return 1.0 - max(a for a in accuracies[:trials] if a is not None)


def _line(trials: list[dict[str, Any]]) -> int:
    """Return how many trainings are in the weights of the best, its own included."""
    at, trainings = max(trials, key=lambda trial: float(trial["accuracy"] or 0.0)), 1
    while at["parent"]:
        at, trainings = trials[int(at["parent"])], trainings + 1
    return trainings


def report(file: Path) -> None:
    """Print the table, in Markdown."""
    searches = read(file)
    print(f"{machine()}; {TRIALS} trials of {EPOCHS} epochs; validation errors in percent\n")
    print(
        "| search | mean best error | of each seed | after 20 | trainings in the best's line "
        "| trials failed |"
    )
    print("|---" * 6 + "|")
    for method in searchers(CONFIG):
        own = sorted((s for s in searches if s["method"] == method), key=lambda s: int(s["seed"]))
        if not own:
            continue
        errors = [100.0 * _best_error(s) for s in own]
        early = fmean(100.0 * _best_error(s, TRIALS // 2) for s in own)
        each = ", ".join(f"{error:.2f}" for error in errors)
        line = fmean(_line(s["trials"]) for s in own)
        failed = sum(t["accuracy"] is None for s in own for t in s["trials"])
        print(f"| {method} | {fmean(errors):.3f} | {each} | {early:.3f} | {line:.1f} | {failed} |")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    measure_or_report(measure, report)
