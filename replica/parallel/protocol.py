"""Training one network on all ranks of a replica, data-parallel and in step.

Every rank holds the whole network and trains on its part of each batch; gradients are summed
over the ranks before each update, so that all ranks keep the same weights. Rank 0 leads: it
runs the rounds and writes the records, and announces each thing to be done; the others follow.
A batch of a trial is that of the whole replica.

What one rank cannot do, all ranks hear of in the same step, so that none waits for ever.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from enum import IntEnum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import AIPerfError, EngineError, NonFiniteLossError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.checkpoint import Weights, expected_shapes
from aiperf_hpc.objective import Measure
from aiperf_hpc.replica.data.base import WHOLE, Batch, Dataset, Part
from aiperf_hpc.replica.engines.base import (
    EvaluationSums,
    OptimizerState,
    RankEngine,
    RankNetwork,
    evaluated,
)
from aiperf_hpc.replica.parallel.collectives.base import Buffer, Collective, Pending
from aiperf_hpc.replica.parallel.step_clock import PARTS, StepClock
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.run.records import StepTimes
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, StepPart

CHECK_STEPS = 100
"""Training steps between two comparisons of the ranks' weights."""
LOOK_SECONDS = 0.5
"""How often ranks that build ask each other whether they have."""
_WORDS = 4

Floats = NDArray[np.float32]
Take = Callable[[], Batch]


class Command(IntEnum):
    """What rank 0 announces, with up to three numbers."""

    END = auto()
    BUILD = auto()
    TRAIN = auto()
    STEP = auto()
    VALIDATE = auto()
    EVALUATE = auto()
    SUM = auto()
    CLOSE = auto()
    CALIBRATE = auto()
    DRAIN = auto()
    TAKE = auto()


