"""Append-only journals on a shared file system: one writer a file, any number of readers.

No lock and no shared append, which NFS does not keep its word about. A record is one line; it
is on stable storage when ``append`` returns.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Self, TypeVar

from pydantic import ValidationError

from aiperf_hpc.clock import SYSTEM, Clock
from aiperf_hpc.errors import AIPerfError, JournalError, StorageError
from aiperf_hpc.run.journal_digest import Hash, JournalDigest, new_hash
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.records import AnyEvent, Record
from aiperf_hpc.run.records.parsing import AnyRecord, model_of, parsed
from aiperf_hpc.run.storage import GrowingFile, Retry, Sync, no_retry, to_stable_storage
from aiperf_hpc.untrusted.bounds import message_of
from aiperf_hpc.untrusted.files import regular_descriptor

CACHE_TRIES = 5
"""How often a journal is read, each time past this machine's cache, until no zero is in it."""
MOST_LINE_BYTES = 16 * 2**20
"""The longest line of a journal, and what is read of it at once. The longest that is written is the
start of a replica, with a host's name for each rank: 16 MiB are 800,000 of them."""
MOST_PROBLEMS = 10_000
"""Lines of a journal that may be no records, or out of place. Damage is of a few; a file with more
is no journal, and each is kept with what is wrong."""

RECORD_BEGINS = b'{"v":1,"seq":'

R = TypeVar("R", Record, AnyRecord)
T = TypeVar("T")


def is_torn(tail: bytes) -> bool:
    """Return whether the bytes behind the last newline of a journal are an unfinished write.

    They begin as a record does, or with NULs: after a power cut a file may have its new length
    but not all of its new content, which then reads as zeros.
    """
    written, _, _ = tail.partition(b"\0")
    return RECORD_BEGINS.startswith(written[: len(RECORD_BEGINS)])


class JournalWriter:
    """The one writer of one journal. Threads of its process may share it.

    A file left by an earlier writer is continued. A last line that was torn is moved to a
    file beside it first, so that it is neither lost nor taken for a record.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock = SYSTEM,
        retry: Retry = no_retry,
        sync: Sync = to_stable_storage,
        recorded: Callable[[float, float], None] = lambda utc, mono: None,
    ) -> None:
        """Open ``path``, making its folder.

        Args:
            path: the journal.
            clock: what the records are stamped by.
            retry: how to write; a BackoffRetry waits while the storage is full or away.
            sync: how to bring what was written to stable storage.
            recorded: told the time of each record by both clocks, once it is stored.

        Raises:
            JournalError: it cannot be opened.
        """
        self.path = path
        self._clock = clock
        self._retry = retry
        self._sync = sync
        self._recorded = recorded
        self._lock = threading.Lock()
        self._open = False
        self._begin()
        self._open = True

    def _begin(self) -> None:
        self._seq, self._file, self._hash = _try(
            self._retry, lambda: _prepare(self.path, self._sync), self.path
        )

    def append(self, event: AnyEvent) -> Record:
        """Write one record and wait until it is on stable storage.

        Raises:
            JournalError: the file system refuses, e.g. because it is full; or the writer is
                closed.
        """
        return self.append_all([event])[0]

    def append_all(self, events: Sequence[AnyEvent]) -> list[Record]:
        """Write several records with one wait for stable storage.

        Raises:
            JournalError: as for ``append``; then none of them was written.
        """
        with self._lock:
            if not self._open:
                raise JournalError(f"the journal {self.path} is closed")
            utc, mono = self._clock.utc(), self._clock.monotonic()
            written = [
                Record(seq=self._seq + number, utc=utc, mono=mono, event=event)
                for number, event in enumerate(events)
            ]
            lines = b"".join(record.model_dump_json().encode() + b"\n" for record in written)
            try:
                _try(self._retry, lambda: self._file.add(lines), self.path)
            except JournalError:
                # Neither a torn line, nor a whole one whose number the next record would
                # repeat. Where that fails too, the next record or the next writer does it.
                with suppress(AIPerfError):
                    _try(self._retry, self._file.cut, self.path)
                raise
            self._seq += len(written)
            self._hash.update(lines)
            self._recorded(utc, mono)
        return written

    @property
    def head(self) -> JournalDigest:
        """All that was written so far, by earlier writers too."""
        with self._lock:
            return JournalDigest(bytes=self._file.size, sha256=self._hash.hexdigest())

    def begin_anew(self) -> None:
        """Put an empty journal in the place of what is there.

        For one that holds nothing which could not be said again.

        Raises:
            JournalError: the file system refuses.
        """
        with self._lock:
            before = self._file
            _try(self._retry, lambda: write_whole(self.path, b"", self._sync), self.path)
            self._begin()
            before.close()  # Last, so that the new file has another number.

    def close(self) -> None:
        """Close the file; a closed writer writes no more."""
        with self._lock:
            if self._open:
                self._open = False
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _prepare(path: Path, sync: Callable[[int], None]) -> tuple[int, GrowingFile, Hash]:
    """Open a journal, a torn last line set aside; return the next record's number too, and the
    hash of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return 0, GrowingFile(path, sync), new_hash()
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        write_whole(path.with_name(f"{path.name}.torn-{time.time_ns()}"), content[whole:])
        os.truncate(path, whole)
    reader, hash_ = JournalReader(path), new_hash()
    for _ in reader.read():
        pass
    hash_.update(memoryview(content)[:whole])
    return reader.next_seq, GrowingFile(path, sync), hash_


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a journal that is not a record in its place."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.what}"


