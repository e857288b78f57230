"""Sampling a node beside whatever else a process does, once on each host."""

from __future__ import annotations

import errno
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from aiperf_hpc.clock import Clock
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.host.threads import in_background
from aiperf_hpc.system.kernel_files import ROOT
from aiperf_hpc.telemetry.node import Processes
from aiperf_hpc.telemetry.sampler import READ_SECONDS, sampler
from aiperf_hpc.telemetry.values import Equipment, Sample

END_SECONDS: Final = 15.0
"""How long the end of a process waits for the last sample: a vendor's program may take 10 s, and
one that hangs must not keep the process."""


class Reader(Protocol):
    """What reads, and tells of it: a Sampler."""

    @property
    def quick(self) -> bool: ...

    def read(self) -> None: ...

    def take(self) -> Sample: ...


class Ending(Protocol):
    """What tells that it is over: an Event of threads."""

    def wait(self, timeout: float) -> bool: ...


Record = Callable[[Equipment | Sample], None]
"""What stores what there is to tell. Raises AIPerfError where it cannot."""


@contextmanager
def sampled(
    name: str,
    processes: Processes,
    *,
    seconds: float,
    clock: Clock,
    record: Record,
    root: Path = ROOT,
) -> Iterator[None]:
    """Sample this node from a thread of its own while the block runs, unless another process does.

    When that one has ended, this one goes on. What goes wrong is told on standard error and in a
    last record, and never ends the block.

    Args:
        name: what is the same for all processes of a run, and for no other's.
        processes: the run's, on this node.
        seconds: between two samples.
        clock: by which energy is integrated.
        record: called from the thread.
        root: above ``/sys``.
    """

    def work(over: threading.Event) -> None:
        try:
            with claimed_host(name, over, every=seconds) as ours:
                if ours:
                    with sampler(processes, seconds=seconds, clock=clock, root=root) as own:
                        record(own.equipment)
                        sample_until(own, over, seconds=seconds, clock=clock, record=record)
        except AIPerfError as error:
            sys.stderr.write(f"aiperf: no more telemetry: {error}\n")
        except Exception as error:  # noqa: BLE001 -- told; the benchmark goes on without it
            traceback.print_exc()
            why = f"unexpected {type(error).__name__}: {error}"
            with suppress(AIPerfError):  # It has been told already.
                host = socket.gethostname()
                record(Equipment(host=host, seconds=seconds, absent={"telemetry": why}))

    with in_background(work, "telemetry", END_SECONDS):
        yield


@contextmanager
def claimed_host(name: str, over: threading.Event, *, every: float) -> Iterator[bool]:
    """Wait until no other process has the host, or it is over; give whether it is ours."""
    while (claim := claim_host(name)) is None:
        if over.wait(every):
            yield False
            return
    with claim:
        yield True


def sample_until(
    own: Reader, over: Ending, *, seconds: float, clock: Clock, record: Record
) -> None:
    """Read and record in time until it is over; then record what is left.

    What could not be done in time, as where storage was waited for, is not made up for.
    """
    read = clock.monotonic()
    due = read + seconds
    while True:
        now = clock.monotonic()
        read = min(max(read + READ_SECONDS, now), due) if own.quick else due
        if over.wait(max(0.0, read - now)):
            break
        if read < due:
            own.read()
        else:
            record(own.take())
            due += seconds * (1 + max(0.0, clock.monotonic() - due) // seconds)
    record(own.take())


def claim_host(name: str) -> socket.socket | None:
    """Return what no other process of this host has under this name until it is closed, or ends.

    It is an address of Linux's abstract namespace, which no file is left of. Containers may have a
    namespace each.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0aiperf-telemetry-{name}")
    except OSError as error:
        claim.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return claim
