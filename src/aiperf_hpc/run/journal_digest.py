"""Digests of journals, and the statements in which witnesses confirm them.

A journal is a hash chain: the SHA-256 of its first n bytes depends on each of them, and that of its
first m > n bytes on those too. So records need no field for a chain, and a process that reads or
writes a journal gets its digest for the price of hashing what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Protocol

from pydantic import Field, ValidationError

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.integrity.signatures import PublicKey, check_signature
from aiperf_hpc.run.clocks import Time
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.storage import Sync, to_stable_storage
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import SHA256
from aiperf_hpc.untrusted.files import bytes_inside

MARK: Final = 4
"""Hexadecimal digits of a journal's digest that identify the journal."""
LONGEST: Final = 1_000
"""Bytes of the longest file of a journal digest."""

Sha256 = Annotated[str, Field(pattern=SHA256)]


class JournalDigest(Value):
    """The length of a journal at a moment, and the SHA-256 of that much of it."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256
    """SHA-256 of the first ``bytes`` bytes, in hexadecimal."""


class Hash(Protocol):
    """A running SHA-256, as ``hashlib`` has it."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def digest_line(name: str, size: int, sha256: str) -> bytes:
    """Return the line of a journal's digest in the SHA-256 over several journals."""
    return f"{name} {size} {sha256}\n".encode()


def combined_sha256(digests: Iterable[tuple[str, int, str]]) -> str:
    """Return the SHA-256 over the digests of several journals: a line each, sorted by name."""
    return hashlib.sha256(b"".join(digest_line(*each) for each in sorted(digests))).hexdigest()


def new_hash() -> Hash:
    """Return a SHA-256 of nothing yet."""
    return hashlib.sha256()


def publish(paths: RunPaths, head: JournalDigest, sync: Sync = to_stable_storage) -> None:
    """Write the digest of the primary's journal for the replicas. Raises OSError."""
    write_whole(paths.primary_head, head.model_dump_json(), sync)


def published(paths: RunPaths) -> JournalDigest | None:
    """Return the latest digest that the primary wrote; None if it cannot be read now.

    The caller continues without it: that it was not recorded is visible in the records.
    """
    try:
        return JournalDigest.model_validate_json(
            bytes_inside(paths.root, paths.primary_head, LONGEST)
        )
    except (OSError, ValidationError):
        return None


NAMESPACE: Final = "aiperf-hpc-witness"
"""What the key of a witness signs for."""
NOTHING: Final = "0" * 64
"""In the place of the hash of a statement before the first."""

RunId = Annotated[str, Field(min_length=1, max_length=200)]
Number = Annotated[int, Field(ge=1, lt=2**53)]


class Statement(Value):
    """A witness was shown a head of a run's primary journal.

    Each is chained to the one before it of the same witness, and to the one before it of the same
    run: none of either can be left out or put in another place unseen.
    """

    v: Literal[1] = 1
    number: Number
    """Of all of this witness, from 1."""
    previous: Sha256
    """SHA-256 of the line of the witness's statement before."""
    run: RunId
    owner: Sha256
    """SHA-256 of what whoever shows this run's heads has to know."""
    run_number: Number
    """Of this run's at this witness, from 1."""
    run_previous: Sha256
    """SHA-256 of the line of this run's statement before."""
    head: JournalDigest
    utc: Annotated[Time, Field(ge=0.0)]
    """When it was shown, by the witness's clock, UTC seconds."""
    signature: Annotated[str, Field(max_length=1000)] = ""
    """The witness's signature of ``message``, as OpenSSH writes it."""

    @property
    def message(self) -> bytes:
        """What is signed: the statement as JSON, but for its signature."""
        return self.model_dump_json(exclude={"signature"}).encode()

    @property
    def line(self) -> bytes:
        """The whole of it, as it stands in the witness's log without the end of the line."""
        return self.model_dump_json().encode()

    @property
    def sha256(self) -> str:
        """What the next statement says of this one."""
        return hashlib.sha256(self.line).hexdigest()


class NoStatementError(AIPerfError):
    """What is said to be a witness's statement of a run is none, or does not follow."""


def signer_of(statement: Statement) -> PublicKey:
    """Return the key that signed a statement. Raises BadSignatureError when none did."""
    return check_signature(statement.message, statement.signature.encode(), NAMESPACE)


def checked_statement(
    statement: Statement, run: str, before: Statement | None, key: PublicKey | None
) -> PublicKey:
    """Return the key that signed a statement of a run.

    Args:
        statement: the statement.
        run: the run's name.
        before: the run's statement before it; None for the first.
        key: what signed that one; None for any.

    Raises:
        BadSignatureError: it is not signed.
        NoStatementError: it is of another run, signed by another key, or does not follow.
    """
    by = signer_of(statement)
    if key is not None and by.raw != key.raw:
        raise NoStatementError(f"it is signed by another key, {by.fingerprint}")
    if statement.run != run:
        raise NoStatementError(f"it is of another run, {statement.run}")
    if not follows(statement, before):
        number = 0 if before is None else before.run_number
        raise NoStatementError(f"it does not follow statement {number} of the run")
    return by


def follows(statement: Statement, before: Statement | None) -> bool:
    """Return whether a statement is the run's next after another, or its first."""
    if before is None:
        return (statement.run_number, statement.run_previous) == (1, NOTHING)
    return (
        (statement.run_number, statement.run_previous) == (before.run_number + 1, before.sha256)
        and statement.owner == before.owner
        and statement.number > before.number
        and statement.utc >= before.utc
    )
