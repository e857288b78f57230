"""Does TPE learn from the handful of trials that a replica makes? On known response surfaces.

    python benchmarks/hpo.py        # a table in Markdown, about a minute

Accuracy is the worth of a round's graph, a random walk over the rounds, plus an effect of the
hyperparameters that is best at one point, drawn by seed, plus noise. 8 rounds of 3 trials, the
paper's space, and one with a learning rate. Compared are the replica's own study, Optuna's TPE
told the accuracies as they are, and random draws.

Regret is how much accuracy the hyperparameters of trials 13 to 24 lose to the best point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import optuna
from optuna.storages import InMemoryStorage

from aiperf_hpc.config import HpoConfig, Integers, Reals, SpaceConfig
from aiperf_hpc.graph import BatchNorm, Conv2D, Dense, GlobalAveragePool2D, Graph, Input, Node, ReLU
from aiperf_hpc.graph import Softmax as Probabilities
from aiperf_hpc.morphism.operators.deeper import Deeper
from aiperf_hpc.morphism.operators.grow import grow
from aiperf_hpc.replica.trials.hpo import Hpo
from aiperf_hpc.trial import Hyperparameters

SEEDS, ROUNDS, TRIALS = 30, 8, 3
BASE = Hyperparameters(batch_size=448, learning_rate=0.1)
PAPERS = SpaceConfig()
WIDER = SpaceConfig(
    batch_size=Integers(low=256, high=448, step=8), learning_rate=Reals(low=0.01, high=1.0)
)
LOSSES = {"batch_size": 0.04, "kernel_size": 0.02, "learning_rate": 0.03}
"""Accuracy that is lost a factor of two away from the best point, at full strength."""


@dataclass(frozen=True, slots=True)
class Surface:
    """A response surface. All figures are accuracies, but ``strength``."""

    name: str
    space: SpaceConfig
    strength: float
    walk: float
    """The deviation of a step of the graphs' worth from one round to the next."""
    noise: float = 0.003

    def draw(self, rng: np.random.Generator) -> Hyperparameters:
        """Draw a point of the space at random."""
        rate = self.space.learning_rate
        return Hyperparameters(
            batch_size=int(rng.choice(self.space.batch_size.values)),
            kernel_size=int(rng.choice(self.space.kernel_size.values)),
            learning_rate=BASE.learning_rate
            if rate is None
            else math.exp(rng.uniform(math.log(rate.low), math.log(rate.high))),
        )

    def loss(self, chosen: Hyperparameters, best: Hyperparameters) -> float:
        """Return what ``chosen`` loses to ``best``."""
        pairs = ((name, getattr(chosen, name), getattr(best, name)) for name in LOSSES)
        return self.strength * sum(
            LOSSES[name] * abs(math.log2(one / other)) for name, one, other in pairs
        )


SURFACES = (
    Surface("paper's space, strong effects, one graph", PAPERS, 1.0, 0.0),
    Surface("paper's space, strong effects, graphs differ", PAPERS, 1.0, 0.03),
    Surface("paper's space, weak effects, graphs differ", PAPERS, 0.3, 0.01),
    Surface("with learning rate, strong effects, one graph", WIDER, 1.0, 0.0),
    Surface("with learning rate, strong effects, graphs differ", WIDER, 1.0, 0.03),
    Surface("with learning rate, weak effects, graphs differ", WIDER, 0.3, 0.01),
)

Ask = Callable[[int, Hyperparameters | None], Hyperparameters]
"""What suggests hyperparameters for a round; at its first trial, with what was best so far."""
Told = Callable[[float], None]
Method = Callable[[Surface, int], tuple[Ask, Told]]


def regret(surface: Surface, method: Method, seed: int) -> float:
    """Return the mean loss of the later half of the trials."""
    rng = np.random.default_rng(seed)
    best, worth = surface.draw(rng), 0.5
    ask, tell = method(surface, seed)
    losses: list[float] = []
    leader: tuple[float, Hyperparameters] | None = None
    for round_ in range(ROUNDS):
        worth += surface.walk * (0.5 + float(rng.standard_normal()))
        parent = leader[1] if leader else None
        for trial in range(TRIALS):
            chosen = ask(round_, parent if trial == 0 else None)
            losses.append(surface.loss(chosen, best))
            accuracy = worth - losses[-1] + surface.noise * float(rng.standard_normal())
            tell(accuracy)
            if leader is None or accuracy > leader[0]:
                leader = accuracy, chosen
    return fmean(losses[len(losses) // 2 :])


def ours(surface: Surface, seed: int) -> tuple[Ask, Told]:
    """The study of a replica, as its rounds use it."""
    graph = _graph()
    config = HpoConfig(space=surface.space)
    study = Hpo(config, BASE, InMemoryStorage(), "r0", seed, lambda graph, size: True)
    asked = []

    def ask(round_: int, parent: Hyperparameters | None) -> Hyperparameters:
        asked.append(study.suggest(graph, round_, parent))
        return asked[-1].hyperparameters

    return ask, lambda accuracy: study.completed(asked[-1], accuracy)


def plain(surface: Surface, seed: int) -> tuple[Ask, Told]:
    """Optuna's TPE with the same start-up trials, told accuracies."""
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=HpoConfig().startup_trials)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trials: list[optuna.Trial] = []

    def ask(round_: int, parent: Hyperparameters | None) -> Hyperparameters:
        trial = study.ask()
        trials.append(trial)
        size, rate = surface.space.batch_size, surface.space.learning_rate
        return Hyperparameters(
            batch_size=trial.suggest_int(
                "batch_size", size.values[0], size.values[-1], step=size.step
            ),
            kernel_size=trial.suggest_int("kernel_size", 3, 7, step=2),
            learning_rate=trial.suggest_float("learning_rate", rate.low, rate.high, log=True)
            if rate
            else BASE.learning_rate,
        )

    return ask, lambda accuracy: study.tell(trials[-1], accuracy) and None


def random(surface: Surface, seed: int) -> tuple[Ask, Told]:
    """Random draws."""
    rng = np.random.default_rng([seed, 1])
    return lambda round_, parent: surface.draw(rng), lambda accuracy: None


def _graph() -> Graph:
    """Return a small graph with an inserted convolution, whose kernel size can be chosen."""
    nodes = (
        Node("image", Input((8, 8, 3))),
        Node("conv", Conv2D(4, 3), ("image",)),
        Node("norm", BatchNorm(), ("conv",)),
        Node("relu", ReLU(), ("norm",)),
        Node("pool", GlobalAveragePool2D(), ("relu",)),
        Node("logits", Dense(2), ("pool",)),
        Node("probabilities", Probabilities(), ("logits",)),
    )
    return grow(Graph(nodes), [Deeper("relu", 3)])


def main() -> None:
    """Print the table."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(f"Mean regret of {SEEDS} seeds; in brackets: share of seeds with less than random's.\n")
    print("| surface | random | Optuna's TPE | the replica's study |")
    print("|---|---|---|---|", flush=True)
    for surface in SURFACES:
        of = {
            method: [regret(surface, method, seed) for seed in range(SEEDS)]
            for method in (random, plain, ours)
        }
        shown = [f"{fmean(of[random]):.4f}"]
        for method in (plain, ours):
            less = fmean(a < b for a, b in zip(of[method], of[random], strict=True))
            shown.append(f"{fmean(of[method]):.4f} ({less:.0%})")
        print(f"| {surface.name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
