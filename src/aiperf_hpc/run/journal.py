"""Append-only journals on a shared file system: one writer per file, any number of readers.

They use no locks and no shared append, which are unreliable on NFS. A record is one line, and it is
on stable storage when ``append`` returns.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
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
"""Maximum number of times a journal is read again, bypassing the page cache, if it has zeros."""
MOST_LINE_BYTES = 16 * 2**20
"""Maximum length of a line of a journal, and the size of one read. The longest record is the start
of a replica, with a host name for each rank: 16 MiB hold 800,000 names."""
MOST_PROBLEMS = 10_000
"""Maximum number of malformed or misplaced lines of a journal. Damage affects a few lines; a file
with more is not a journal. The limit also bounds memory, since each problem is stored."""

RECORD_BEGINS = (b'{"v":2,"seq":', b'{"v":1,"seq":')

R = TypeVar("R", Record, AnyRecord)
T = TypeVar("T")


def is_torn(tail: bytes) -> bool:
    """Return whether the bytes after the last newline of a journal are an unfinished write.

    They begin like a record or with NULs: after a power failure, a file may have its new length
    without all of its new content, which then reads as zeros.
    """
    written, _, _ = tail.partition(b"\0")
    return any(begin.startswith(written[: len(begin)]) for begin in RECORD_BEGINS)


@dataclass(eq=False)
class JournalWriter:
    """The only writer of a journal. It is thread-safe.

    It continues the file of an earlier writer. A torn last line is first moved to a separate file
    in the same folder, so that it is neither lost nor read as a record.

    Raises:
        JournalError: the journal cannot be opened.
    """

    path: Path
    """Path of the journal."""
    _: KW_ONLY
    clock: Clock = SYSTEM
    """Clock of the records' times."""
    retry: Retry = no_retry
    """Retry policy; a BackoffRetry waits while the storage is full or unavailable."""
    sync: Sync = to_stable_storage
    """Function that flushes the file to stable storage."""
    recorded: Callable[[float, float], None] = lambda utc, mono: None
    """Callback with the UTC and the monotonic time of each stored record."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._begin()
        self._open = True

    def _begin(self) -> None:
        self._seq, self._file, self._hash = _try(
            self.retry, lambda: _prepare(self.path, self.sync), self.path
        )

    def append(self, event: AnyEvent) -> Record:
        """Write one record and wait until it is on stable storage.

        Raises:
            JournalError: the write fails, e.g. because the file system is full, or the writer is
                closed.
        """
        return self.append_all([event])[0]

    def append_all(self, events: Sequence[AnyEvent]) -> list[Record]:
        """Write several records with one flush to stable storage.

        Raises:
            JournalError: as for ``append``; none of the records was written.
        """
        with self._lock:
            if not self._open:
                raise JournalError(f"the journal {self.path} is closed")
            utc, mono = self.clock.utc(), self.clock.monotonic()
            written = [
                Record(seq=self._seq + number, utc=utc, mono=mono, event=event)
                for number, event in enumerate(events)
            ]
            lines = b"".join(record.model_dump_json().encode() + b"\n" for record in written)
            try:
                _try(self.retry, lambda: self._file.add(lines), self.path)
            except JournalError:
                # Leave neither a torn line nor a complete one whose number the next record
                # would repeat. If that fails too, the next append or writer does it.
                with suppress(AIPerfError):
                    _try(self.retry, self._file.cut, self.path)
                raise
            self._seq += len(written)
            self._hash.update(lines)
            self.recorded(utc, mono)
        return written

    @property
    def digest(self) -> JournalDigest:
        """Digest of the whole journal, including the records of earlier writers."""
        with self._lock:
            return JournalDigest(bytes=self._file.size, sha256=self._hash.hexdigest())

    def begin_anew(self) -> None:
        """Replace the journal by an empty one.

        Only for journals whose content can be generated again.

        Raises:
            JournalError: the file cannot be replaced.
        """
        with self._lock:
            before = self._file
            _try(self.retry, lambda: write_whole(self.path, b"", self.sync), self.path)
            self._begin()
            before.close()  # Last, so that the new file has another inode number.

    def close(self) -> None:
        """Close the file; later appends fail."""
        with self._lock:
            if self._open:
                self._open = False
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _prepare(path: Path, sync: Callable[[int], None]) -> tuple[int, GrowingFile, Hash]:
    """Open a journal and move a torn last line to a separate file.

    Returns:
        The number of the next record, the open file and the hash of its content.
    """
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
    """A malformed or misplaced line of a journal."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.what}"


