"""Rank 0's commands to the other ranks, and the network builder of each rank."""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum, auto
from functools import partial
from typing import Any

import numpy as np

from aiperf_hpc.errors import AIPerfError, EngineError, without_frames
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Array, expected_shapes
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.engines.base import Network, NetworkState, RankEngine, RankNetwork
from aiperf_hpc.replica.parallel.collectives import Collective
from aiperf_hpc.replica.parallel.data_parallel import DataParallelNetwork, rank_numbers
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.trial import Hyperparameters

_NUMBERS = 3
"""Number of arguments of every command, padded to the longest."""


class Command(IntEnum):
    """Commands to all ranks; most are named after a method of dataset or network."""

    END = auto()
    BUILD = auto()  # Arguments: the network's number, bytes of the request's header.
    TAKE_NETWORK = auto()  # Argument: the network's number.
    TRAIN = auto()  # Arguments: epoch, batch size, seed.
    VALIDATION = auto()  # Argument: batch size.
    CALIBRATE = auto()
    TRAIN_STEP = auto()  # Arguments: learning rate, 1 for a step with an agreement.
    DRAIN_TRAINING = auto()
    EVALUATE_STEP = auto()
    DRAIN_EVALUATION = auto()
    WATCH_TARGETS = auto()  # For the last announced evaluation.
    SUM_TARGETS = auto()
    CLOSE = auto()


class Warmup(StrEnum):
    """When each rank warms a network with its own part of a batch."""

    NEVER = "never"
    BUILT = "built"
    TAKEN = "taken"
    """When all ranks take it, because memory is free only then; before, with one sample."""


def announce(collective: Collective, command: Command, *numbers: float) -> None:
    """Send a command to all other ranks."""
    words = np.zeros(1 + _NUMBERS, np.float64)
    words[: 1 + len(numbers)] = (float(command), *numbers)
    collective.command(words)


