"""Many result logs at once: in several processes where they are large."""

from __future__ import annotations

import math
import multiprocessing
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.analysis.readers.mllog import ReadLog, Unread, read_log
from aiperf_hpc.analysis.training_log import Epoch, Evaluation

POOL_BYTES = 64 << 20
"""Bytes of all logs together from which a process of its own is worth its start."""
MAX_PROCESSES = 8


def read_logs(paths: Sequence[Path]) -> list[ReadLog | Unread]:
    """Read logs, in their order."""
    processes = min(len(paths), MAX_PROCESSES, len(os.sched_getaffinity(0)))
    if processes < 2 or _bytes(paths) < POOL_BYTES:
        return [read_log(path) for path in paths]
    # Not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        at_once = max(1, len(paths) // (processes * 16))
        return [_unpacked(packed) for packed in pool.map(_packed, paths, chunksize=at_once)]


class _Packed(NamedTuple):
    """A log on its way between processes: a million tuples would take longer than reading them."""

    read: ReadLog
    """Without its epochs and evaluations."""
    epochs: array[float]
    evaluations: array[float]


def _packed(path: Path) -> _Packed | Unread:
    read = read_log(path)
    if isinstance(read, Unread):
        return read
    epochs, evaluations = _numbers(read.log.epochs), _numbers(read.log.evaluations)
    bare = read.log.model_copy(update={"epochs": (), "evaluations": ()})
    return _Packed(read._replace(log=bare), epochs, evaluations)


def _unpacked(packed: _Packed | Unread) -> ReadLog | Unread:
    if isinstance(packed, Unread):
        return packed
    epochs = tuple(
        Epoch(started, _known(ended), number, passes)
        for started, ended, number, passes in _rows(packed.epochs)
    )
    evaluations = tuple(
        Evaluation(_known(epoch), _known(started), ended, _known(quality))
        for epoch, started, ended, quality in _rows(packed.evaluations)
    )
    log = packed.read.log.model_copy(update={"epochs": epochs, "evaluations": evaluations})
    return packed.read._replace(log=log)


def _numbers(rows: Iterable[tuple[float | None, ...]]) -> array[float]:
    """Return the numbers of rows one after another, NaN for None; no number of a log is NaN."""
    return array("d", (math.nan if one is None else one for row in rows for one in row))


def _rows(numbers: array[float]) -> Iterator[tuple[float, float, float, float]]:
    values = iter(numbers)
    return zip(values, values, values, values, strict=True)


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _bytes(paths: Sequence[Path]) -> int:
    """Return the size of all files; those that are not there have none."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
