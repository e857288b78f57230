"""What a replica's processes use, and the telemetry of the nodes that its ranks are on."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from aiperf_hpc.clock import Clock
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent, TelemetrySampled, TelemetryStarted
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.telemetry.sampler import sampled
from aiperf_hpc.telemetry.values import Equipment, Sample


class Totals(NamedTuple):
    """What all processes of a tree have used, and have."""

    cpu_seconds: float
    """User and system so far. Of those that ended it is kept by whoever waited for them. What a
    process left behind that outlived its parent, or was never waited for, leaves the tree, and its
    time with it."""
    memory_bytes: int
    """The sum of the resident sets; what processes share counts for each of them."""


class ProcessTree:
    """A process and its descendants, as they come and go."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root

    def totals(self) -> Totals:
        """Return CPU time and memory by one look: finding the members takes longest."""
        seconds, memory = 0.0, 0
        for member in self._members():
            with suppress(psutil.NoSuchProcess):  # It ended between being listed and being asked.
                times = member.cpu_times()
                seconds += times.user + times.system
                seconds += times.children_user + times.children_system
                memory += member.memory_info().rss
        return Totals(seconds, memory)

    def _members(self) -> Iterator[psutil.Process]:
        yield self._root
        with suppress(psutil.NoSuchProcess):
            yield from self._root.children(recursive=True)


def node_tree() -> ProcessTree:
    """Return the run's processes on this host, as far as they hang together.

    Those are all under whoever started this one: the primary, ``mpirun``, ``start_ranks`` or
    the scheduler's daemon of the step. Where that is gone or not to be seen, they are this process
    and what it started.
    """
    own = psutil.Process()
    with suppress(psutil.Error):
        starter = own.parent()
        if starter is not None and starter.pid != 1:
            starter.cpu_times()
            return ProcessTree(starter)
    return ProcessTree(own)


def replica_tree(several_ranks: bool) -> ProcessTree:
    """Return the processes of the replica that this process belongs to, on this host.

    Those are this process, its search workers and what they start. Where the replica has several
    ranks, whoever started this one started the others here too: ``mpirun``, ``start_ranks`` or
    the scheduler's daemon of the step.
    """
    own = psutil.Process()
    starter = own.parent() if several_ranks else None
    return ProcessTree(own if starter is None or starter.pid == 1 else starter)


@contextmanager
def node_telemetry(
    paths: RunPaths, *, seconds: float, clock: Clock, append: Callable[[AnyEvent], object]
) -> Iterator[None]:
    """Record this node's telemetry while the block runs, if no other process of the run does.

    Args:
        paths: the run.
        seconds: between two samples; 0 for none.
        clock: by which energy is integrated.
        append: called with the records, from a thread.
    """
    if seconds == 0.0:
        yield
        return

    def record(value: Equipment | Sample) -> None:
        is_sample = isinstance(value, Sample)
        append(TelemetrySampled(sample=value) if is_sample else TelemetryStarted(equipment=value))

    name = hashlib.sha256(str(paths.root.resolve()).encode()).hexdigest()[:32]
    with sampled(name, node_tree(), seconds=seconds, clock=clock, record=record):
        yield


@contextmanager
def journaled_telemetry(
    paths: RunPaths, journal: Path, *, seconds: float, clock: Clock
) -> Iterator[None]:
    """Record this node's telemetry in a journal of its own, which is made when there is any."""
    over = threading.Event()
    retry = BackoffRetry(over.is_set, clock=clock)
    writers: list[JournalWriter] = []

    def append(event: AnyEvent) -> None:
        if not writers:
            writers.append(JournalWriter(journal, clock=clock, retry=retry))
        writers[0].append(event)

    try:
        with node_telemetry(paths, seconds=seconds, clock=clock, append=append):
            yield
    finally:
        over.set()  # What could not be stored by now is given up.
        for writer in writers:
            writer.close()
