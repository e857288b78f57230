"""Digests of journals, and the statements in which witnesses confirm them.

A journal is a hash chain: the SHA-256 of its first n bytes depends on each of them, and the SHA-256
of its first m > n bytes depends on them too. Records therefore need no chaining field, and a
process that reads or writes a journal only hashes the new bytes to update its digest.
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

PREFIX_DIGITS: Final = 4
"""Hexadecimal digits of a journal's digest that identify the journal."""
LONGEST: Final = 1_000
"""Maximum size of a journal digest's file in bytes."""

Sha256 = Annotated[str, Field(pattern=SHA256)]


class JournalDigest(Value):
    """The length of a journal at some time, and the SHA-256 of its content up to that length."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256
    """SHA-256 of the first ``bytes`` bytes, in hexadecimal."""


class Hash(Protocol):
    """A SHA-256 object of ``hashlib``."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def digest_line(name: str, size: int, sha256: str) -> bytes:
    """Return the line of a journal's digest in the SHA-256 over several journals."""
    return f"{name} {size} {sha256}\n".encode()


def combined_sha256(digests: Iterable[tuple[str, int, str]]) -> str:
    """Return the SHA-256 over the digests of several journals: a line each, sorted by name."""
    return hashlib.sha256(b"".join(digest_line(*each) for each in sorted(digests))).hexdigest()


def new_hash() -> Hash:
    """Return a SHA-256 object without data."""
    return hashlib.sha256()


def publish(paths: RunPaths, digest: JournalDigest, sync: Sync = to_stable_storage) -> None:
    """Write the digest of the primary's journal for the replicas. Raises OSError."""
    write_whole(paths.primary_digest, digest.model_dump_json(), sync)


def published(paths: RunPaths) -> JournalDigest | None:
    """Return the latest digest that the primary wrote, or None if it cannot be read now.

    The caller continues without it; its absence is visible in the records.
    """
    try:
        return JournalDigest.model_validate_json(
            bytes_inside(paths.root, paths.primary_digest, LONGEST)
        )
    except (OSError, ValidationError):
        return None


NAMESPACE: Final = "aiperf-hpc-witness"
"""Namespace of a witness's signatures, as for ``ssh-keygen -Y sign -n``."""
NOTHING: Final = "0" * 64
"""Placeholder for the hash of the previous statement in the first statement."""

RunId = Annotated[str, Field(min_length=1, max_length=200)]
Number = Annotated[int, Field(ge=1, lt=2**53)]


class Statement(Value):
    """A witness's statement that it received a digest of a run's primary journal.

    Each statement is chained to the witness's previous statement and to the previous statement of
    the same run, so that omission and reordering are detected in both chains.
    """

    v: Literal[1] = 1
    number: Number
    """Number of the statement among all statements of the witness, from 1."""
    previous: Sha256
    """SHA-256 of the line of the witness's previous statement."""
    run: RunId
    owner: Sha256
    """SHA-256 of the secret that is required to submit digests of this run."""
    run_number: Number
    """Number of the statement among the witness's statements of this run, from 1."""
    run_previous: Sha256
    """SHA-256 of the line of this run's previous statement."""
    head: JournalDigest
    utc: Annotated[Time, Field(ge=0.0)]
    """Time at which the witness received the digest, by its own clock, UTC seconds."""
    signature: Annotated[str, Field(max_length=1000)] = ""
    """The witness's signature of ``message`` in OpenSSH's format."""

    @property
    def message(self) -> bytes:
        """The signed message: the statement as JSON without its signature."""
        return self.model_dump_json(exclude={"signature"}).encode()

    @property
    def line(self) -> bytes:
        """The whole statement as a line of the witness's log, without the newline."""
        return self.model_dump_json().encode()

    @property
    def sha256(self) -> str:
        """SHA-256 of the line, to which the next statement is chained."""
        return hashlib.sha256(self.line).hexdigest()


class NoStatementError(AIPerfError):
    """An alleged statement of a witness is invalid or does not continue the chain."""


def signer_of(statement: Statement) -> PublicKey:
    """Return the key that signed a statement. Raises BadSignatureError if it is not signed."""
    return check_signature(statement.message, statement.signature.encode(), NAMESPACE)


def checked_statement(
    statement: Statement, run: str, before: Statement | None, key: PublicKey | None
) -> PublicKey:
    """Return the key that signed a statement of a run.

    Args:
        statement: statement to check.
        run: identifier of the run.
        before: previous statement of the run; None for the first.
        key: key that signed the previous statement; None for any.

    Raises:
        BadSignatureError: the statement is not signed.
        NoStatementError: the statement is of another run, signed by another key, or does not
            continue the chain.
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
    """Return whether a statement directly follows ``before``, or is the first if that is None."""
    if before is None:
        return (statement.run_number, statement.run_previous) == (1, NOTHING)
    return (
        (statement.run_number, statement.run_previous) == (before.run_number + 1, before.sha256)
        and statement.owner == before.owner
        and statement.number > before.number
        and statement.utc >= before.utc
    )
