"""Re-execution of an epoch from its checkpoints gives the recorded results."""

from __future__ import annotations

import io
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.engine_steps import ENGINES
from tests.support.networks import flat_images, sequential

from aiperf_hpc.config import validate
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.graph import BatchNorm, Conv2D, Dense, GlobalAveragePool2D, Input, ReLU, Softmax
from aiperf_hpc.morphism.weights.weight_file import file_digest, initial_weights
from aiperf_hpc.replica.data import Batch, load_dataset
from aiperf_hpc.replica.data.generated import TRAINING, GeneratedDataset
from aiperf_hpc.replica.engines import engine_for
from aiperf_hpc.replica.engines.base import Network, NetworkState
from aiperf_hpc.replica.reexecution import execute, main, make_samples
from aiperf_hpc.replica.training.checkpoint import save_training
from aiperf_hpc.replica.training.trial import (
    TrainingState,
    TrialProgress,
    configured_hyperparameters,
)
from aiperf_hpc.run.replica_requests import (
    ExecutionRequest,
    ExecutionResult,
    RecordedEpoch,
    SavedCheckpoint,
)
from aiperf_hpc.trial import DatasetInfo, Hyperparameters

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

    def __init__(self, folder: Path, engine: str) -> None:
        training = {"precision": "fp32", "batch_size": 100, "learning_rate": 0.05}
        values = {"dataset": {"name": "digits"}, "training": training, "engine": {"name": engine}}
        self.config = validate(values, "test")
        self.dataset = load_dataset(self.config.dataset, 2, engine)
        self.graph = GRAPH
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

    def _epoch(self, network: Network, epoch: int) -> float:
        steps = math.ceil(self.dataset.info.train_samples / self.used.batch_size)
        batches = self.dataset.train(epoch, self.used.batch_size, SEED)
        for step, batch in enumerate(batches, (epoch - 1) * steps):
            # The linear schedule.
            network.train_step(batch, self.used.learning_rate * (1.0 - step / (LIMIT * steps)))
        loss = network.drain_training()
        for batch in self.dataset.validation(self.used.batch_size):
            network.evaluate_step(batch)
        found = network.drain_evaluation()
        self.evaluations.append((found.mean_loss, float(found.parts["correct"])))
        return loss

    def _stored(self, path: Path, network: Network, epochs: int) -> SavedCheckpoint:
        progress = TrialProgress(trial="t", epochs=epochs)
        state = network.optimizer_state()
        save_training(path, TrainingState(progress, self.graph, network.weights(), state))
        return SavedCheckpoint(path=str(path), sha256=file_digest(path))

    def request(self, **changed: object) -> ExecutionRequest:
        epoch = RecordedEpoch(
            trial="t", graph=self.graph.to_json(), hyperparameters=self.used, seed=SEED, ranks=1,
            epoch=2, epoch_limit=LIMIT, losses=(1.0,),
            start_checkpoint=self.began, end_checkpoint=self.evaluated,
        )  # fmt: skip
        epochs = (epoch.model_copy(update=changed),)
        return ExecutionRequest(config=self.config, dataset=self.dataset.info, epochs=epochs)


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in all tests, because TensorFlow's threads are set once per process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})


@pytest.fixture(scope="module", params=ENGINES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def torchs(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("torch"), "torch")


def test_recorded_results_are_reproduced(recorded: Recorded) -> None:
    result = execute(recorded.request())
    assert result.engine == recorded.config.engine.name
    (again,) = result.epochs
    assert again.failure == ""
    assert again.train_loss == pytest.approx(recorded.losses[1], rel=1e-5)
    first, second = recorded.evaluations
    for found, (loss, correct) in (
        (again.before, first), (again.evaluated, second), (again.after, second)
    ):  # fmt: skip
        assert found is not None
        assert found.loss == pytest.approx(loss, rel=1e-5)
        assert (found.sums["correct"], found.samples) == (correct, 360)
    assert again.operations is not None


def test_another_order_of_samples_gives_another_loss(torchs: Recorded) -> None:
    (again,) = execute(torchs.request(seed=SEED + 1)).epochs
    assert again.train_loss != pytest.approx(torchs.losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"end_checkpoint": SavedCheckpoint(path="/nowhere", sha256="0")}, "No such file"),
        ({"graph": flat_images().to_json()}, "holds the graph"),
        ({"seed": -1}, "unexpected ValueError: "),
        (
            {"hyperparameters": Hyperparameters(batch_size=9, learning_rate=0.1, precision="fp8")},
            "unexpected KeyError: 'fp8'",
        ),
    ],
)
def test_an_epoch_that_cannot_be_executed_has_a_reason(
    torchs: Recorded, changed: dict[str, object], why: str
) -> None:
    (again,) = execute(torchs.request(**changed)).epochs
    assert why in again.failure
    assert again.evaluated is None


def test_a_replaced_checkpoint_is_rejected(torchs: Recorded) -> None:
    other = torchs.began.model_copy(update={"sha256": torchs.evaluated.sha256})
    (again,) = execute(torchs.request(start_checkpoint=other)).epochs
    assert "is not the file that was recorded" in again.failure


def test_another_dataset_is_rejected(torchs: Recorded) -> None:
    request = torchs.request()
    other = request.dataset.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(DatasetError, match="is not the run's"):
        execute(request.model_copy(update={"dataset": other}))


def test_the_program_reads_a_request_and_writes_the_result(
    torchs: Recorded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(text: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return main(["--out", str(tmp_path / "result.json")])

    nothing = torchs.request().model_copy(update={"epochs": ()})
    assert run(nothing.model_dump_json()) == 0
    assert ExecutionResult.model_validate_json((tmp_path / "result.json").read_text()).epochs == ()
    assert run("{}") == 2
    assert "standard input: config" in capsys.readouterr().err


@pytest.mark.parametrize(("epoch", "made"), [(1, []), (2, list(range(5)))])
def test_samples_are_generated_before_a_later_epoch_is_timed(epoch: int, made: list[int]) -> None:
    asked: list[int] = []

    def make(part: int, chosen: NDArray[np.intp]) -> Batch:
        assert part == TRAINING
        asked.extend(chosen.tolist())
        return Batch({}, {})

    info = DatasetInfo(
        name="made", sha256="0" * 64, inputs={}, targets={}, train_samples=5, validation_samples=2
    )
    make_samples(GeneratedDataset(info, make), epoch, 2, 7)
    assert sorted(asked) == made
