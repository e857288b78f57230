"""Handshake of a replica's ranks before training: all are present and have equal environments."""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from aiperf_hpc.errors import AIPerfError, EngineError, restated
from aiperf_hpc.replica.data import rng
from aiperf_hpc.replica.data.rng import Purpose
from aiperf_hpc.replica.parallel.collectives import Buffer, Collective, RankLostError, on_host
from aiperf_hpc.replica.parallel.rank_failure import RankFailureReporter, Watch, WatchedCollective
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.trial import DatasetInfo

_COMPARED = 4096
"""Maximum number of samples whose order is compared."""

Facts = Mapping[str, str]
"""Facts that must be equal on all ranks, by name."""


class Ranks:
    """The ranks of this replica until all are ready."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        self.incarnation = ""
        """The replica's attempt by rank 0, such as 0.1; empty until the handshake."""
        self._hosts: tuple[str, ...] = ()
        self._met = False
        self._connected = False
        self._reporter: RankFailureReporter | None = None
        self.ready = False
        """Whether all ranks are ready and the following ranks wait for commands."""

    @property
    def several(self) -> bool:
        """Whether there is more than one rank."""
        return self.collective.size > 1

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host of each rank, in order. All ranks must read this first.

        They must load the engine before: it sets up the framework that Horovod then uses.
        """
        if not self._hosts:
            self._hosts = self.exchange(socket.gethostname())
        return self._hosts

    def handshake(
        self,
        facts: Facts,
        incarnation: str = "",
        failure: AIPerfError | None = None,
        probe: Buffer = None,
    ) -> None:
        """Wait until every rank is ready or has reported a failure.

        Backends that initialize at their first reduction, such as NCCL, do so here, because that
        may exceed the timeout of a step.

        Args:
            facts: facts about this rank.
            incarnation: the replica's attempt; rank 0's is used.
            failure: the reason if this rank cannot train.
            probe: the number one on the device of this rank's gradients; for all ranks or none.

        Raises:
            AIPerfError: ``failure``, or EngineError if another rank failed or differs from rank 0,
                or the ranks cannot sum the probe.
        """
        hosts = self.hosts
        self._met = True
        own = {"facts": dict(facts), "incarnation": incarnation, "failed": failure is not None}
        rows: list[dict[str, Any]] = [json.loads(text) for text in self.exchange(json.dumps(own))]
        if failure is not None:
            raise failure
        names = [f"rank {rank} on {hosts[rank]}" for rank, row in enumerate(rows) if row["failed"]]
        if names:
            raise EngineError(f"{', '.join(names)} could not start; the replica's log states why")
        if differing := difference([row["facts"] for row in rows], hosts):
            raise EngineError(differing)
        if probe is not None:
            self._connect(probe)
        self.incarnation = rows[0]["incarnation"]
        self.ready = True

    def _connect(self, probe: Buffer) -> None:
        """Run the first all-reduce. Raises EngineError if it fails."""
        name, ranks = self.collective.name, self.collective.size
        what = f"collective '{name}' cannot sum over the ranks"
        with restated(what, EngineError, caught=RankLostError):
            found = float(on_host(self.collective.start_allreduce_sum(probe)())[0])
        if found != ranks:
            raise EngineError(f"collective '{name}': the sum of {ranks} ones is {found:g}")
        self._connected = True

    def exchange(self, text: str) -> tuple[str, ...]:
        """Return the text of each rank, in order. A collective call."""
        content = np.frombuffer(text.encode(), np.uint8)
        sizes = self.collective.gather(np.array([content.size], np.int64))
        row = np.zeros(max(1, int(sizes.max())), np.uint8)
        row[: content.size] = content
        return tuple(each.tobytes().rstrip(b"\0").decode() for each in self.collective.gather(row))

    def watched(
        self, folder: Path, seconds: float, journal: JournalWriter | None = None
    ) -> Collective:
        """Return the collective with a timeout.

        Args:
            folder: folder of this attempt of the replica.
            seconds: timeout in seconds.
            journal: journal of rank 0.

        Raises:
            RuntimeError: there was no first all-reduce yet, which may need more time.
        """
        if not self._connected:
            raise RuntimeError("the ranks' first sum belongs to their handshake: give it a probe")
        self._reporter = RankFailureReporter(folder, self.collective.rank, self.hosts, journal)
        return WatchedCollective(self.collective, Watch(seconds, self._reporter.end))

    def lost(self, error: RankLostError) -> NoReturn:
        """End this attempt, because another rank is lost."""
        if self._reporter is None:
            raise error
        self._reporter.end(str(error))

    def decline(self) -> None:
        """Report this rank's failure to the others, so that they end."""
        if not self._met:
            try:
                self.handshake({}, failure=EngineError("it did not get that far"))
            except EngineError:
                return  # This rank's own failure is known.


def facts_of(versions: Mapping[str, str], dataset: DatasetInfo, seed: int) -> Facts:
    """Return the facts that must be equal on all ranks to train one network."""
    compared = min(_COMPARED, dataset.train_samples)
    order = rng.permutation(compared, Purpose.ORDER, seed, 1).astype(np.int64)
    return {
        **{f"{name}'s version": version for name, version in versions.items()},
        "the dataset's SHA-256": dataset.sha256[:12],
        "the order of samples, as a checksum,": f"{zlib.crc32(order.tobytes()):08x}",
    }


def difference(facts: Sequence[Facts], hosts: Sequence[str]) -> str:
    """Return the first difference from rank 0 in one line; '' for none."""
    for rank, own in enumerate(facts):
        for name in sorted(facts[0].keys() | own.keys()):
            here, there = own.get(name, "missing"), facts[0].get(name, "missing")
            if here != there:
                return (
                    f"{name} is {here} for rank {rank} on {hosts[rank]} and {there} for rank 0 on "
                    f"{hosts[0]}; install the same environment and data on all nodes"
                )
    return ""