class RanksNetwork:
    """One network, on this rank and all others: they make the same calls in the same order."""

    def __init__(
        self,
        network: RankNetwork,
        graph: Graph,
        weights: Weights,
        collective: Collective,
        measure: Measure,
    ) -> None:
        self._measure = measure
        self._network = network
        self._graph = graph
        self._collective = collective
        self._transparent = transparent(graph, weights)
        self._moments_size = sum(math.prod(shape) for shape in graph.statistics.values())
        self._steps = 0
        self._clock = StepClock(collective.copies)
        self.step_times = np.zeros(1 + len(PARTS))
        """Steps, and the seconds of their parts, as the mean over all ranks."""
        self._trained = False
        self._failure: AIPerfError | None = None
        self._to_evaluate = 0

    def calibrate(self, take: Take) -> tuple[str, ...]:
        """Make inserted normalisations transparent on one batch, of which ``take`` gives a part.

        Each rank normalises by its own part, and all have the same weights: these are made of
        the mean, over all samples, of the parts' moments.

        Raises:
            AIPerfError: it failed, here or on another rank.
        """
        return calibrate(
            self._graph, self._transparent, lambda: self._moments(take), self._network.assign
        )

    def _moments(self, take: Take) -> NDArray[np.float64]:
        """Return the mean of all ranks' moments; the same on every rank."""
        flat = np.zeros(self._moments_size + 1, np.float64)
        failure: AIPerfError | None = None
        try:
            batch = take()
            if batch.size:
                flat[:-1] = self._network.moments(batch)
                flat *= batch.size / batch.whole
        except AIPerfError as error:
            failure, flat[-1] = error, 1.0
        self._collective.allreduce_sum(flat)
        self._agree(failure, round(float(flat[-1])))
        return flat[:-1]

    def step(self, take: Take, learning_rate: float) -> None:
        """Train on one batch, of which ``take`` gives this rank's part.

        Raises:
            EngineError: it failed, here or on another rank; the weights are as before.
        """
        network, clock, pending = self._network, self._clock, list[Pending]()
        failure: AIPerfError | None = None
        executed = whole = 0

        def ready(bucket: Buffer) -> None:
            clock.book(StepPart.COMPUTE)
            pending.append(self._collective.start_allreduce_sum(bucket))
            clock.book(StepPart.QUEUE)

        try:
            batch = take()
            whole = batch.whole
            clock.begin()
            network.gradients(batch, batch.size / whole, ready)
            executed = batch.size
        except AIPerfError as error:
            failure = error
        # The others wait for every bucket, of a rank that failed too.
        for bucket in range(len(pending), len(network.buckets)):
            ready(network.zeros(bucket))
        clock.book(StepPart.COMPUTE)
        trained, failed = self._sums(executed, failure is not None)
        clock.book(StepPart.WAIT)
        reduced = [reduction.wait() for reduction in pending]
        clock.book(StepPart.REDUCE)
        self._agree(failure, round(failed))
        if round(trained) != whole:
            raise EngineError(f"the ranks trained on {trained:.0f} samples of a batch of {whole}")
        network.apply(reduced, learning_rate)
        clock.book(StepPart.COMPUTE)
        clock.count()
        self._trained = True
        self._steps += 1
        if self._steps % CHECK_STEPS == 0:
            self._compare()

    def _sums(self, *numbers: float) -> list[float]:
        """Return each number's sum over all ranks."""
        flat = np.array(numbers, np.float64)
        self._collective.allreduce_sum(flat)
        return [float(number) for number in flat]

    def evaluate(self, take: Take) -> None:
        """Evaluate this rank's part of one batch; what fails is said when it is summed up."""
        if self._trained:
            self._trained = False
            self._compare()
            statistics = self._network.statistics()
            self._collective.allreduce_sum(statistics)
            statistics /= self._collective.size
            self._network.set_statistics(statistics)
        try:
            batch = take()
            self._to_evaluate += batch.whole
            if batch.size:
                self._network.evaluate_step(batch)
        except AIPerfError as error:
            self._failure = self._failure or error

    def sum_up(self) -> EvaluationSums:
        """Return the sums of all ranks since the last call.

        Raises:
            EngineError: a rank failed, or they did not evaluate each sample of every batch.
        """
        failure = self._failure
        self._failure = None
        wanted = self._to_evaluate
        self._to_evaluate = 0
        part = EvaluationSums()
        if failure is None:
            try:
                part = self._network.drain_evaluation()
            except AIPerfError as error:
                failure = error
        loss, samples, failed, *added = self._sums(
            part.loss, part.samples, failure is not None, *self._added(part)
        )
        self._agree(failure, round(failed))
        if round(samples) != wanted:
            raise EngineError(f"the ranks evaluated {samples:.0f} samples of batches of {wanted}")
        parts = self._rows(part, round(samples)) if self._measure.rows else added
        return evaluated(self._measure, loss, round(samples), parts)

    def _added(self, part: EvaluationSums) -> list[float]:
        """Return what is added over the ranks, of a rank that evaluated nothing too."""
        if self._measure.rows:
            return []
        return [float(part.parts.get(name, 0.0)) for name in self._measure.sums]

    def _rows(self, part: EvaluationSums, samples: int) -> list[NDArray[np.float64]]:
        """Return the rows of all ranks, those of rank 0 first; gathered in rows of one length."""
        gathered = []
        for name in self._measure.rows:
            own = np.zeros(1 + samples, np.float64)
            rows = part.parts.get(name, np.zeros(0))
            own[0] = len(rows)
            own[1 : 1 + len(rows)] = rows
            every = self._collective.gather(own)
            gathered.append(np.concatenate([row[1 : 1 + round(row[0])] for row in every]))
        return gathered

    def mean_loss(self) -> float:
        """Return the mean loss of the steps since the last call; 0 for none.

        Raises:
            NonFiniteLossError: it is not finite, on any rank.
            EngineError: a rank failed.
        """
        loss, failure = 0.0, None
        self._clock.begin()
        try:
            loss = self._network.drain_training()
            self._clock.book(StepPart.COMPUTE)
        except AIPerfError as error:
            failure = error
        infinite = isinstance(failure, NonFiniteLossError)
        loss, failed, others, *times = self._sums(
            loss, failure is not None, infinite, *self._clock.take()
        )
        self.step_times += np.array(times) / self._collective.size
        if failed and failure is None and others:
            raise NonFiniteLossError(
                "the training loss is not finite on another rank; "
                "a lower training.learning_rate may help"
            )
        self._agree(failure, round(failed))
        return loss

    def close(self) -> None:
        """Free this rank's network."""
        self._network.close()

    def _agree(self, failure: AIPerfError | None, failed: int) -> None:
        """Raise on all ranks what happened on one."""
        if failure is not None:
            raise failure
        if failed:
            raise EngineError(f"{failed} of {self._collective.size} ranks failed; see their log")

    def _compare(self) -> None:
        """Compare the weights of all ranks."""
        row = np.array([_checksum(self._network)], np.int64)
        digests = self._collective.gather(row)[:, 0]
        different = np.flatnonzero(digests != digests[0])
        if different.size:
            raise EngineError(
                f"after {self._steps} steps the weights of rank {_named(different)} are not those "
                "of rank 0"
            )


