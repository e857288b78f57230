"""Synchronous data-parallel training of one network on all ranks of a replica.

Every rank holds the whole network and trains on its shard of each batch. Gradients are summed over
the ranks before each update, so all ranks keep the same weights. A trial's batch size is that of
the whole replica.

If a rank fails, it contributes zeros until the next agreement, at which all ranks learn of the
failure and raise it. No rank waits forever, and samples since the failure are not credited.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import AIPerfError, EngineError, NonFiniteLossError, without_frames
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.objective import Objective
from aiperf_hpc.replica.data.base import Batch, Dataset, Part
from aiperf_hpc.replica.engines.base import (
    EvaluationSums,
    NetworkState,
    PendingChecksum,
    RankNetwork,
    evaluated,
)
from aiperf_hpc.replica.parallel.collectives import Buffer, Collective, Copies, PendingSum
from aiperf_hpc.run.records import StepTimes
from aiperf_hpc.trial import StepPart

CHECK_STEPS = 100
"""Training steps between two checks that the ranks' weights are equal."""
CHECK_DELAY = 2
"""Steps submitted while a check runs, so that the accelerator's queue never drains."""

_TRAINING, _EVALUATION = "its device's training steps", "its device's evaluation steps"
"""Name of the wait for the device; on accelerators it includes the wait for reductions."""

PARTS = tuple(StepPart)

Take = Callable[[], Batch]
"""Returns this rank's shard of a batch, or raises an error of its data."""


