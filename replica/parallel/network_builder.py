"""Building of a network on all ranks, in a background thread of each."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from aiperf_hpc.errors import AIPerfError, EngineError, without_frames
from aiperf_hpc.graph import Graph
from aiperf_hpc.replica.data.base import Part
from aiperf_hpc.replica.engines.base import Network, RankEngine, RankNetwork
from aiperf_hpc.replica.parallel.collectives import Collective
from aiperf_hpc.replica.parallel.data_parallel import DataParallelNetwork, rank_numbers
from aiperf_hpc.replica.parallel.protocol import BuildRequest, Warmup
from aiperf_hpc.replica.runtime.background import lower_priority

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
