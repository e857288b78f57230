"""Ranks that are threads, with networks whose values can be calculated by hand."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.replica.parallel.threads import Table, Threads
from tests.support.fakes import FakeDataset
from tests.support.networks import two_stems
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.errors import NonFiniteLossError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import Deeper, grow_with_weights
from aiperf_hpc.morphism.weights.weight_file import Weights, initial_weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.base import (
    EvaluationSums,
    NetworkState,
    OptimizerState,
    PendingChecksum,
    checksum,
    evaluated,
)
from aiperf_hpc.replica.parallel.collectives import Array
from aiperf_hpc.replica.parallel.follower import follow
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine, LeadingNetwork
from aiperf_hpc.replica.parallel.network_builder import ignored
from aiperf_hpc.replica.parallel.protocol import Command, Warmup, announce
from aiperf_hpc.trial import Hyperparameters

GRAPH = two_stems()
numbered = partial(FakeDataset, classes=7)
USED = Hyperparameters(batch_size=8, learning_rate=0.1, momentum=0.0)


class Quadratic:
    """A network with the same number w in every parameter, whose loss is the mean of
    (w - label)^2 / 2 over the samples."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph = graph
        self.w = np.concatenate([weights[name].ravel() for name in graph.parameters])
        self.errors: dict[int, Exception] = {}
        self.fails_early = True
        self.seconds = 0.0
        self.loss = 0.0
        self.drained = 0
        self.drifts_after = 0
        self.idle = False
        self.warmed: list[int] = []
        self.warm_error: Exception | None = None
        self.zeros_error: Exception | None = None
        self.assigned: list[Weights] = []
        self.steps = 0
        self.closed = False
        self._sums = EvaluationSums()

    @property
    def buckets(self) -> tuple[int, ...]:
        """Sizes of two buckets, between which a rank can fail."""
        return (3, self.w.size - 3)

    def await_room(self) -> None:
        pass

    def gradients(self, batch: Batch, share: float, ready: Callable[[Array], None]) -> None:
        self.steps += 1
        time.sleep(self.seconds)
        if not batch.size:
            ready(self.zeros(0))
            ready(self.zeros(1))
            return
        self.loss += share * self.loss_of(batch)
        slopes = (self.w - batch.targets["label"].mean()).astype(np.float32) * np.float32(share)
        if self.steps in self.errors and self.fails_early:
            raise self.errors[self.steps]
        ready(slopes[:3])
        if self.steps in self.errors:
            raise self.errors[self.steps]
        ready(slopes[3:])

    def loss_of(self, batch: Batch) -> float:
        away = float(self.w[0]) - batch.targets["label"].astype(np.float64)
        return float(np.square(away).mean() / 2)

    def zeros(self, bucket: int) -> NDArray[np.float32]:
        if self.zeros_error is not None:
            raise self.zeros_error
        return np.zeros(self.buckets[bucket], np.float32)

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        if self.warm_error is not None:
            raise self.warm_error
        self.warmed.append(batch_size)

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        raise NotImplementedError

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Return the mean and the variance of the labels for every normalization."""
        if 0 in self.errors:
            raise self.errors[0]
        labels = batch.targets["label"]
        moments = {"mean": labels.mean(), "variance": labels.var()}
        statistics = self.graph.statistics.items()
        rows = [np.full(shape, moments[name.split("/")[1]]) for name, shape in statistics]
        return np.concatenate(rows, dtype=np.float32)

    def assign(self, weights: Weights) -> None:
        self.assigned.append(weights)

    def apply(self, buckets: Sequence[Array], learning_rate: float) -> None:
        self.w = self.w - np.float32(learning_rate) * np.concatenate(buckets)
        if self.steps == self.drifts_after:
            self.w += np.float32(1e-3)

    def checksum(self) -> PendingChecksum:
        found = checksum([self.w])
        return lambda: found

    def statistics(self) -> NDArray[np.float32]:
        return np.full(2, self.steps, np.float32)

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        self.set_to = flat.copy()

    def evaluate_step(self, batch: Batch) -> None:
        if self.idle:
            return
        labels = batch.targets["label"].astype(np.int64)
        part = evaluated(ACCURACY, batch.size, batch.size, (1,), labels)
        self._sums = self._sums.merged(part, ACCURACY)

    def drain_evaluation(self) -> EvaluationSums:
        sums, self._sums = self._sums, EvaluationSums()
        return sums

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        buckets: list[Array] = []
        self.gradients(batch, 1.0, buckets.append)
        self.apply(buckets, learning_rate)

    def drain_training(self) -> float:
        steps, self.drained = self.steps - self.drained, self.steps
        loss, self.loss = self.loss, 0.0
        if not np.isfinite(loss):
            raise NonFiniteLossError("a lower training.learning_rate may help")
        return loss / steps if steps else 0.0

    def weights(self) -> Weights:
        return {"w/kernel": self.w}

    def optimizer_state(self) -> OptimizerState:
        return {}

    def close(self) -> None:
        self.closed = True


class Engine:
    """Builds quadratic networks, unless a test sets an error."""

    name = "quadratic"
    objective = CLASSIFICATION
    versions: dict[str, str] = {}
    accelerators: tuple[str, ...] = ()
    memory_bytes = None
    warms_alone = False

    def __init__(self) -> None:
        self.networks: list[Quadratic] = []
        self.build_errors: list[Exception] = []
        self.prepare: Callable[[Quadratic], None] = lambda _: None
        self.compiled_ahead: list[int] = []
        self.compiler_problem = ""

    def compile_ahead(self, state: NetworkState) -> str:
        self.compiled_ahead.append(state.hyperparameters.batch_size)
        return self.compiler_problem

    def build(self, state: NetworkState) -> Quadratic:
        if self.build_errors:
            raise self.build_errors.pop()
        self.networks.append(Quadratic(state.graph, state.weights))
        self.prepare(self.networks[-1])
        return self.networks[-1]

    def probe(self) -> Array:
        return np.ones(1, np.float32)


class Team:
    """Following ranks in threads, and the engine and dataset of rank 0, which leads them."""

    def __init__(
        self,
        size: int,
        prepared: Mapping[int, Mapping[str, Any]] | None = None,
        dataset: Callable[[], FakeDataset] = numbered,
    ) -> None:
        """Create the ranks; ``prepared`` has attributes of their networks, by rank."""
        table = Table(size)
        self.collectives = [Threads(table, rank, size) for rank in range(size)]
        self.engines = [Engine() for _ in range(size)]
        for rank, attributes in (prepared or {}).items():
            self.engines[rank].prepare = partial(vars_set, attributes)
        self.threads = [
            threading.Thread(
                target=follow, args=(self.engines[rank], dataset(), self.collectives[rank])
            )
            for rank in range(1, size)
        ]
        self.engine = LeadingEngine(self.engines[0], self.collectives[0])
        self.dataset = LeadingDataset(numbered(), self.collectives[0])

    def __enter__(self) -> Team:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            announce(self.collectives[0], Command.END)
        else:
            self.collectives[0].table.barrier.abort()
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def vars_set(attributes: Mapping[str, Any], network: Quadratic) -> None:
    vars(network).update(attributes)


def initial_state() -> NetworkState:
    """Return the initial network, the same in every call."""
    return NetworkState(GRAPH, initial_weights(GRAPH, np.random.default_rng(0)), USED)


def grown_state() -> NetworkState:
    """Return the initial network with two inserted normalizations, one after the other."""
    rng = np.random.default_rng(0)
    chain = [Deeper("relu", 3), Deeper("relu_deep1_relu", 1)]
    return NetworkState(*grow_with_weights(GRAPH, initial_weights(GRAPH, rng), chain, rng), USED)


def begin(
    team: Team, warmup: Warmup, built: Callable[[object], None] = ignored
) -> Callable[[], LeadingNetwork]:
    return team.engine.begin(initial_state(), warmup, built)


def build(team: Team) -> LeadingNetwork:
    return team.engine.build(initial_state())


def train(team: Team, network: LeadingNetwork, steps: int | None = None) -> None:
    """Train on the first batches of an epoch, or on all seven."""
    for batch in itertools.islice(list(team.dataset.train(1, 8, 0)), steps):
        network.train_step(batch, 0.1)


def evaluate(team: Team, network: LeadingNetwork) -> EvaluationSums:
    """Evaluate the 20 validation samples by 8: three batches, with a shard for each rank."""
    for batch in team.dataset.validation(8):
        network.evaluate_step(batch)
    return network.drain_evaluation()
