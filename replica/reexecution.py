"""Re-execution of recorded epochs from the two stored checkpoints of each.

    python -m aiperf_hpc.replica.reexecution --out FILE

Reads the request from standard input. One process executes the shards of all ranks in turn. As in
the run, each rank normalizes by its own shard of a batch and has its own running statistics, whose
mean is evaluated. Only the order in which gradients are summed differs, in the last digits.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import AIPerfError, CheckpointError, DatasetError, restated
from aiperf_hpc.extras import ENGINES
from aiperf_hpc.graph import Graph
from aiperf_hpc.host.machine import cpu_model
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.base import Batch, Dataset, Part
from aiperf_hpc.replica.data.baseline import Tally, has_baseline
from aiperf_hpc.replica.data.generated import GeneratedDataset
from aiperf_hpc.replica.engines import engine_for
from aiperf_hpc.replica.engines.base import (
    STEP,
    Buffer,
    EvaluationSums,
    Network,
    NetworkState,
    RankEngine,
    RankNetwork,
    step_count,
)
from aiperf_hpc.replica.parallel.collectives import on_host
from aiperf_hpc.replica.parallel.data_parallel import RankDataset
from aiperf_hpc.replica.request_process import answer
from aiperf_hpc.replica.training.checkpoint import load_training
from aiperf_hpc.replica.training.credit import IntervalLosses
from aiperf_hpc.replica.training.schedule import Schedule
from aiperf_hpc.replica.training.trial import TrainingState
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.replica_requests import (
    CheckpointValues,
    EpochAgain,
    EvaluationAgain,
    ExecutionRequest,
    ExecutionResult,
    MatrixOperations,
    Movement,
    RecordedEpoch,
    SavedCheckpoint,
    TrainingAgain,
)

Parts = Sequence[Batch]
"""The shards of one batch, in the order of the ranks."""


def parts_of_batches(
    dataset: Dataset, epoch: int, batch_size: int, seed: int, ranks: int
) -> Iterator[Parts]:
    """Yield the batches of a training epoch, sharded by rank."""
    own = [RankDataset(dataset, Part(rank, ranks)) for rank in range(ranks)]
    yield from zip(*(each.train(epoch, batch_size, seed) for each in own), strict=True)


class RanksInTurn:
    """Trains a network on the shards of its ranks."""

    def __init__(self, network: RankNetwork, graph: Graph, weights: Weights, ranks: int) -> None:
        self._network = network
        self._graph = graph
        self._transparent = transparent(graph, weights)
        self._ranks = ranks
        self._statistics = [network.statistics() for _ in range(ranks)]

    def calibrate(self, parts: Parts) -> None:
        """Calibrate inserted normalizations on one batch."""
        calibrate(
            self._graph, self._transparent, lambda: self._moments(parts), self._network.assign
        )
        self._statistics = [self._network.statistics() for _ in range(self._ranks)]

    def _moments(self, parts: Parts) -> NDArray[np.float64]:
        """Return the mean of the shards' moments over all samples."""
        total = np.zeros(sum(map(math.prod, self._graph.statistics.values())), np.float64)
        for part in parts:
            if part.size:
                total += self._network.moments(part) * (part.size / part.whole)
        return total

    def train_step(self, parts: Parts, learning_rate: float) -> None:
        """Train on one batch."""
        if self._ranks == 1:
            self._network.train_step(parts[0], learning_rate)
            return
        gradients = [np.zeros(size, np.float32) for size in self._network.buckets]
        for rank, part in enumerate(parts):
            self._network.set_statistics(self._statistics[rank])
            for total, given in zip(gradients, self._gradients(part), strict=True):
                total += given
            self._statistics[rank] = self._network.statistics()
        self._network.apply(gradients, learning_rate)

    def _gradients(self, part: Batch) -> list[NDArray[np.float32]]:
        given: list[NDArray[np.float32]] = []

        def ready(bucket: Buffer) -> None:
            given.append(np.array(on_host(bucket)))

        self._network.gradients(part, part.size / part.whole, ready)
        return given

    def drain_training(self) -> float:
        """Return the mean loss of the steps, and load the mean of the ranks' running statistics."""
        loss = self._network.drain_training()
        if self._ranks > 1:
            self._network.set_statistics(np.mean(self._statistics, axis=0, dtype=np.float32))
        # The network counted each shard as a step.
        return loss * self._ranks


