"""The telemetry of the nodes that a replica's ranks are on."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aiperf_hpc.clock import Clock
from aiperf_hpc.replica.runtime.process_tree import node_tree
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent, TelemetrySampled, TelemetryStarted
from aiperf_hpc.run.storage import BackoffRetry
from aiperf_hpc.telemetry.sampler import sampled
from aiperf_hpc.telemetry.values import Equipment, Sample


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

    def record(told: Equipment | Sample) -> None:
        is_sample = isinstance(told, Sample)
        append(TelemetrySampled(sample=told) if is_sample else TelemetryStarted(equipment=told))

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