@dataclass(slots=True)
class JournalReader:
    """Incremental reader of a growing journal.

    An unfinished last line, also one of NULs, is left for the next call. A malformed line (even one
    with NULs) or a number out of sequence is a Problem; other lines still count. Memory is
    bounded by the maximum length of a line, regardless of the size of the file.
    """

    path: Path
    problems: list[Problem] = field(default_factory=list)
    torn: bool = False
    """Whether the file currently ends in an unfinished line."""
    line: int = 0
    """Number of the last line read."""
    unread: int = 0
    """Number of malformed lines."""
    next_seq: int = 0
    """Expected number of the next record."""
    offset: int = 0
    """Bytes of the complete lines read so far."""
    retry: Retry = no_retry
    """Retry policy; a BackoffRetry waits while the storage is unavailable."""
    until: int | None = None
    """Number of lines to read; all by default."""
    lost: str = ""
    """Description of content lost since it was read, as of the last read: the file is missing or
    has become shorter. Empty otherwise."""
    replaced: bool = False
    """Whether the file was replaced by another one since it was first read."""
    _inode: int | None = None
    _hash: Hash | None = None
    """SHA-256 of the content read so far; None until it is first requested, which is rare."""

    @property
    def hash(self) -> Hash:
        """SHA-256 of the content read so far, valid after the iterator of ``read`` is exhausted.

        The first access reads that content again.

        Raises:
            JournalError: the journal is unreadable.
        """
        if self._hash is None:
            self._hash = _try(self.retry, self._hashed, self.path, "read")
        return self._hash

    @property
    def count(self) -> int:
        """Number of records read so far."""
        return self.line - self.unread

    def read(self) -> Iterator[Record]:
        """Yield the records added since the last call. Raises JournalError if unreadable."""
        return self._read(model_of)

    def read_quickly(self) -> Iterator[AnyRecord]:
        """Yield the same records, but the most frequent kinds as plain tuples instead of models.

        Raises:
            JournalError: the journal is unreadable.
        """
        return self._read(parsed)

    def _read(self, parse: Callable[[bytes], R]) -> Iterator[R]:
        full = True
        while full and (self.until is None or self.line < self.until):
            content = _try(self.retry, self._content, self.path, "read")
            full = len(content) == MOST_LINE_BYTES
            whole = content.rfind(b"\n") + 1
            if full and not whole:
                raise self._no_journal(f"line {self.line + 1} has more than {len(content):,} bytes")
            self.torn = whole < len(content)
            begin, hash_ = self.offset, self._hash
            yield from self._records(content[:whole], parse)
            if hash_ is not None:  # Only of the lines up to ``until``.
                hash_.update(memoryview(content)[: self.offset - begin])

    def _records(self, lines: bytes, parse: Callable[[bytes], R]) -> Iterator[R]:
        for line in lines.split(b"\n")[:-1]:
            if self.line == self.until:
                return
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
                self._problem(f"record {record.seq} instead of {self.next_seq}")
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
        """Return the content after the last complete line that was read."""
        try:
            # Opened each time, because an NFS client revalidates its cache on open.
            with self._opened() as file:
                now = os.fstat(file.fileno())
                self.replaced |= self._inode not in (None, now.st_ino) or now.st_size < self.offset
                self._inode = now.st_ino
                content = self._fetched(file)
                length = self.offset if content else os.fstat(file.fileno()).st_size
            self.lost = (
                f"has become shorter: {length} bytes; {self.offset} were read before; restore it"
                if length < self.offset
                else ""
            )
            return content
        except FileNotFoundError:
            self.lost = "is missing; restore it" if self.offset else ""
            return b""  # Not there yet, or not yet visible to this NFS client.

    def _fetched(self, file: FileIO) -> bytes:
        """Return the next content of the file, without spurious zeros from the page cache.

        While a file grows, an NFS client returns zeros for the part that it has not fetched yet.
        Zeros that persist are in the file and are reported.
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
            raise self._no_journal(f"{MOST_PROBLEMS:,} lines are malformed or misplaced")
        self.problems.append(Problem(self.path, self.line, what))

    def _no_journal(self, why: str) -> JournalError:
        return JournalError(f"{self.path} is not a journal: {why}")


def _try(retry: Retry, action: Callable[[], T], path: Path, verb: str = "write") -> T:
    """Perform ``action`` on a journal. Raises JournalError if it fails."""
    return on_journals(retry, action, f"the journal {path}", verb)


def on_journals(retry: Retry, action: Callable[[], T], what: str, verb: str) -> T:
    """Perform ``action`` on the journals ``what``. Raises JournalError if it fails."""
    try:
        return retry(action, what, verb)
    except StorageError as error:
        raise JournalError(str(error)) from None


def _read(file: FileIO, expected: int) -> bytes:
    """Return the rest of a file, about ``expected`` and at most ``MOST_LINE_BYTES`` bytes."""
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