class RankDataset:
    """Input of one rank: its shard of every batch. All ranks have the same number of batches."""

    def __init__(self, dataset: Dataset, part: Part) -> None:
        self.info = dataset.info
        self._dataset = dataset
        self._part = part

    def train(self, epoch: int, batch_size: int, seed: int) -> Iterator[Batch]:
        """Yield this rank's shard of every batch of an epoch."""
        batches = self._dataset.train(epoch, batch_size, seed, self._part)
        return self._parts(batches, self.info.train_samples, batch_size)

    def validation(self, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's shard of every batch of the validation samples."""
        batches = self._dataset.validation(batch_size, self._part)
        return self._parts(batches, self.info.validation_samples, batch_size)

    def _parts(self, batches: Iterator[Batch], samples: int, batch_size: int) -> Iterator[Batch]:
        """Yield a shard of every batch of an epoch; it may be empty."""
        for start in range(0, samples, batch_size):
            whole = min(batch_size, samples - start)
            first, last = self._part.bounds(whole)
            if first == last:
                yield Batch({}, {}, whole)
                continue
            batch = next(batches, None)
            if batch is None or batch.size != last - first:
                size = 0 if batch is None else batch.size
                raise EngineError(
                    f"rank {self._part.rank} got {size} of the {last - first} samples that are "
                    "its part"
                )
            yield Batch(batch.inputs, batch.targets, whole)


class StepClock:
    """Stopwatch of the parts of a step. It needs no barrier."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._steps = 0
        self._since = 0.0
        self._begun = dict(self._seconds)
        """``_seconds`` at the beginning of the current step."""
        self._apart = {StepPart.WAIT: 0.0, StepPart.REDUCE: 0.0}
        """Seconds of wait and reduction over all steps that measured them separately."""

    def begin(self) -> None:
        """Start a lap; the time before it is not counted."""
        self._since = time.perf_counter()

    def book(self, part: StepPart) -> None:
        """End a lap and start the next one; copies in it count as copies."""
        now = time.perf_counter()
        copied = self._copies.take()
        self._seconds[StepPart.COPY_IN] += copied
        self._seconds[part] += now - self._since - copied
        self._since = now

    def count(self, *, waited_apart: bool) -> None:
        """Complete a step.

        Args:
            waited_apart: whether the wait for other ranks was measured separately from the
                reduction. Otherwise their sum is split in the proportion of the steps that did.
        """
        self._steps += 1
        taken = {part: self._seconds[part] - self._begun[part] for part in self._apart}
        if waited_apart:
            for part, seconds in taken.items():
                self._apart[part] += seconds
        elif whole := sum(self._apart.values()):
            both = sum(taken.values())
            for part, seconds in taken.items():
                self._seconds[part] += both * self._apart[part] / whole - seconds
        self._begun = dict(self._seconds)

    def take(self) -> Sequence[float]:
        """Return the number of steps and the seconds of each part since the last call."""
        taken = (float(self._steps), *self._seconds.values())
        self._steps = 0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._begun = dict(self._seconds)
        return taken


@dataclass(eq=False)
class DataParallelNetwork:
    """A network on all ranks, which make the same calls in the same order."""

    local: RankNetwork
    """The network of this rank."""
    state: InitVar[NetworkState]
    """State from which the network was built."""
    collective: Collective
    objective: InitVar[Objective]

    def __post_init__(self, state: NetworkState, objective: Objective) -> None:
        self._graph = state.graph
        self._measure = objective.quality
        self._predicts = objective.predictions
        self._transparent = transparent(state.graph, state.weights)
        self._moments_size = sum(math.prod(shape) for shape in state.graph.statistics.values())
        self._steps = 0
        self._checking: tuple[int, PendingChecksum] | None = None
        """Step at which the last checksum of the weights started, and its pending result."""
        self._clock = StepClock(self.collective.copies)
        self._step_times = np.zeros(1 + len(PARTS))
        """Number of steps and seconds of their parts, averaged over all ranks."""
        self._trained = False
        self.failure: AIPerfError | None = None
        """First failure of this rank since the last agreement."""
        self._executed = self._given = 0
        """Samples that this rank has trained on since then, and those of the whole batches."""
        self._to_evaluate: list[int] = []
        """Global size of each batch that is being evaluated."""

    def calibrate(self, take: Take) -> tuple[str, ...]:
        """Calibrate inserted normalizations on one batch, of which ``take`` returns a shard.

        Each rank normalizes by its own shard, but all ranks have the same weights: they are
        computed from the mean of the shards' moments over all samples.

        Raises:
            AIPerfError: it failed on this or another rank.
        """
        return calibrate(
            self._graph, self._transparent, lambda: self._moments(take), self.local.assign
        )

    def _moments(self, take: Take) -> NDArray[np.float64]:
        """Return the mean of all ranks' moments, equal on every rank."""
        flat = np.zeros(self._moments_size + 1, np.float64)
        failure: AIPerfError | None = None
        try:
            batch = take()
            if batch.size:
                flat[:-1] = self.local.moments(batch)
                flat *= batch.size / batch.whole
        except AIPerfError as error:
            failure, flat[-1] = without_frames(error), 1.0
        self.collective.allreduce_sum(flat)
        self._agree(failure, round(float(flat[-1])))
        return flat[:-1]

    def train_step(self, take: Take, learning_rate: float, *, agreed: bool = True) -> None:
        """Train on one batch.

        Args:
            take: returns this rank's shard of the batch.
            learning_rate: learning rate of the update.
            agreed: whether the ranks agree before the update that none has failed. In other steps
                a failed rank contributes zeros until the next agreement.

        Raises:
            EngineError: a step failed on any rank; all ranks raise in the same call.
        """
        network, clock, pending = self.local, self._clock, list[PendingSum]()

        def ready(bucket: Buffer) -> None:
            clock.book(StepPart.COMPUTE)
            pending.append(self.collective.start_allreduce_sum(bucket))
            clock.book(StepPart.QUEUE)

        clock.begin()
        with self._catching():
            batch = take()
            self._given += batch.whole
            clock.begin()
            with self.collective.waiting(_TRAINING):
                network.await_room()
            if self.failure is None:
                network.gradients(batch, batch.size / batch.whole, ready)
                self._executed += batch.size
        # The others wait for every bucket, also from a failed rank.
        for bucket in range(len(pending), len(network.buckets)):
            ready(network.zeros(bucket))
        clock.book(StepPart.COMPUTE)
        agreement = self._training_sums() if agreed else None
        clock.book(StepPart.WAIT)
        reduced = [wait() for wait in pending]
        clock.book(StepPart.REDUCE)
        if agreement is not None:
            self._agree_on_training(*agreement)
        with self.collective.waiting(_TRAINING):  # Some updates in fp16 need a value.
            network.apply(reduced, learning_rate)
        clock.book(StepPart.COMPUTE)
        clock.count(waited_apart=agreed)
        self._trained = True
        self._steps += 1
        if self._checking is not None and self._steps - self._checking[0] >= CHECK_DELAY:
            self._compare(*self._checking)
        if self._steps % CHECK_STEPS == 0:
            self._checking = self._steps, self.local.checksum()

    @contextmanager
    def _catching(self) -> Iterator[None]:
        """Keep this rank's first failure until the next agreement."""
        try:
            yield
        except AIPerfError as error:
            self.failure = self.failure or without_frames(error)

    def _training_sums(self, *others: float) -> list[float]:
        """Return the sums of the agreed totals and of ``others`` over all ranks."""
        return self._sums(self._executed, self.failure is not None, *others)

    def _agree_on_training(self, executed: float, failed: float) -> None:
        """Raise on all ranks unless each has trained on its shard of every batch."""
        failure, given = self.failure, self._given
        self.failure, self._executed, self._given = None, 0, 0
        self._agree(failure, round(failed))
        if round(executed) != given:
            raise EngineError(f"the ranks trained on {executed:.0f} samples of batches of {given}")

    def _sums(self, *numbers: float) -> list[float]:
        """Return each number's sum over all ranks."""
        flat = np.array(numbers, np.float64)
        self.collective.allreduce_sum(flat)
        return [float(number) for number in flat]

    def evaluate_step(self, take: Take) -> None:
        """Evaluate this rank's shard of one batch; failures are raised when it is drained."""
        if self._trained:
            self._trained = False
            self._compare(self._steps, self.local.checksum())
            with self.collective.waiting(_TRAINING):
                statistics = self.local.statistics()
            self.collective.allreduce_sum(statistics)
            statistics /= self.collective.size
            self.local.set_statistics(statistics)
        with self._catching():
            batch = take()
            self._to_evaluate.append(batch.whole)
            if batch.size:
                with self.collective.waiting(_EVALUATION):
                    self.local.await_room()
                self.local.evaluate_step(batch)

    def drain_evaluation(self) -> EvaluationSums:
        """Return the sums of all ranks since the last call.

        Raises:
            EngineError: a rank failed, or they did not evaluate each sample of every batch.
        """
        batches, self._to_evaluate = self._to_evaluate, []
        wanted = sum(batches)
        part = EvaluationSums()
        if self.failure is None:
            with self._catching(), self.collective.waiting(_EVALUATION):
                part = self.local.drain_evaluation()
        failure, self.failure = self.failure, None
        loss, samples, failed, *added = self._sums(
            part.loss, part.samples, failure is not None, *self._added(part)
        )
        self._agree(failure, round(failed))
        if round(samples) != wanted:
            raise EngineError(f"the ranks evaluated {samples:.0f} samples of batches of {wanted}")
        parts = self._rows(part) if self._measure.rows else added
        predictions = self._predictions(part, batches) if self._predicts and wanted else None
        return evaluated(self._measure, loss, round(samples), parts, predictions)

    def _predictions(self, part: EvaluationSums, batches: Sequence[int]) -> NDArray[np.int64]:
        """Return the predicted classes of all samples of some batches, in the order of the samples.

        Each rank contributes those of its shard of every batch.
        """
        own = np.zeros(sum(batches), np.int64)
        if part.predictions is not None:
            own[: len(part.predictions)] = part.predictions
        every = self.collective.gather(own)
        whole: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        taken = [0] * len(every)
        for batch in batches:
            for rank, row in enumerate(every):
                first, last = Part(rank, len(every)).bounds(batch)
                whole.append(row[taken[rank] : taken[rank] + last - first])
                taken[rank] += last - first
        return np.concatenate(whole)

    def _added(self, part: EvaluationSums) -> list[float]:
        """Return the terms to sum over the ranks, also for a rank that evaluated nothing."""
        if self._measure.rows:
            return []
        return [float(part.parts.get(name, 0.0)) for name in self._measure.sums]

    def _rows(self, part: EvaluationSums) -> list[NDArray[np.float64]]:
        """Return the rows of all ranks in order, gathered in blocks of one length.

        Rows are single numbers, (samples,), or several, (samples, numbers).
        """
        gathered = []
        for name in self._measure.rows:
            rows = part.parts.get(name, np.zeros(0))
            counts = self.collective.gather(np.array([len(rows), rows.size], np.int64))
            numbers, width = counts[:, 1], int((counts[:, 1] // np.maximum(counts[:, 0], 1)).max())
            own = np.zeros(1 + int(numbers.max()), np.float64)
            own[: rows.size] = rows.ravel()
            every = self.collective.gather(own)
            flat = np.concatenate([row[:n] for row, n in zip(every, numbers, strict=True)])
            gathered.append(flat.reshape(-1, width) if width > 1 else flat)
        return gathered

    def drain_training(self) -> float:
        """Return the mean loss of the steps since the last call; 0 if there was none.

        Raises:
            NonFiniteLossError: the loss of any rank is not finite.
            EngineError: a rank failed.
        """
        loss = 0.0
        self._clock.begin()
        with self._catching():
            with self.collective.waiting(_TRAINING):
                loss = self.local.drain_training()
            self._clock.book(StepPart.COMPUTE)
        own = isinstance(self.failure, NonFiniteLossError)
        executed, failed, loss, infinite, *times = self._training_sums(
            loss, own, *self._clock.take()
        )
        self._step_times += np.array(times) / self.collective.size
        if own and failed > infinite:
            self.failure = None  # Samples that another rank did not execute are not credited.
        elif infinite and failed == infinite:
            self.failure = self.failure or NonFiniteLossError(
                "the training loss is not finite on another rank; "
                "a lower training.learning_rate may help"
            )
        self._agree_on_training(executed, failed)
        return loss

    def step_times(self, trial: str) -> StepTimes | None:
        """Return the times of all drained steps, or None if there was none."""
        steps, *seconds = self._step_times.tolist()
        if not steps:
            return None
        return StepTimes(
            trial=trial,
            collective=self.collective.name,
            ranks=self.collective.size,
            steps=round(steps),
            seconds=dict(zip(PARTS, seconds, strict=True)),
        )

    def close(self) -> None:
        """Free this rank's network."""
        self.local.close()

    def _agree(self, failure: AIPerfError | None, failed: int) -> None:
        """Raise one rank's failure on all ranks."""
        if failure is not None:
            raise failure
        if failed:
            raise EngineError(f"{failed} of {self.collective.size} ranks failed; see their log")

    def _compare(self, steps: int, pending: PendingChecksum) -> None:
        """Check that the weights of all ranks were equal after a step."""
        self._checking = None
        with self.collective.waiting(_TRAINING):
            row = np.array([pending()], np.int64)
        digests = self.collective.gather(row)[:, 0]
        different = np.flatnonzero(digests != digests[0])
        if different.size:
            raise EngineError(
                f"after {steps} steps the weights of rank {rank_numbers(different)} are not "
                "those of rank 0"
            )


def rank_numbers(ranks: NDArray[np.intp]) -> str:
    """Return the numbers of ranks as text for a message."""
    return ", ".join(str(rank) for rank in ranks)