class Bench(NamedTuple):
    """Engine and dataset of the re-execution."""

    engine: RankEngine
    dataset: Dataset


def execute(request: ExecutionRequest) -> ExecutionResult:
    """Execute the requested epochs; errors of single epochs are returned in their results.

    Raises:
        DatasetError: the dataset cannot be read, or is not the run's.
        EngineError: the engine is missing.
    """
    cores = len(os.sched_getaffinity(0))
    training = request.config.training.model_copy(update={"keep_predictions": False})
    config = request.config.model_copy(update={"training": training})
    engine = engine_for(config, cores)
    dataset = load_dataset(config.dataset, cores, engine.name)
    if dataset.info != request.dataset:
        raise DatasetError(
            f"dataset '{dataset.info.name}' is not the run's: its SHA-256 is "
            f"{dataset.info.sha256[:12]}, the run's {request.dataset.sha256[:12]}"
        )
    bench = Bench(engine, dataset)
    return ExecutionResult(
        engine=engine.name,
        versions=engine.versions,
        device=", ".join(engine.accelerators) or cpu_model(),
        cores=cores,
        epochs=tuple(_execute_epoch(bench, epoch) for epoch in request.epochs),
    )


def _execute_epoch(bench: Bench, epoch: RecordedEpoch) -> EpochAgain:
    try:
        return _again(bench, epoch)
    except (AIPerfError, MemoryError) as error:
        reason = str(error) or "the host has no memory left"
        return EpochAgain(trial=epoch.trial, failure=reason)
    except Exception as error:  # noqa: BLE001 -- records are not trusted
        reason = " ".join(f"unexpected {type(error).__name__}: {error}".split())
        return EpochAgain(trial=epoch.trial, failure=reason)


def _again(bench: Bench, epoch: RecordedEpoch) -> EpochAgain:
    began, evaluated = (
        _loaded(kept, epoch) for kept in (epoch.start_checkpoint, epoch.end_checkpoint)
    )
    network = _built(bench, epoch, replace(evaluated, optimizer_state={}))
    try:
        at_its_end = _evaluation(bench, epoch, network)
    finally:
        network.close()
    network = _built(bench, epoch, began)
    try:
        before = _evaluation(bench, epoch, network) if epoch.epoch > 1 else None
        make_samples(bench.dataset, epoch.epoch, epoch.hyperparameters.batch_size, epoch.seed)
        started = time.perf_counter()
        losses = _train(bench, epoch, network, began)
        after = _evaluation(bench, epoch, network)
        seconds = time.perf_counter() - started
        training = _training(network, losses, began, evaluated)
    finally:
        network.close()
    return EpochAgain(
        trial=epoch.trial,
        before=before,
        evaluated=at_its_end,
        train_loss=losses.mean,
        recorded=_recorded(evaluated),
        training=training,
        after=after,
        seconds=seconds,
        operations=_operations(evaluated.graph),
    )


def make_samples(dataset: Dataset, epoch: int, batch_size: int, seed: int) -> None:
    """Generate the samples of a generated dataset, as the run did in its first epoch.

    The recorded times of later epochs do not include it.
    """
    if epoch > 1 and isinstance(dataset, GeneratedDataset):
        for _ in dataset.train(epoch, batch_size, seed):
            pass


def _loaded(kept: SavedCheckpoint, epoch: RecordedEpoch) -> TrainingState:
    """Return a checkpoint. Raises CheckpointError unless digest and graph are as recorded."""
    path = Path(kept.path)
    what = f"the checkpoint {path}"
    with restated(what, CheckpointError, caught=OSError), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != kept.sha256:
        raise CheckpointError(f"{what} is not the file that was recorded")
    saved = load_training(path)
    wanted = Graph.from_json(epoch.graph).hash
    if saved.graph.hash != wanted:
        raise CheckpointError(f"{what} holds the graph {saved.graph.hash[:12]}, not {wanted[:12]}")
    return saved


