"""What a witness signs, and whether its statements follow from each other."""

from __future__ import annotations

from typing import Final

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.integrity.signatures import PublicKey, check_signature
from aiperf_hpc.run.journal_digest import NOTHING, Statement

NAMESPACE: Final = "aiperf-hpc-witness"
"""What the key of a witness signs for."""


class NoStatementError(AIPerfError):
    """What is said to be a witness's statement of a run is none, or does not follow."""


def signer_of(statement: Statement) -> PublicKey:
    """Return the key that signed a statement. Raises BadSignatureError when none did."""
    return check_signature(statement.message, statement.signature.encode(), NAMESPACE)


def checked(
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
