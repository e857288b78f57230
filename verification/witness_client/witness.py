"""A witness as a run knows it."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.integrity.signatures import BadSignatureError, PublicKey
from aiperf_hpc.run.journal_digest import JournalDigest, Statement
from aiperf_hpc.run.records import AnyEvent, Witnessed
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_of
from aiperf_hpc.verification.witness_client.http import AwayError, post
from aiperf_hpc.verification.witness_client.signed import NoStatementError, checked, signer_of

ADDRESS: Final = "/api/v1/statements"
TOKEN_BYTES: Final = 32


class Witness(Protocol):
    """Someone who is shown heads."""

    @property
    def url(self) -> str: ...

    def show(self, head: JournalDigest, seconds: float) -> list[AnyEvent]:
        """Show a head; return what is recorded of the answer, waited for so many seconds.

        Raises:
            AwayError: there is none.
        """
        ...


class _Answer(Value):
    statements: tuple[Statement, ...]


class StatingWitness:
    """One that runs ``aiperf witness``."""

    def __init__(self, url: str, run: str, token: str, last: Statement | None = None) -> None:
        """Know it.

        Args:
            url: where it is.
            run: the run's name.
            token: what shows that it is this run.
            last: its last statement of the run that was recorded.
        """
        self.url = url
        self._run = run
        self._token = token
        self._last: Statement | None = None
        self._key: PublicKey | None = None
        if last is not None:
            self._last = last
            with suppress(BadSignatureError):  # Verification finds that it was changed since.
                self._key = signer_of(last)

    def show(self, head: JournalDigest, seconds: float) -> list[AnyEvent]:
        after = 0 if self._last is None else self._last.run_number
        asked = {"run": self._run, "head": head.model_dump(), "after": after}
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
        }
        said = post(f"{self.url}{ADDRESS}", json.dumps(asked).encode(), headers, seconds)
        try:
            found = _Answer.model_validate_json(said)
        except ValidationError:
            raise AwayError("its answer has no statements") from None
        events = [self._taken(statement) for statement in found.statements]
        if not events:
            raise AwayError(f"it states nothing after statement {after} of the run")
        return events

    def _taken(self, statement: Statement) -> AnyEvent:
        try:
            self._key = checked(statement, self._run, self._last, self._key)
        except (BadSignatureError, NoStatementError) as error:
            raise AwayError(f"its statement {statement.run_number} of the run: {error}") from None
        self._last = statement
        return Witnessed(url=self.url, key=self._key.fingerprint, statement=statement)


def token_in(path: Path) -> str:
    """Return what a run shows witnesses to be known by; made where there is none.

    Raises:
        AIPerfError: the file cannot be read or written.
    """
    try:
        try:
            return bytes_of(path, 1_000).decode("ascii").strip()
        except FileNotFoundError:
            token = secrets.token_hex(TOKEN_BYTES)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(token)
            return token
    except (OSError, UnicodeDecodeError) as error:
        raise AIPerfError(f"cannot use {path}, by which witnesses know the run: {error}") from None
