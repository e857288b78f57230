"""An engine and a dataset that follow a script, so that a trainer's every turn can be tested."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, labelled_images
from aiperf_hpc.replica.engines.base import EvaluationSums, NetworkState, OptimizerState, evaluated
from aiperf_hpc.trial import DatasetInfo, Hyperparameters


@dataclass(slots=True)
class FakeDataset:
    """Samples whose label is their number, modulo ``classes``."""

    train_samples: int = 50
    validation_samples: int = 20
    classes: int = 4

    @property
    def info(self) -> DatasetInfo:
        return DatasetInfo.of_labelled_images(
            name="synthetic",
            sha256="0" * 64,
            classes=self.classes,
            shape=(6, 6, 2),
            train_samples=self.train_samples,
            validation_samples=self.validation_samples,
        )

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        return self._batches(self.train_samples, batch_size, part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        return self._batches(self.validation_samples, batch_size, part)

    def _batches(self, samples: int, batch_size: int, part: Part) -> Iterator[Batch]:
        for start in range(0, samples, batch_size):
            first, last = part.bounds(min(batch_size, samples - start))
            if first < last:
                labels = (np.arange(start + first, start + last) % self.classes).astype(np.int32)
                yield labelled_images(np.zeros((last - first, 6, 6, 2), np.float32), labels)


@dataclass(slots=True)
class Script:
    """What a fake network does. Lists are read one entry an epoch, the last one for ever."""

    losses: Sequence[float] = (1.0,)
    accuracies: Sequence[float] = (0.5,)
    build_error: Exception | None = None
    step_errors: dict[int, Exception] = field(default_factory=dict)
    """Errors that the training step with this number raises, counted from 0 over all epochs."""
    drain_errors: dict[int, AIPerfError] = field(default_factory=dict)
    """Errors that the n-th draining of training raises."""
    on_step: Callable[[int], None] = lambda _: None
    calibrates: tuple[str, ...] = ()
    calibration_error: AIPerfError | None = None
    step_seconds: float = 0.0
    predicts: bool = False
    """Whether it gives every sample the epoch's number, from 0, as its class."""


class FakeNetwork:
    """Counts what it is asked to do."""

    def __init__(self, script: Script, weights: Weights) -> None:
        self.script, self._weights = script, weights
        self.steps = self.drains = self.epoch = 0
        self.rates: list[float] = []
        self.batch_sizes: list[int] = []
        self._evaluated, self._drained, self._trains = 0, 0, True
        self.closed = False
        self.calibrated: list[tuple[int, int]] = []
        """The steps before each calibration, and its samples."""
        self.warmed: list[int] = []
        """The batch sizes that were warmed."""

    def warm(self, batch_size: int) -> None:
        self.warmed.append(batch_size)

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        if self.script.calibration_error is not None:
            raise self.script.calibration_error
        time.sleep(self.script.step_seconds)
        self.calibrated.append((self.steps, batch.size))
        return self.script.calibrates

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        if self.steps in self.script.step_errors:
            raise self.script.step_errors[self.steps]
        self.script.on_step(self.steps)
        time.sleep(self.script.step_seconds)
        self.epoch += not self._trains
        self._drained, self._trains = 0, True
        self.rates.append(learning_rate)
        self.batch_sizes.append(batch.size)
        self.steps += 1

    def drain_training(self) -> float:
        error = self.script.drain_errors.get(self.drains)
        self.drains += 1
        if error is not None:
            raise error
        return 1.0

    def evaluate_step(self, batch: Batch) -> None:
        self._evaluated += batch.size

    def drain_evaluation(self) -> EvaluationSums:
        samples, self._evaluated, self._trains = self._evaluated, 0, False
        place = self.epoch
        losses, accuracies = self.script.losses, self.script.accuracies
        loss = losses[min(place, len(losses) - 1)]
        accuracy = accuracies[min(place, len(accuracies) - 1)]
        before, self._drained = self._drained, self._drained + samples
        correct = round(accuracy * self._drained) - round(accuracy * before)
        predictions = np.full(samples, place) if self.script.predicts else None
        return evaluated(ACCURACY, loss * samples, samples, (correct,), predictions)

    def weights(self) -> Weights:
        return self._weights

    def optimizer_state(self) -> OptimizerState:
        return {"momentum:left_conv/kernel": np.full(3, self.steps, np.float32)}

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Makes fake networks, one for each entry of its script, the last one for ever."""

    name = "fake"
    objective = CLASSIFICATION
    versions: dict[str, str] = {}
    accelerators: tuple[str, ...] = ()
    memory_bytes = None
    warms_alone = False

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts or (Script(),)
        self.networks: list[FakeNetwork] = []
        self.states: list[OptimizerState | None] = []
        self.built: list[tuple[Graph, Hyperparameters]] = []
        self.compiled_ahead: list[tuple[Graph, str, int]] = []
        self.compiler_problem = ""
        """Why nothing is compiled ahead."""

    def compile_ahead(self, state: NetworkState) -> str:
        used = state.hyperparameters
        self.compiled_ahead.append((state.graph, used.precision, used.batch_size))
        return self.compiler_problem

    def build(self, state: NetworkState) -> FakeNetwork:
        self.states.append(state.optimizer_state)
        script = self._scripts[min(len(self.built), len(self._scripts) - 1)]
        self.built.append((state.graph, state.hyperparameters))
        if script.build_error is not None:
            raise script.build_error
        self.networks.append(FakeNetwork(script, state.weights))
        return self.networks[-1]
