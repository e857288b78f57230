"""Run on every rank: all train in step, and rank 0 prints how far one process alone ends up.

mpirun -np 2 python tests/replica/parallel/ranks_against_one.py mpi tensorflow lamb asgd
"""

from __future__ import annotations

import json
import sys

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.graph import Conv2D, Dense, GlobalAveragePool2D, Graph, Input, Node, ReLU, Softmax
from aiperf_hpc.morphism.operators.morphisms import Deeper, grow_with_weights
from aiperf_hpc.morphism.weights.weight_file import Weights, initial_weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.replica.data import Dataset, load_dataset
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Engine, NetworkState
from aiperf_hpc.replica.parallel.collectives import join
from aiperf_hpc.replica.parallel.follower import follow
from aiperf_hpc.replica.parallel.handshake import Ranks, facts_of
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine
from aiperf_hpc.replica.parallel.protocol import Command, announce
from aiperf_hpc.trial import Hyperparameters

GRAPH = Graph(
    (
        Node("image", Input((8, 8, 1))),
        Node("one", Conv2D(6, 3), ("image",)),
        Node("one_relu", ReLU(), ("one",)),
        Node("two", Conv2D(8, 3, 2), ("one_relu",)),
        Node("two_relu", ReLU(), ("two",)),
        Node("pool", GlobalAveragePool2D(), ("two_relu",)),
        Node("dense", Dense(10), ("pool",)),
        Node("softmax", Softmax(), ("dense",)),
    )
)
"""Without batch normalisation, whose statistics are those of each rank's part."""
USED = Hyperparameters(
    batch_size=100,
    learning_rate=0.05,
    weight_decay=1e-4,
    label_smoothing=0.1,
)


def train(
    engine: Engine | LeadingEngine, dataset: Dataset
) -> tuple[Weights, list[float], list[int]]:
    """Train one epoch and evaluate; the last batches are smaller than the others."""
    network = engine.build(
        NetworkState(GRAPH, initial_weights(GRAPH, np.random.default_rng(0)), USED)
    )
    said = []
    for batch in dataset.train(1, USED.batch_size, 3):
        network.train_step(batch, 0.05)
    said.append(network.drain_training())
    for batch in dataset.validation(USED.batch_size):
        network.evaluate_step(batch)
    sums = network.drain_evaluation()
    said += [sums.mean_loss, sums.sums(ACCURACY)["correct"], float(sums.samples)]
    weights = network.weights()
    network.close()
    assert sums.predictions is not None
    return weights, said, sums.predictions.tolist()


def trained_in_two_lives(
    engine: Engine | LeadingEngine, dataset: Dataset, optimizer: str
) -> Weights:
    """Train half an epoch, and the other half from the weights and the state after it."""
    used = USED.model_copy(
        update={"optimizer": optimizer, "weight_decay": 0.1, "max_gradient_norm": 0.5}
    )
    network = engine.build(
        NetworkState(GRAPH, initial_weights(GRAPH, np.random.default_rng(0)), used)
    )
    for step, batch in enumerate(dataset.train(1, used.batch_size, 3)):
        if step == 7:
            weights, state = network.weights(), network.optimizer_state()
            network.close()
            network = engine.build(NetworkState(GRAPH, weights, used, state))
        network.train_step(batch, 0.01)
    weights = network.weights()
    network.close()
    return weights


def calibrated(engine: Engine | LeadingEngine, dataset: Dataset) -> tuple[str, ...]:
    """Train one epoch with batch normalisation inserted; that the ranks agree is checked there."""
    rng = np.random.default_rng(0)
    grown = grow_with_weights(GRAPH, initial_weights(GRAPH, rng), [Deeper("one_relu", 3)], rng)
    network = engine.build(NetworkState(*grown, USED))
    names: tuple[str, ...] = ()
    for batch in dataset.train(1, USED.batch_size, 3):
        names = names or network.calibrate(batch)
        network.train_step(batch, 0.05)
    for batch in dataset.validation(USED.batch_size):
        network.evaluate_step(batch)
    network.drain_evaluation()
    network.close()
    return names


def error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def main() -> None:
    _, collective, name, *optimizers = sys.argv
    ranks = Ranks(join(collective))
    objective = CLASSIFICATION.model_copy(update={"predictions": True})
    engine = load_engine(name, 1, objective=objective)
    dataset = load_dataset(DatasetConfig(name="digits"), 1)
    ranks.handshake(facts_of(engine.versions, dataset.info, 0), probe=engine.probe())
    if ranks.collective.rank:
        follow(engine, dataset, ranks.collective)
    else:
        leading = (
            LeadingEngine(engine, ranks.collective),
            LeadingDataset(dataset, ranks.collective),
        )
        together, said, predicted = train(*leading)
        names = calibrated(*leading)
        others = {name: trained_in_two_lives(*leading, name) for name in optimizers}
        announce(ranks.collective, Command.END)
        alone, expected, predicted_alone = train(engine, dataset)
        worst = max(error(together[name], alone[name]) for name in alone)
        errors: dict[str, float] = {}
        for optimizer, found in others.items():
            wanted = trained_in_two_lives(engine, dataset, optimizer)
            errors[optimizer] = max(error(found[name], wanted[name]) for name in wanted)
        told: dict[str, object] = {
            "error": worst,
            "together": said,
            "alone": expected,
            "calibrated": names,
        }
        told |= {"predictions": [predicted, predicted_alone], "optimizers": errors}
        text = json.dumps(told | {"compiler": "torch._dynamo" in sys.modules})
        sys.stdout.write(f"{text}\n")
    ranks.collective.close()


if __name__ == "__main__":
    main()
