"""Common parts of the networks of all frameworks: warm-up, calibration and sums over steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import NDArray

from aiperf_hpc.errors import NonFiniteLossError
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.weight_file import check_weights
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.base import (
    EvaluationSums,
    NetworkState,
    RankNetwork,
    empty_batch,
    evaluated,
    step_in_halves,
)


class FrameworkNetwork(RankNetwork, ABC):
    """Base class of the networks of all frameworks."""

    def __init__(self, state: NetworkState, objective: Objective) -> None:
        check_weights(state.graph, state.weights)
        self._graph = state.graph
        self._objective = objective
        self._measure = objective.quality
        self._transparent = transparent(state.graph, state.weights)
        self._steps = 0
        """Number of training steps since losses were last drained."""
        self._samples = 0
        """Number of samples evaluated since evaluations were last drained."""
        self._rows: list[Sequence[Any]] = []
        """The measure's rows, one entry per batch."""
        self._predicted: list[Any] = []
        """The most probable classes, one entry per batch."""

    @property
    def _sum_count(self) -> int:
        """Running sums of an evaluation: the loss and the sums of the measure."""
        return 1 + (0 if self._measure.rows else len(self._measure.sums))

    @abstractmethod
    def _restored(self, batch_size: int) -> AbstractContextManager[None]:
        """Return a context to execute steps of a batch size; on exit, all tensors are restored."""

    @abstractmethod
    def _take_loss(self) -> float:
        """Wait for all training steps; return and reset the sum of their losses."""

    @abstractmethod
    def _take_evaluation(self) -> list[float]:
        """Wait for all evaluation steps; return and reset their running sums."""

    @abstractmethod
    def _joined(self, parts: Sequence[Any]) -> NDArray[Any]:
        """Concatenate tensors of several batches to one array."""

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        batch = empty_batch(self._graph, self._objective, batch_size)
        counts = self._steps, self._samples, self._rows[:], self._predicted[:]
        try:
            with self._restored(batch_size):
                if halves:
                    step_in_halves(self, batch, 0.0)
                else:
                    self.train_step(batch, 0.0)
                self.evaluate_step(batch)
        finally:
            self._steps, self._samples, self._rows, self._predicted = counts

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        return calibrate(self._graph, self._transparent, lambda: self.moments(batch), self.assign)

    def drain_training(self) -> float:
        loss, steps, self._steps = self._take_loss(), self._steps, 0
        return _finite(loss, "training") / max(steps, 1)

    def drain_evaluation(self) -> EvaluationSums:
        loss, *sums = self._take_evaluation()
        rows = [self._joined(part) for part in zip(*self._rows, strict=True)]
        predicted = self._joined(self._predicted) if self._predicted else None
        samples, self._samples, self._rows, self._predicted = self._samples, 0, [], []
        return evaluated(
            self._measure, _finite(loss, "validation"), samples, rows or sums, predicted
        )


def _finite(loss: float, phase: str) -> float:
    if not math.isfinite(loss):
        raise NonFiniteLossError(
            f"the {phase} loss is not finite; a lower training.learning_rate may help"
        )
    return loss