@dataclass(slots=True)
class JournalReader:
    """Reads a journal as it grows, from where it stopped the last time.

    A last line without its end is waited for; NULs at the end of the file are such a line. A line
    that is no record, one with NULs in it too, or a number that does not follow, is a Problem; the
    lines around it still count. Memory is that of one line's bound, however large the file is.
    """

    path: Path
    problems: list[Problem] = field(default_factory=list)
    torn: bool = False
    """Whether the file ends, for now, in an unfinished line."""
    line: int = 0
    """The number of the last line read."""
    unread: int = 0
    """Lines that are no records."""
    next_seq: int = 0
    """The number that the next record should have."""
    offset: int = 0
    """The bytes read so far: whole lines."""
    retry: Retry = no_retry
    """How to read; a BackoffRetry waits while the storage is away."""
    lost: str = ""
    """Why what was read before is no longer there, at the last look; empty while it is."""
    replaced: bool = False
    """Whether another file has come in the place of the one that was read until then."""
    _inode: int | None = None
    _hash: Hash | None = None
    """The SHA-256 of what was read so far; None until somebody asks, which few do."""

    @property
    def hash(self) -> Hash:
        """The SHA-256 of what was read so far, once all that ``read`` yields was taken.

        Asked for the first time, what was read is read again.

        Raises:
            JournalError: it is unreadable.
        """
        if self._hash is None:
            self._hash = _try(self.retry, self._hashed, self.path, "read")
        return self._hash

    @property
    def count(self) -> int:
        """How many records were read."""
        return self.line - self.unread

    def read(self) -> Iterator[Record]:
        """Yield the records added since the last call. Raises JournalError if unreadable."""
        return self._read(model_of)

    def read_quickly(self) -> Iterator[AnyRecord]:
        """Yield the same, but the most frequent ones not as models.

        Raises:
            JournalError: it is unreadable.
        """
        return self._read(parsed)

    def _read(self, parse: Callable[[bytes], R]) -> Iterator[R]:
        full = True
        while full:
            content = _try(self.retry, self._content, self.path, "read")
            full = len(content) == MOST_LINE_BYTES
            whole = content.rfind(b"\n") + 1
            if full and not whole:
                raise self._no_journal(f"line {self.line + 1} has more than {len(content):,} bytes")
            self.torn = whole < len(content)
            if self._hash is not None:
                self._hash.update(memoryview(content)[:whole])
            yield from self._records(content[:whole], parse)

    def _records(self, lines: bytes, parse: Callable[[bytes], R]) -> Iterator[R]:
        for line in lines.split(b"\n")[:-1]:
            self.offset += len(line) + 1
            self.line += 1
            try:
                record = parse(line)
            except ValidationError as error:
                self._problem("not a record: it has NUL bytes" if b"\0" in line else _why(error))
                self.next_seq += 1
                self.unread += 1
                continue
            if record.seq != self.next_seq:
                self._problem(f"record {record.seq} where {self.next_seq} was due")
            self.next_seq = record.seq + 1
            yield record

    def _hashed(self) -> Hash:
        found, left = new_hash(), self.offset
        with suppress(FileNotFoundError), self._opened() as file:
            while left and (piece := file.read(min(left, MOST_LINE_BYTES))):
                found.update(piece)
                left -= len(piece)
        return found

    def _opened(self) -> FileIO:
        return open(regular_descriptor(self.path, follow=False), "rb", buffering=0)

    def _content(self) -> bytes:
        """Return what follows the last whole line that was read."""
        try:
            # Opened each time: that is when an NFS client asks whether the file has changed.
            with self._opened() as file:
                now = os.fstat(file.fileno())
                self.replaced |= self._inode not in (None, now.st_ino) or now.st_size < self.offset
                self._inode = now.st_ino
                content = self._fetched(file)
                length = self.offset if content else os.fstat(file.fileno()).st_size
            self.lost = (
                f"has become shorter: {length} bytes, of which {self.offset} were read before; "
                "put it back"
                if length < self.offset
                else ""
            )
            return content
        except FileNotFoundError:
            self.lost = "is missing; put it back" if self.offset else ""
            return b""  # Not there yet, or not yet visible to this NFS client.

    def _fetched(self, file: FileIO) -> bytes:
        """Return what follows in the file, without the zeros that a cache makes up.

        While a file grows, an NFS client whose processes read it gives zeros for what it has not
        fetched yet. Zeros that stay are in the file, and will be reported.
        """
        for _ in range(CACHE_TRIES):
            file.seek(self.offset)
            content = _read(file, os.fstat(file.fileno()).st_size - self.offset)
            if b"\0" not in content:
                break
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return content

    def _problem(self, what: str) -> None:
        if len(self.problems) == MOST_PROBLEMS:
            raise self._no_journal(f"{MOST_PROBLEMS:,} lines are no records in their place")
        self.problems.append(Problem(self.path, self.line, what))

    def _no_journal(self, why: str) -> JournalError:
        return JournalError(f"{self.path} is no journal: {why}")


def _try(retry: Retry, action: Callable[[], T], path: Path, verb: str = "write") -> T:
    """Do ``action`` on a journal. Raises JournalError when it fails."""
    try:
        return retry(action, f"the journal {path}", verb)
    except StorageError as error:
        raise JournalError(str(error)) from None


def _read(file: FileIO, expected: int) -> bytes:
    """Return what is left of a file, about ``expected`` bytes; at most ``MOST_LINE_BYTES``."""
    at_once = max(expected, 0) + 1
    pieces, left = [], MOST_LINE_BYTES
    while left and (piece := file.read(min(at_once, left))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _why(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = "".join(f"{part}: " for part in first["loc"])
    return f"not a record: {where}{message_of(first)}"
