"""One trial of an NNI experiment: trains the graph that it is given on scikit-learn's digits.

    python trial.py FOLDER EPOCHS

It starts from its parent's trained weights, and leaves its own in FOLDER for its children, with a
JSON file that says what it trained and what it reached.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nni
import numpy as np

from aiperf_hpc.config import DatasetConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import from_data, grow_with_weights
from aiperf_hpc.morphism.weights.weight_file import (
    Weights,
    initial_weights,
    load_checkpoint,
    save_checkpoint,
)
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.replica.data import Dataset, load_dataset
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Network, NetworkState
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import Hyperparameters

USED = Hyperparameters(batch_size=64, learning_rate=0.05)
SEED = 0


def main(folder: Path, epochs: int) -> None:
    """Train, leave weights and result, report."""
    parameters = nni.get_next_parameter()
    graph, weights = begin(parameters, folder)
    dataset = load_dataset(DatasetConfig(name="digits"), cores=1)
    network = load_engine("tensorflow", cores=1).build(NetworkState(graph, weights, USED))
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        accuracy = train(network, dataset, epoch, epochs)
        nni.report_intermediate_result(accuracy)
    name = parameters["trial"]
    save_checkpoint(folder / f"{name}.safetensors", graph, network.weights())
    result = {"trial": name, "hash": graph.hash, "accuracy": accuracy, "job": nni.get_trial_id()}
    write_whole(folder / f"{name}.json", json.dumps(result))
    nni.report_final_result(accuracy)


def begin(parameters: dict[str, Any], folder: Path) -> tuple[Graph, Weights]:
    """Return the graph to train and the weights to start from: its parent's, where it has one."""
    graph, rng = Graph.from_json(parameters["graph"]), np.random.default_rng(SEED)
    parent = folder / f"{parameters['parent']}.safetensors"
    if not parent.exists():  # The initial graph, or one proposed before that was trained.
        return graph, initial_weights(graph, rng)
    steps = [from_data(data) for data in parameters["morphisms"]]
    return grow_with_weights(*load_checkpoint(parent), steps, rng)


def train(network: Network, dataset: Dataset, epoch: int, epochs: int) -> float:
    """Train on every sample once; return the validation accuracy."""
    steps = -(-dataset.info.train_samples // USED.batch_size)
    batches = dataset.train(epoch, USED.batch_size, SEED)
    for step, batch in enumerate(batches, (epoch - 1) * steps):
        if step == 0:
            network.calibrate(batch)
        network.train_step(batch, USED.learning_rate * (1.0 - step / (epochs * steps)))
    network.drain_training()
    for batch in dataset.validation(USED.batch_size):
        network.evaluate_step(batch)
    evaluation = network.drain_evaluation()
    return ACCURACY.quality(evaluation.sums(ACCURACY), evaluation.samples)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
