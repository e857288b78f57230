"""Two trained epochs of the digits, with the records of the second, for its re-execution."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from tests.support.networks import sequential

from aiperf_hpc.config import validate
from aiperf_hpc.graph import (
    BatchNorm,
    Conv2D,
    Dense,
    GlobalAveragePool2D,
    Graph,
    Input,
    ReLU,
    Softmax,
)
from aiperf_hpc.morphism.weights.weight_file import file_digest, initial_weights
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.data import Batch, load_dataset
from aiperf_hpc.replica.engines import engine_for
from aiperf_hpc.replica.engines.base import EvaluationSums, Network, NetworkState
from aiperf_hpc.replica.training.checkpoint import save_training
from aiperf_hpc.replica.training.credit import IntervalLosses
from aiperf_hpc.replica.training.trial import (
    TrainingState,
    TrialProgress,
    configured_hyperparameters,
)
from aiperf_hpc.run.replica_requests import ExecutionRequest, RecordedEpoch, SavedCheckpoint

LIMIT, SEED = 3, 7
"""Epoch limit, over which the learning rate decreases, and seed of the order of samples."""

GRAPH = sequential(
    image=Input((8, 8, 1)),
    conv=Conv2D(8, 3),
    norm=BatchNorm(),
    relu=ReLU(),
    pool=GlobalAveragePool2D(),
    dense=Dense(10),
    softmax=Softmax(),
)


class Recorded:
    """Two trained epochs, with the records of the second."""

    graph: Graph = GRAPH

    def __init__(self, folder: Path, engine: str, **training: object) -> None:
        training = {"precision": "fp32", "batch_size": 100, "learning_rate": 0.05} | training
        values = {"dataset": {"name": "digits"}, "training": training, "engine": {"name": engine}}
        self.config = validate(values, "test")
        self.dataset = load_dataset(self.config.dataset, 2, engine)
        self.used = configured_hyperparameters(self.config.training)
        self.evaluations: list[tuple[float, float]] = []
        """Loss and correct samples after each epoch."""
        weights = initial_weights(self.graph, np.random.default_rng(0))
        network = engine_for(self.config, 2).build(NetworkState(self.graph, weights, self.used))
        self.losses = [self._epoch(network, 1)]
        self.began = self._stored(folder / "began", network, 1)
        self.losses.append(self._epoch(network, 2))
        self.evaluated = self._stored(folder / "evaluated", network, 2)
        network.close()

    def train_step(self, network: Network, batch: Batch, rate: float, step: int) -> None:
        """Train on a batch, the one of this number in its epoch."""
        del step
        network.train_step(batch, rate)

    def evaluate_step(self, network: Network, batch: Batch) -> None:
        network.evaluate_step(batch)

    def _epoch(self, network: Network, epoch: int) -> float:
        steps = math.ceil(self.dataset.info.train_samples / self.used.batch_size)
        batches = self.dataset.train(epoch, self.used.batch_size, SEED)
        self.trained, self.validated = IntervalLosses(), IntervalLosses()
        for step, batch in enumerate(batches):
            # The linear schedule.
            done = (epoch - 1) * steps + step
            rate = self.used.learning_rate * (1.0 - done / (LIMIT * steps))
            self.train_step(network, batch, rate, step)
            if self.trained.executed() or step == steps - 1:
                self.trained.add(network.drain_training(), self.trained.pending)
        found, objective = EvaluationSums(), CLASSIFICATION.quality
        for batch in self.dataset.validation(self.used.batch_size):
            self.evaluate_step(network, batch)
            self.validated.executed()
            part = network.drain_evaluation()
            self.validated.add(part.mean_loss, part.samples)
            found = found.merged(part, objective)
        self.evaluations.append((found.mean_loss, float(found.parts["correct"])))
        return self.trained.mean

    def _stored(self, path: Path, network: Network, epochs: int) -> SavedCheckpoint:
        progress = TrialProgress(
            trial="t",
            epochs=epochs,
            train_losses=self.trained.means,
            validation_losses=self.validated.means,
        )
        state = network.optimizer_state()
        save_training(path, TrainingState(progress, self.graph, network.weights(), state))
        return SavedCheckpoint(path=str(path), sha256=file_digest(path))

    def request(self, **changed: object) -> ExecutionRequest:
        """Return the request to re-execute the second epoch."""
        epoch = RecordedEpoch(
            trial="t", graph=self.graph.to_json(), hyperparameters=self.used, seed=SEED, ranks=1,
            epoch=2, epoch_limit=LIMIT, losses=(1.0,),
            start_checkpoint=self.began, end_checkpoint=self.evaluated,
        )  # fmt: skip
        epochs = (epoch.model_copy(update=changed),)
        return ExecutionRequest(config=self.config, dataset=self.dataset.info, epochs=epochs)
