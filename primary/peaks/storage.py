"""Read bandwidth of one process without the kernel's page cache."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import size
from aiperf_hpc.run.peaks import MeasuredRate, Storage
from aiperf_hpc.run.storage import free_bytes
from aiperf_hpc.system.kernel import known_mount_of

BLOCK = 4 * 2**20
"""Bytes of one read."""
READERS = (1, 4, 16)
"""Concurrent reader threads."""
LEAST_BYTES = 16 * 2**20
MOST_FILES = 10_000
"""Maximum number of files that are examined in a folder."""
Cache = Literal["bypassed", "dropped", "in use"]


class Effort(NamedTuple):
    """Amount of data to read."""

    bytes: int
    """Maximum bytes of distinct data."""
    repetitions: int
    seconds: float
    """Seconds per repetition."""


QUICK, WHOLE = Effort(64 * 2**20, 3, 0.1), Effort(512 * 2**20, 5, 0.5)


class Block(NamedTuple):
    """A part of a file."""

    path: str
    offset: int


def measure_storage(data: Path | None, scratch: Path, effort: Effort) -> Storage:
    """Measure the files of a folder; without one, a temporary file in another folder.

    Raises:
        UsageError: there is nothing to read, or not enough space.
        OSError: a file cannot be read.
    """
    if data is not None:
        return _storage(data, "its own", _blocks(_files(data), effort.bytes), effort)
    with _written(scratch, effort.bytes) as path:
        return _storage(scratch, "written for this", _blocks([path], effort.bytes), effort)


def _storage(
    folder: Path,
    files: Literal["its own", "written for this"],
    blocks: Sequence[Block],
    effort: Effort,
) -> Storage:
    cache = _cache(blocks)
    return Storage(
        folder=str(folder),
        file_system=known_mount_of(folder.resolve()).type,
        files=files,
        cache=cache,
        readings=tuple(_reading(blocks, readers, cache, effort) for readers in READERS),
    )


def _files(folder: Path) -> list[Path]:
    """Return a folder's files, largest first."""
    if not folder.is_dir():
        raise UsageError(f"--data {folder}: no such folder")
    every = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    found = [path for path in itertools.islice(every, MOST_FILES) if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_size, reverse=True)


def _blocks(files: Sequence[Path], most: int) -> list[Block]:
    """Return whole blocks of files. Raises UsageError if there are too few to measure."""
    every = (
        Block(str(path), offset)
        for path in files
        for offset in range(0, path.stat().st_size - BLOCK + 1, BLOCK)
    )
    found = list(itertools.islice(every, most // BLOCK))
    if len(found) * BLOCK < LEAST_BYTES:
        raise UsageError(
            f"the folder has {size(len(found) * BLOCK)} in files of at least {size(BLOCK)}; "
            f"{size(LEAST_BYTES)} are needed"
        )
    return found


@contextmanager
def _written(folder: Path, count: int) -> Iterator[Path]:
    """Write a temporary file of incompressible random bytes."""
    free = free_bytes(folder)
    if free < 2 * count:
        raise UsageError(f"{folder} has {size(free)} free; twice {size(count)} are needed")
    with tempfile.NamedTemporaryFile(prefix=".aiperf-peaks-", dir=folder) as file:
        for _ in range(count // BLOCK):
            file.write(os.urandom(BLOCK))
        file.flush()
        os.fsync(file.fileno())  # Dirty pages cannot be dropped from the cache.
        yield Path(file.name)


def _cache(blocks: Sequence[Block]) -> Cache:
    """Return the method by which reads of these files avoid the page cache."""
    try:
        _read(blocks[0], _buffer(), "bypassed")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    else:
        return "bypassed"
    _read(blocks[0], _buffer(), "dropped")
    return "in use" if _is_cached(blocks[0]) else "dropped"


def _is_cached(block: Block) -> bool:
    """Return whether a block's first page is cached, or whether that is unknown."""
    file = os.open(block.path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, block.offset, BLOCK, os.POSIX_FADV_DONTNEED)
        os.preadv(file, [bytearray(1)], block.offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    finally:
        os.close(file)
    return True


def _buffer() -> mmap.mmap:
    """Return page-aligned memory, which O_DIRECT requires."""
    return mmap.mmap(-1, BLOCK)


def _read(block: Block, buffer: mmap.mmap, cache: Cache) -> int:
    file = os.open(block.path, os.O_RDONLY | (os.O_DIRECT if cache == "bypassed" else 0))
    try:
        if cache != "bypassed":
            os.posix_fadvise(file, block.offset, BLOCK, os.POSIX_FADV_DONTNEED)
        return os.preadv(file, [buffer], block.offset)
    finally:
        os.close(file)


def _reading(blocks: Sequence[Block], readers: int, cache: Cache, effort: Effort) -> MeasuredRate:
    """Return the rate of this number of readers, which take the blocks in turn and start over."""
    turn = itertools.cycle(blocks)  # Its next() is atomic in the interpreter.
    rates = []
    with ThreadPoolExecutor(readers) as pool:
        for _ in range(effort.repetitions):
            begun = time.perf_counter()
            until = begun + effort.seconds
            jobs = [pool.submit(_read_until, turn, until, cache) for _ in range(readers)]
            done = sum(job.result() for job in jobs)
            rates.append(done / (time.perf_counter() - begun))
    return MeasuredRate(
        size=f"{readers} reader{'s' * (readers > 1)}",
        amount=BLOCK,
        median=statistics.median(rates),
        best=max(rates),
        worst=min(rates),
        repetitions=len(rates),
    )


def _read_until(turn: Iterator[Block], until: float, cache: Cache) -> int:
    buffer, done = _buffer(), 0
    while not done or time.perf_counter() < until:
        done += _read(next(turn), buffer, cache)
    return done