class LeadingNetwork:
    """Rank 0's side of a network: announces each call, then makes it."""

    def __init__(
        self,
        ranks: RanksNetwork,
        network: RankNetwork,
        announce: Announce,
        closed: Callable[[RanksNetwork], None],
    ) -> None:
        self._ranks = ranks
        self._network = network
        self._announce = announce
        self._closed = closed

    def warm(self, batch_size: int) -> None:
        """Each rank warmed its network when it had built it."""

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        """Calibrate on all ranks, on the batch that is trained on next."""
        self._announce(Command.CALIBRATE)
        return self._ranks.calibrate(lambda: batch)

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Train on one batch on all ranks; ``batch`` is rank 0's part of it."""
        self._announce(Command.STEP, learning_rate)
        self._ranks.step(lambda: batch, learning_rate)

    def drain_training(self) -> float:
        """Return the mean loss since the last call, of all ranks."""
        self._announce(Command.DRAIN)
        return self._ranks.mean_loss()

    def evaluate_step(self, batch: Batch) -> None:
        """Evaluate one batch on all ranks."""
        self._announce(Command.EVALUATE)
        self._ranks.evaluate(lambda: batch)

    def drain_evaluation(self) -> EvaluationSums:
        """Return the sums of all ranks."""
        self._announce(Command.SUM)
        return self._ranks.sum_up()

    def outputs(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return rank 0's outputs."""
        return self._network.outputs(inputs)

    def weights(self) -> Weights:
        """Return rank 0's weights, which are everybody's."""
        return self._network.weights()

    def optimizer_state(self) -> OptimizerState:
        """Return rank 0's, which is everybody's."""
        return self._network.optimizer_state()

    def close(self) -> None:
        """Free the network on all ranks."""
        self._announce(Command.CLOSE)
        self._ranks.close()
        self._closed(self._ranks)


class Announce:
    """Tells all other ranks what to do next."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def __call__(self, what: Command, *numbers: float) -> None:
        words = np.zeros(_WORDS, np.float64)
        words[: 1 + len(numbers)] = (float(what), *numbers)
        self._collective.command(words)


class LeadingEngine:
    """Rank 0's engine: builds on all ranks."""

    def __init__(self, engine: RankEngine, collective: Collective) -> None:
        self._engine = engine
        self._collective = collective
        self._announce = Announce(collective)
        self.name = engine.name
        self.objective = engine.objective
        self.versions = engine.versions
        self.accelerators = engine.accelerators
        self.memory_bytes = engine.memory_bytes
        self._step_times = np.zeros(1 + len(PARTS))
        self._numbers = itertools.count()
        self._site = _NetworkBuilder(engine)

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> LeadingNetwork:
        """Build a graph on all ranks.

        Raises:
            EngineError: a rank cannot.
        """
        return self.begin(graph, weights, hyperparameters, optimizer_state, 0)()

    def begin(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None,
        warm: int,
    ) -> Callable[[], LeadingNetwork]:
        """Have a graph built on all ranks, by a thread of each, while they do other things.

        Args:
            graph: what to build.
            weights: as for ``build``.
            hyperparameters: as for ``build``.
            optimizer_state: as for ``build``.
            warm: the batch size that each rank warms its network with; 0 to leave it cold.

        Returns:
            What waits for all ranks and returns the network, or raises EngineError.
        """
        number = next(self._numbers)
        state = (
            None if optimizer_state is None else {n: a.shape for n, a in optimizer_state.items()}
        )
        order = _Order(graph.to_json(), hyperparameters.model_dump_json(), state, warm)
        text = json.dumps(asdict(order)).encode()
        self._announce(Command.BUILD, len(text), number)
        self._collective.broadcast(np.frombuffer(text, np.uint8).copy())
        self._collective.broadcast(_flattened(expected_shapes(graph), weights))
        if optimizer_state is not None:
            self._collective.broadcast(_flattened(optimizer_state, optimizer_state))
        self._site.begin(number, graph, weights, hyperparameters, optimizer_state, warm)

        def take() -> LeadingNetwork:
            self._announce(Command.TAKE, number)
            network = _built(self._collective, graph, self._site, number)
            ranks = RanksNetwork(network, graph, weights, self._collective, self.objective.quality)
            return LeadingNetwork(ranks, network, self._announce, self._keep_step_times)

        return take

    def _keep_step_times(self, closed: RanksNetwork) -> None:
        self._step_times = closed.step_times

    def take_step_times(self, trial: str) -> StepTimes | None:
        """Return those of the network that was closed last; None when it did no step."""
        (steps, *seconds) = self._step_times
        self._step_times = np.zeros(1 + len(PARTS))
        if not steps:
            return None
        return StepTimes(
            trial=trial,
            collective=self._collective.name,
            ranks=self._collective.size,
            steps=round(steps),
            seconds=dict(zip(PARTS, map(float, seconds), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class _Order:
    """What rank 0 tells the others of a network that they are to build, before its arrays."""

    graph: str
    hyperparameters: str
    optimizer_state: Mapping[str, Sequence[int]] | None
    """The shapes of its arrays, by name, in the order in which they come."""
    warm: int


class _NetworkBuilder:
    """Where one rank builds networks, beside whatever it does."""

    def __init__(self, engine: RankEngine) -> None:
        self._engine = engine
        self._builder = ThreadPoolExecutor(1, "builder", lower_priority)
        self._begun: dict[int, Future[RankNetwork]] = {}

    def begin(
        self,
        number: int,
        graph: Graph,
        weights: Weights,
        used: Hyperparameters,
        optimizer_state: OptimizerState | None,
        warm: int,
    ) -> None:
        def build() -> RankNetwork:
            network = self._engine.build(graph, weights, used, optimizer_state)
            if warm:
                network.warm(warm, halves=True)
            return network

        self._begun[number] = self._builder.submit(build)

    def done(self, number: int, seconds: float) -> bool:
        """Return whether a network is built, or could not be, waiting so long at most."""
        return bool(wait((self._begun[number],), seconds).done)

    def take(self, number: int) -> RankNetwork:
        """Wait for a network; raises what building it raised."""
        return self._begun.pop(number).result()


class LeadingDataset:
    """Rank 0's dataset: its part of each batch, announced to all."""

    def __init__(self, dataset: Dataset, collective: Collective) -> None:
        self._dataset = dataset
        self._part = Part(collective.rank, collective.size)
        self._announce = Announce(collective)

    @property
    def info(self) -> DatasetInfo:
        """Of the whole dataset."""
        return self._dataset.info

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield rank 0's part of every batch of an epoch."""
        del part
        self._announce(Command.TRAIN, epoch, batch_size, seed)
        batches = self._dataset.train(epoch, batch_size, seed, self._part)
        return _all_parts(batches, self.info.train_samples, batch_size, self._part)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Yield rank 0's part of every batch of the validation samples."""
        del part
        self._announce(Command.VALIDATE, batch_size)
        batches = self._dataset.validation(batch_size, self._part)
        return _all_parts(batches, self.info.validation_samples, batch_size, self._part)


def follow(engine: RankEngine, dataset: Dataset, collective: Collective) -> None:
    """Do what rank 0 announces, until it announces the end."""
    follower = _Follower(engine, dataset, collective)
    words = np.zeros(_WORDS, np.float64)
    while True:
        collective.command(words)
        what = Command(int(words[0]))
        if what is Command.END:
            return
        try:
            follower.do(what, *(float(word) for word in words[1:]))
        except AIPerfError as error:
            # All ranks hear of it, and rank 0 decides what becomes of the trial.
            sys.stderr.write(f"aiperf: rank {collective.rank}: {error}\n")
            sys.stderr.flush()


class _Follower:
    """What a rank that follows has in hand."""

    def __init__(self, engine: RankEngine, dataset: Dataset, collective: Collective) -> None:
        self._engine = engine
        self._dataset = dataset
        self._collective = collective
        self._part = Part(collective.rank, collective.size)
        self._network: RanksNetwork | None = None
        self._batches: Iterator[Batch] = iter(())
        self._site = _NetworkBuilder(engine)
        self._coming: dict[int, tuple[Graph, Weights]] = {}

    def do(self, what: Command, a: float, b: float, c: float) -> None:
        """Do one thing. Raises AIPerfError when it failed, here or on another rank."""
        info = self._dataset.info
        match what:
            case Command.BUILD:
                self._begin(int(a), int(b))
            case Command.TAKE:
                self._network = self._built(int(a))
            case Command.TRAIN:
                batches = self._dataset.train(int(a), int(b), int(c), self._part)
                self._batches = _all_parts(batches, info.train_samples, int(b), self._part)
            case Command.VALIDATE:
                batches = self._dataset.validation(int(a), self._part)
                self._batches = _all_parts(batches, info.validation_samples, int(a), self._part)
            case _ if self._network is None:
                raise EngineError("there is no network: it could not be built")
            case Command.CALIBRATE:
                self._network.calibrate(self._peek)
            case Command.STEP:
                self._network.step(self._take, a)
            case Command.DRAIN:
                self._network.mean_loss()
            case Command.EVALUATE:
                self._network.evaluate(self._take)
            case Command.SUM:
                self._network.sum_up()
            case Command.CLOSE:
                self._network.close()
                self._network = None

    def _take(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            raise EngineError("rank 0 asks for more batches than the epoch has")
        return batch

    def _peek(self) -> Batch:
        """Return the next batch, and leave it where it is."""
        batch = self._take()
        self._batches = itertools.chain((batch,), self._batches)
        return batch

    def _begin(self, length: int, number: int) -> None:
        text = np.zeros(length, np.uint8)
        self._collective.broadcast(text)
        order = _Order(**json.loads(text.tobytes()))
        graph = Graph.from_json(order.graph)
        used = Hyperparameters.model_validate_json(order.hyperparameters)
        weights = self._received(expected_shapes(graph))
        shapes = order.optimizer_state
        state = None if shapes is None else self._received(shapes)
        self._coming[number] = graph, weights
        self._site.begin(number, graph, weights, used, state, order.warm)

    def _built(self, number: int) -> RanksNetwork:
        self._network = None
        graph, weights = self._coming.pop(number)
        network = _built(self._collective, graph, self._site, number)
        measure = self._engine.objective.quality
        return RanksNetwork(network, graph, weights, self._collective, measure)

    def _received(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Floats]:
        flat = np.zeros(sum(math.prod(shape) for shape in shapes.values()), np.float32)
        self._collective.broadcast(flat)
        arrays: dict[str, Floats] = {}
        start = 0
        for name, shape in shapes.items():
            end = start + math.prod(shape)
            arrays[name] = flat[start:end].reshape(shape)
            start = end
        return arrays


def _built(collective: Collective, graph: Graph, site: _NetworkBuilder, number: int) -> RankNetwork:
    """Take a network on this rank; raise on all ranks if one could not, or built something else."""
    network: RankNetwork | None = None
    failure: AIPerfError | None = None
    _await(collective, lambda seconds: site.done(number, seconds))
    try:
        network = site.take(number)
    except AIPerfError as error:
        failure = error
    digest = _checksum(network) if network is not None else 0
    row = [failure is not None, zlib.crc32(graph.hash.encode()), digest]
    rows = collective.gather(np.array(row, np.int64))
    failed = np.flatnonzero(rows[:, 0])
    others = np.flatnonzero((rows[:, 1:] != rows[0, 1:]).any(axis=1))
    if network is not None and not failed.size and not others.size:
        return network
    if network is not None:
        network.close()
    if failure is not None:
        raise failure
    if failed.size:
        raise EngineError(f"rank {_named(failed)} could not build the network; its log says why")
    raise EngineError(
        f"rank {_named(others)} built another network than rank 0: its graph or its first weights "
        "differ; install the same environment on all nodes"
    )


def _await(collective: Collective, done: Callable[[float], bool]) -> None:
    """Wait until ``done`` on all ranks, however long: they ask each other often, and for that
    have little time, so that a rank that hangs is told from one that is slow."""
    pause = 0.0
    while True:
        begun = time.monotonic()
        missing = np.array([0.0 if done(pause) else 1.0])
        time.sleep(max(0.0, begun + pause - time.monotonic()))  # Leaves the core to the builder.
        collective.allreduce_sum(missing)
        if not missing[0]:
            return
        pause = min(2.0 * pause + 0.01, LOOK_SECONDS)


def _named(ranks: NDArray[np.intp]) -> str:
    return ", ".join(str(rank) for rank in ranks)


def _checksum(network: RankNetwork) -> int:
    """Return that of all parameters."""
    digest = 0
    for name, array in sorted(network.weights().items()):
        if not name.endswith(("/mean", "/variance")):
            digest = zlib.crc32(np.ascontiguousarray(array).data, digest)
    return digest


def _flattened(names: Iterable[str], arrays: Mapping[str, Floats]) -> Floats:
    parts = [np.asarray(arrays[name], np.float32).ravel() for name in names]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def _all_parts(
    batches: Iterator[Batch], samples: int, batch_size: int, part: Part
) -> Iterator[Batch]:
    """Yield this rank's part of every batch of an epoch, empty where it has no sample in it."""
    for start in range(0, samples, batch_size):
        whole = min(batch_size, samples - start)
        first, last = part.bounds(whole)
        if first == last:
            yield Batch({}, {}, whole)
            continue
        batch = next(batches, None)
        if batch is None or batch.size != last - first:
            size = 0 if batch is None else batch.size
            raise EngineError(
                f"rank {part.rank} got {size} of the {last - first} samples that are its part"
            )
        yield Batch(batch.inputs, batch.targets, whole)
