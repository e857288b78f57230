"""Following ranks: they execute the commands that rank 0 announces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from aiperf_hpc.errors import AIPerfError, EngineError, without_frames
from aiperf_hpc.replica.data.base import Batch, Dataset, Part
from aiperf_hpc.replica.data.baseline import Tally
from aiperf_hpc.replica.engines.base import RankEngine
from aiperf_hpc.replica.parallel.collectives import Collective
from aiperf_hpc.replica.parallel.data_parallel import DataParallelNetwork, RankDataset
from aiperf_hpc.replica.parallel.network_builder import NetworkBuilder
from aiperf_hpc.replica.parallel.protocol import (
    BuildRequest,
    Command,
    next_command,
)
from aiperf_hpc.streams import warn


def follow(engine: RankEngine, dataset: Dataset, collective: Collective) -> None:
    """Execute rank 0's commands until it announces the end."""
    follower = _Follower(engine, dataset, collective)
    while True:
        command, numbers = next_command(collective)
        if command is Command.END:
            return
        try:
            follower.do(command, numbers)
        except AIPerfError as error:
            # All ranks get the failure, and rank 0 decides about the trial.
            warn(f"rank {collective.rank}: {error}")
            without_frames(error)


class _Follower:
    """Current network and epoch of a following rank."""

    def __init__(self, engine: RankEngine, dataset: Dataset, collective: Collective) -> None:
        self._collective = collective
        self._dataset = RankDataset(dataset, Part(collective.rank, collective.size))
        self._builder = NetworkBuilder(engine, collective)
        self._network: DataParallelNetwork | None = None
        self._batches: Iterator[Batch] = iter(())
        self._objective = engine.objective
        self._tally: Tally | None = None

    def do(self, command: Command, numbers: Sequence[float]) -> None:
        """Execute one command. Raises AIPerfError if it failed on any rank."""
        match command:
            case Command.BUILD:
                number, head_bytes = map(int, numbers[:2])
                self._builder.begin(number, BuildRequest.received(self._collective, head_bytes))
            case Command.TAKE_NETWORK:
                self._network = None
                self._network = self._builder.take(int(numbers[0]))
            case Command.TRAIN:
                epoch, batch_size, seed = map(int, numbers)
                self._batches = self._dataset.train(epoch, batch_size, seed)
            case Command.VALIDATION:
                self._batches = self._dataset.validation(int(numbers[0]))
            case Command.WATCH_TARGETS:
                self._tally = Tally(self._objective, self._dataset.info)
                self._batches = self._tally.watched(self._batches)
            case Command.SUM_TARGETS if self._tally is not None:
                self._collective.allreduce_sum(self._tally.totals)
            case _ if self._network is None:
                raise EngineError("there is no network: it could not be built")
            case Command.CALIBRATE:
                self._network.calibrate(self._peek)
            case Command.TRAIN_STEP:
                self._network.train_step(self._take, numbers[0], agreed=bool(numbers[1]))
            case Command.DRAIN_TRAINING:
                self._network.drain_training()
            case Command.EVALUATE_STEP:
                self._network.evaluate_step(self._take)
            case Command.DRAIN_EVALUATION:
                self._network.drain_evaluation()
            case Command.CLOSE:
                closed, self._network = self._network, None
                closed.close()
                if closed.failure is not None:  # Rank 0 took its own batch first.
                    raise closed.failure

    def _take(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            raise EngineError("rank 0 asks for more batches than the epoch has")
        return batch

    def _peek(self) -> Batch:
        """Return the next batch without consuming it."""
        batch = self._take()
        self._batches = itertools.chain((batch,), self._batches)
        return batch
