"""Resource usage of a replica's processes, and the telemetry of its ranks' nodes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from aiperf_hpc.clock import Clock
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent, TelemetrySampled, TelemetryStarted
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.telemetry.sampler import sampled
from aiperf_hpc.telemetry.values import Equipment, TelemetrySample


class ProcessTree:
    """A process and its current descendants."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root

    def totals(self) -> tuple[float, int]:
        """Return CPU time in seconds and memory in bytes of all members, in one pass.

        The CPU time is user and system time. That of an exited process is kept by the parent that
        waited for it. Processes that outlive their parent, or were never waited for, leave the tree
        with their time. The memory is the sum of the resident set sizes; shared memory counts once
        per process.
        """
        seconds, memory = 0.0, 0
        for member in self._members():
            with suppress(psutil.NoSuchProcess):  # It exited after it was listed.
                times = member.cpu_times()
                seconds += times.user + times.system
                seconds += times.children_user + times.children_system
                memory += member.memory_info().rss
        return seconds, memory

    def _members(self) -> Iterator[psutil.Process]:
        yield self._root
        with suppress(psutil.NoSuchProcess):
            yield from self._root.children(recursive=True)


def node_tree() -> ProcessTree:
    """Return the run's process tree on this host.

    It starts at this process's parent: the primary, ``mpirun``, ``start_ranks`` or the scheduler's
    step daemon. If the parent has exited or is not visible, it starts at this process.
    """
    own = psutil.Process()
    with suppress(psutil.Error):
        starter = own.parent()
        if starter is not None and starter.pid != 1:
            starter.cpu_times()
            return ProcessTree(starter)
    return ProcessTree(own)


def replica_tree(several_ranks: bool) -> ProcessTree:
    """Return the process tree of this process's replica on this host.

    It starts at this process or, if the replica has several ranks, at their common parent.
    """
    return node_tree() if several_ranks else ProcessTree(psutil.Process())


@contextmanager
def node_telemetry(
    paths: RunPaths, *, seconds: float, clock: Clock, append: Callable[[AnyEvent], object]
) -> Iterator[None]:
    """Record this node's telemetry while the block runs, if no other process of the run does.

    Args:
        paths: paths of the run.
        seconds: sampling interval; 0 for no telemetry.
        clock: clock by which energy is integrated.
        append: called with the records from a thread.
    """
    if seconds == 0.0:
        yield
        return

    def record(value: Equipment | TelemetrySample) -> None:
        is_sample = isinstance(value, TelemetrySample)
        append(TelemetrySampled(sample=value) if is_sample else TelemetryStarted(equipment=value))

    name = hashlib.sha256(str(paths.root.resolve()).encode()).hexdigest()[:32]
    with sampled(name, node_tree(), seconds=seconds, clock=clock, record=record):
        yield


@contextmanager
def journaled_telemetry(
    paths: RunPaths, journal: Path, *, seconds: float, clock: Clock
) -> Iterator[None]:
    """Record this node's telemetry in its own journal, created with the first sample."""
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
        over.set()  # Records that could not be stored by now are lost.
        for writer in writers:
            writer.close()