def next_command(collective: Collective) -> tuple[Command, list[float]]:
    """Wait for rank 0's command; return it and its arguments, padded with zeros to three."""
    words = np.zeros(1 + _NUMBERS, np.float64)
    collective.command(words)
    command, *numbers = words.tolist()
    return Command(int(command)), numbers


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Request to build a network on all ranks."""

    network: NetworkState
    warmup: Warmup

    def send(self, collective: Collective, number: int) -> None:
        """Send the request to the other ranks with its number and arrays."""
        network, state = self.network, self.network.optimizer_state
        head = {
            "graph": network.graph.to_json(),
            "hyperparameters": network.hyperparameters.model_dump_json(),
            "optimizer_shapes": None if state is None else {n: a.shape for n, a in state.items()},
            "warmup": self.warmup,
        }
        text = np.frombuffer(json.dumps(head).encode(), np.uint8).copy()
        announce(collective, Command.BUILD, number, text.size)
        collective.broadcast(text)
        collective.broadcast(_flattened(expected_shapes(network.graph), network.weights))
        if state is not None:
            collective.broadcast(_flattened(state, state))

    @classmethod
    def received(cls, collective: Collective, head_bytes: int) -> BuildRequest:
        """Receive a request from rank 0; the command has the size of its header."""
        text = np.zeros(head_bytes, np.uint8)
        collective.broadcast(text)
        head = json.loads(text.tobytes())
        graph = Graph.from_json(head["graph"])
        weights = _received(collective, expected_shapes(graph))
        shapes = head["optimizer_shapes"]
        used = Hyperparameters.model_validate_json(head["hyperparameters"])
        state = None if shapes is None else _received(collective, shapes)
        return cls(NetworkState(graph, weights, used, state), Warmup(head["warmup"]))


def _flattened(names: Iterable[str], arrays: Mapping[str, Array]) -> Array:
    """Return the arrays concatenated in the order of their names."""
    parts = [np.asarray(arrays[name], np.float32).ravel() for name in names]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def _received(collective: Collective, shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Receive concatenated arrays from rank 0; return them by name."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    flat = np.zeros(sum(sizes), np.float32)
    collective.broadcast(flat)
    *parts, _ = np.split(flat, np.cumsum(sizes, dtype=np.intp))
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


LOOK_SECONDS = 0.5
"""Maximum interval between two polls of whether all ranks have built their networks."""


Uncompiled = Callable[[str], object]
"""Called with the reason why a network was not compiled ahead."""


def ignored(_: object) -> None:
    """Do nothing."""


class NetworkBuilder:
    """Network builder of one rank; every rank makes the same calls in the same order."""

    def __init__(
        self, engine: RankEngine, collective: Collective, uncompiled: Uncompiled = ignored
    ) -> None:
        self._engine = engine
        self._uncompiled = uncompiled
        self._collective = collective
        self._thread = ThreadPoolExecutor(1, "builder", lower_priority)
        self._begun: dict[int, tuple[BuildRequest, Future[RankNetwork]]] = {}

    def begin(
        self, number: int, request: BuildRequest, built: Callable[[object], None] = ignored
    ) -> None:
        """Start to build this rank's network.

        Args:
            number: identifies the network in ``take``.
            request: network to build.
            built: called when it is built or has failed.
        """
        # Nothing trains during the first build.
        ahead = number > 0 and request.warmup is not Warmup.NEVER
        future = self._submit(partial(self._build, request, compile_ahead=ahead))
        future.add_done_callback(built)
        self._begun[number] = request, future

    def _submit(self, job: Callable[[], RankNetwork]) -> Future[RankNetwork]:
        future = self._thread.submit(job)
        future.add_done_callback(_drop_frames)
        return future

    def _build(self, request: BuildRequest, *, compile_ahead: bool) -> RankNetwork:
        # A rank trains on shards.
        shard = {"batch_size": self._samples(request)}
        used = request.network.hyperparameters.model_copy(update=shard)
        own = replace(request.network, hyperparameters=used)
        if compile_ahead and (problem := self._engine.compile_ahead(own)):
            self._uncompiled(problem)
        network = self._engine.build(own)
        with closed_if_it_fails(network):
            for bucket in range(len(network.buckets)):
                # Running out of memory on one rank during a step would hang all ranks.
                network.zeros(bucket)
            if request.warmup is Warmup.TAKEN and not self._engine.warms_alone:
                network.warm(1, halves=True)
        return self._warm(network, request) if request.warmup is Warmup.BUILT else network

    def _warm(self, network: RankNetwork, request: BuildRequest) -> RankNetwork:
        """Warm a network with this rank's shard; shards of an uneven batch differ in size."""
        with closed_if_it_fails(network):
            network.warm(self._samples(request), halves=True)
        return network

    def _samples(self, request: BuildRequest) -> int:
        """Return the size of this rank's shard of a global batch."""
        part = Part(self._collective.rank, self._collective.size)
        first, last = part.bounds(request.network.hyperparameters.batch_size)
        return last - first

    def take(self, number: int) -> DataParallelNetwork:
        """Wait without a timeout until all ranks have built a network; return it.

        Raises:
            AIPerfError: this rank could not build it.
            EngineError: another rank could not, or built a different network.
        """
        request, future = self._begun.pop(number)
        if request.warmup is Warmup.TAKEN:
            cold = future
            future = self._submit(lambda: self._warm(cold.result(), request))
        self._wait_for_all(future)
        network: RankNetwork | None = None
        failure: AIPerfError | None = None
        try:
            if self._engine.warms_alone and request.warmup is Warmup.TAKEN:
                self._warm_alone(future, request)
            network = future.result()
        except AIPerfError as error:
            failure = without_frames(error)
        problem = self._differences(request.network.graph, network)
        if problem and network is not None:
            network.close()
        if failure is not None:
            raise failure
        if problem or network is None:
            raise EngineError(problem)
        objective = self._engine.objective
        return DataParallelNetwork(network, request.network, self._collective, objective)

    def _warm_alone(self, built: Future[RankNetwork], request: BuildRequest) -> None:
        """Warm a network in this thread, while the building thread polls the other ranks.

        Kernel autotuning applies to the thread that executes the step. Tuning all kernels may take
        one rank longer than the timeout of the others.
        """
        warmed: Future[None] = Future()
        asking = self._thread.submit(self._wait_for_all, warmed)
        try:
            self._warm(built.result(), request)
        finally:
            warmed.set_result(None)
            asking.result()

    def _differences(self, graph: Graph, network: RankNetwork | None) -> str:
        """Return the differences between the ranks' networks, equal on all ranks; '' for none."""
        digest = network.checksum()() if network is not None else 0
        row = [network is None, zlib.crc32(graph.hash.encode()), digest]
        rows = self._collective.gather(np.array(row, np.int64))
        failed = np.flatnonzero(rows[:, 0])
        others = np.flatnonzero((rows[:, 1:] != rows[0, 1:]).any(axis=1))
        if failed.size:
            return f"rank {rank_numbers(failed)} could not build the network; its log states why"
        if others.size:
            return (
                f"rank {rank_numbers(others)} built another network than rank 0: its graph or its "
                "first weights differ; install the same environment on all nodes"
            )
        return ""

    def _wait_for_all(self, future: Future[Any]) -> None:
        """Wait until every rank has built its network or failed.

        In a barrier, a slow rank would look like a hanging one. Instead the ranks repeatedly sum
        how many still build, with the usual timeout for each sum.
        """
        pause = 0.0
        while True:
            begun = time.monotonic()
            built = wait((future,), pause).done
            # Leave the cores to ranks that still build.
            time.sleep(max(0.0, begun + pause - time.monotonic()))
            building = np.array([0.0 if built else 1.0])
            self._collective.allreduce_sum(building)
            if not building[0]:
                return
            pause = min(2.0 * pause + 0.01, LOOK_SECONDS)


@contextmanager
def closed_if_it_fails(network: Network) -> Iterator[None]:
    """Free a network if the block raises, because it cannot be used."""
    try:
        yield
    except (AIPerfError, MemoryError):
        network.close()
        raise


def _drop_frames(future: Future[RankNetwork]) -> None:
    """Free the memory of a failed build: its error, which outlives it, holds its frames."""
    error = future.exception()
    if error is not None:
        without_frames(error)
