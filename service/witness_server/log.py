"""Log of a witness: append-only, verified on opening, each statement chained to its predecessor."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Final

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, UsageError, restated
from aiperf_hpc.integrity.signatures import (
    BadSignatureError,
    PrivateKey,
    load_private_key,
    make_key,
)
from aiperf_hpc.run.journal_digest import (
    NAMESPACE,
    NOTHING,
    JournalDigest,
    Statement,
    follows,
    signer_of,
)
from aiperf_hpc.run.storage import GrowingFile
from aiperf_hpc.service.problem import ProblemError

MOST_GIVEN: Final = 100
"""Maximum number of a run's statements per response."""
BACK_SECONDS: Final = 1.0
"""Maximum backward step of the clock in seconds before the witness stops signing."""


@dataclass(slots=True)
class _Run:
    """State of a run in the log."""

    owner: str
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    """Offset of each of the run's statements in the log."""
    last: str = NOTHING


class WitnessLog:
    """Log of all statements of a witness. It is thread-safe."""

    def __init__(
        self, folder: Path, *, most_bytes: int, utc: Callable[[], float] = time.time
    ) -> None:
        """Read the existing log; create the key and the log if they do not exist.

        Args:
            folder: folder with ``log.jsonl`` and the key.
            most_bytes: maximum size of the log in bytes.
            utc: clock of the witness, UTC seconds.

        Raises:
            UsageError: the folder is unusable, or its log was modified.
        """
        self._most_bytes = most_bytes
        self._utc = utc
        self._lock = Lock()
        self._runs: dict[str, _Run] = {}
        self._offsets = array("Q")
        self._last = NOTHING
        self._last_utc = 0.0
        self._path = folder / "log.jsonl"
        with restated(f"cannot run a witness in {folder}", caught=OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self.key = _key_in(folder)
            self._read()
            self._file = GrowingFile(self._path)

    @property
    def count(self) -> int:
        """Number of statements."""
        return len(self._offsets)

    def add(self, run: str, token: str, head: JournalDigest, after: int) -> list[Statement]:
        """Sign a statement on a journal digest; return the run's statements after ``after``.

        Args:
            run: name of the run.
            token: secret that proves that all digests of the run come from the same sender.
            head: digest of the run's primary journal.
            after: number of the last received statement within the run.

        Raises:
            ProblemError: the name belongs to another run, the log is full, or the clock went back.
            OSError: the log cannot be written.
        """
        owner = hashlib.sha256(token.encode()).hexdigest()
        with self._lock:
            known = self._runs.get(run)
            if known is not None and known.owner != owner:
                what = "a run of this name was submitted with another token"
                raise ProblemError(HTTPStatus.FORBIDDEN, "not-the-owner", what)
            statement = self._next(run, owner, head, known)
            self._write(statement)
            return self._of_run(run, after)

    def of_run(self, run: str, after: int = 0) -> list[Statement]:
        """Return the first ``MOST_GIVEN`` statements of a run after number ``after``."""
        with self._lock:
            return self._of_run(run, after)

    def lines(self, first: int, limit: int) -> bytes:
        """Return a number of statements from number ``first`` on, one per line."""
        with self._lock:
            begin, end = first - 1, min(first - 1 + limit, len(self._offsets))
            if begin >= end:
                return b""
            until = self._offsets[end] if end < len(self._offsets) else self._file.size
            return self._bytes(self._offsets[begin], until)

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def _next(self, run: str, owner: str, head: JournalDigest, known: _Run | None) -> Statement:
        now = self._utc()
        if now < self._last_utc - BACK_SECONDS:
            what = "the witness's clock was set back; it signs nothing until that time"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "clock", what)
        unsigned = Statement(
            number=self.count + 1,
            previous=self._last,
            run=run,
            owner=owner,
            run_number=1 if known is None else len(known.offsets) + 1,
            run_previous=NOTHING if known is None else known.last,
            head=head,
            utc=max(now, self._last_utc),
        )
        signature = self.key.sign(unsigned.message, NAMESPACE).decode()
        return unsigned.model_copy(update={"signature": signature})

    def _write(self, statement: Statement) -> None:
        line = statement.line + b"\n"
        if self._file.size + len(line) > self._most_bytes:
            what = "the witness's log is full"
            raise ProblemError(HTTPStatus.INSUFFICIENT_STORAGE, "full", what)
        offset = self._file.size
        try:
            self._file.add(line)
        except BaseException:
            with suppress(
                OSError
            ):  # The next append truncates the partial line if this one cannot.
                self._file.cut()
            raise
        self._take(statement, offset)

    def _take(self, statement: Statement, offset: int) -> None:
        self._last, self._last_utc = statement.sha256, statement.utc
        self._offsets.append(offset)
        run = self._runs.setdefault(statement.run, _Run(statement.owner))
        run.offsets.append(offset)
        run.last = self._last

    def _of_run(self, run: str, after: int) -> list[Statement]:
        known = self._runs.get(run)
        if known is None or after < 0:
            return []
        found = known.offsets[after : after + MOST_GIVEN]
        with self._path.open("rb") as file:
            statements = []
            for offset in found:
                file.seek(offset)
                statements.append(Statement.model_validate_json(file.readline()))
        return statements

    def _bytes(self, begin: int, end: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def _read(self) -> None:
        if not self._path.exists():
            return
        whole = _without_torn_line(self._path)
        offset = 0
        for statement in checked_log(self._path, self.key.public.fingerprint):
            self._take(statement, offset)
            offset += len(statement.line) + 1
        if offset != whole:
            raise UsageError(f"{self._path} has been changed")


def checked_log(path: Path, fingerprint: str | None) -> Iterator[Statement]:
    """Yield the statements of a log after verifying the chain and the signature of each.

    Args:
        path: path of the log.
        fingerprint: fingerprint of the signing key; if unknown, any single key is accepted.

    Raises:
        UsageError: a line is no statement, breaks the chain, or is not signed by that key.
        OSError: the log cannot be read.
    """
    last, utc, runs = NOTHING, 0.0, dict[str, Statement]()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                found = Statement.model_validate_json(line)
                by = signer_of(found)
            except ValidationError:
                raise UsageError(f"{where}: not a statement of a witness") from None
            except BadSignatureError as error:
                raise UsageError(f"{where}: its signature: {error}") from None
            fingerprint = fingerprint or by.fingerprint
            next_of_all = (found.number, found.previous) == (number, last) and found.utc >= utc
            next_of_run = follows(found, runs.get(found.run))
            same = by.fingerprint == fingerprint and found.line + b"\n" == line
            if not (next_of_all and next_of_run and same):
                raise UsageError(f"{where}: it does not follow from the previous lines")
            last, utc = found.sha256, found.utc
            runs[found.run] = found
            yield found


def _without_torn_line(path: Path) -> int:
    """Move an incomplete last line, which was never sent, to a separate file; return the size
    left."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(max(0, size - 2**16))
        tail = file.read()
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        if torn:
            path.with_name(f"{path.name}.torn-{time.time_ns()}").write_bytes(tail[-torn:])
            file.truncate(size - torn)
    return size - torn


def _key_in(folder: Path) -> PrivateKey:
    path = folder / "key"
    if not path.exists():
        if (folder / "log.jsonl").exists():
            raise AIPerfError(f"{folder} has a log, but the key that signed it is missing")
        make_key(path, "aiperf-witness")
    return load_private_key(path)