def _built(bench: Bench, epoch: RecordedEpoch, saved: TrainingState) -> RankNetwork:
    used = epoch.hyperparameters
    state = NetworkState(saved.graph, saved.weights, used, saved.optimizer_state or None)
    network = bench.engine.build(state)
    largest = min(used.batch_size, bench.dataset.info.train_samples)
    network.warm(-(-largest // epoch.ranks))
    return network


def _evaluation(bench: Bench, epoch: RecordedEpoch, network: Network) -> EvaluationAgain:
    objective = bench.engine.objective
    batches = bench.dataset.validation(epoch.hyperparameters.batch_size)
    tally = Tally(objective, bench.dataset.info) if has_baseline(objective) else None
    found, losses = EvaluationSums(), IntervalLosses()
    for batch in batches if tally is None else tally.watched(batches):
        network.evaluate_step(batch)
        if losses.executed():
            found = _evaluated(network, objective.quality, found, losses)
    if losses.pending:
        found = _evaluated(network, objective.quality, found, losses)
    return EvaluationAgain(
        loss=found.mean_loss,
        losses=losses.means,
        sums=found.sums(objective.quality),
        samples=found.samples,
        baseline=None if tally is None else tally.measured().sums,
    )


def _evaluated(
    network: Network, metric: QualityMetric, found: EvaluationSums, losses: IntervalLosses
) -> EvaluationSums:
    """Return the sums with those of the pending batches, whose loss is added to ``losses``."""
    part = network.drain_evaluation()
    losses.add(part.mean_loss, part.samples)
    return found.merged(part, metric)


def _train(
    bench: Bench, epoch: RecordedEpoch, network: RankNetwork, began: TrainingState
) -> IntervalLosses:
    """Train one epoch as the trainer does; return the losses of its steps."""
    used = epoch.hyperparameters
    steps = math.ceil(bench.dataset.info.train_samples / used.batch_size)
    rate = partial(Schedule(used, steps, epoch.epoch_limit).rate, losses=epoch.losses)
    ranks = RanksInTurn(network, began.graph, began.weights, epoch.ranks)
    batches = parts_of_batches(bench.dataset, epoch.epoch, used.batch_size, epoch.seed, epoch.ranks)
    if epoch.epoch == 1:
        first = next(batches)
        ranks.calibrate(first)
        batches = itertools.chain((first,), batches)
    losses = IntervalLosses()
    for step, parts in enumerate(batches, (epoch.epoch - 1) * steps):
        ranks.train_step(parts, rate(step))
        if losses.executed():
            losses.add(ranks.drain_training(), losses.pending)
    if losses.pending:
        losses.add(ranks.drain_training(), losses.pending)
    return losses


def _training(
    network: Network, losses: IntervalLosses, began: TrainingState, evaluated: TrainingState
) -> TrainingAgain:
    """Return the results of the repeated training that are compared with the checkpoint."""
    return TrainingAgain(
        losses=losses.means,
        steps=step_count(network.optimizer_state()),
        movements={
            name: _movement(began.weights[name], evaluated.weights[name], again)
            for name, again in network.weights().items()
        },
    )


def _recorded(evaluated: TrainingState) -> CheckpointValues:
    progress, state = evaluated.progress, evaluated.optimizer_state
    return CheckpointValues(
        train_losses=progress.train_losses,
        validation_losses=progress.validation_losses,
        steps=step_count(state) if STEP in state else None,
    )


def _movement(began: Array, recorded: Array, again: Array) -> Movement:
    """Return the norms of an array's changes, in double precision."""
    begin, end, other = (array.astype(np.float64) for array in (began, recorded, again))
    return Movement(
        recorded=float(np.linalg.norm(end - begin)),
        again=float(np.linalg.norm(other - begin)),
        between=float(np.linalg.norm(other - end)),
    )


def _operations(graph: Graph) -> MatrixOperations | None:
    """Return PyTorch's count of a graph's operations; None if PyTorch is not installed."""
    if not ENGINES["torch"].installed:
        return None
    from aiperf_hpc.replica.engines.torch.operation_count import matrix_operations

    return matrix_operations(graph)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute, write the result, and return the exit status."""
    return answer(arguments, ExecutionRequest, "aiperf_hpc.replica.reexecution", _write)


def _write(request: ExecutionRequest, out: Path) -> None:
    write_whole(out, execute(request).model_dump_json(indent=1))


if __name__ == "__main__":
    sys.exit(main())
