"""Witnesses of a run: servers of ``aiperf witness``, and time-stamp authorities by RFC 3161."""

from __future__ import annotations

import http.client
import json
import os
import secrets
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.integrity.signatures import BadSignatureError, PublicKey
from aiperf_hpc.run.journal_digest import (
    JournalDigest,
    NoStatementError,
    Statement,
    checked_statement,
    signer_of,
)
from aiperf_hpc.run.records import AnyEvent, TimeStamped, Witnessed
from aiperf_hpc.streams import without_controls
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_of

LONGEST: Final = 1_000_000
"""Bytes of the longest answer that is read."""
LONGEST_REASON: Final = 300
ADDRESS: Final = "/api/v1/statements"
TOKEN_BYTES: Final = 32
LONGEST_STAMP: Final = 70_000
"""Bytes of the longest time stamp that is recorded; with certificates, one has 2,000 to 7,000."""


class AwayError(AIPerfError):
    """A witness does not answer, or not as it should."""


class _NoRedirect(HTTPRedirectHandler):
    """Follows none: who moves is to be named by its new address."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Return nothing, so that the answer is an error."""


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> bytes:
    """Return the answer to a request.

    Args:
        url: of http or https.
        body: of the request.
        headers: of the request.
        seconds: for which an answer is waited for, each time that nothing comes.

    Raises:
        AwayError: there is none of at most ``LONGEST`` bytes; why, in one line.
    """
    request = Request(url, body, dict(headers), method="POST")  # noqa: S310 -- http(s) by config
    # Proxies are those of the environment: clusters reach the world by one.
    ask = build_opener(_NoRedirect).open
    try:
        with ask(request, timeout=seconds) as answer:
            content: bytes = answer.read(LONGEST + 1)
    except HTTPError as error:
        with error:
            raise AwayError(_line(f"{error.code}: {_detail(error)}")) from None
    except URLError as error:
        cause = error.reason
        raise AwayError(
            _line(reason_of(cause) if isinstance(cause, OSError) else str(cause))
        ) from None
    except OSError as error:
        raise AwayError(_line(reason_of(error))) from None
    except (http.client.HTTPException, ValueError) as error:
        raise AwayError(_line(f"no answer of HTTP: {error!r}")) from None
    if len(content) > LONGEST:
        raise AwayError(f"its answer is longer than {LONGEST:,} bytes")
    return content


def _detail(error: HTTPError) -> str:
    """Return what a server says of a refusal."""
    try:
        said = json.loads(error.read(10_000))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return str(error.reason)
    detail = said.get("detail") if isinstance(said, dict) else None
    return detail if isinstance(detail, str) else str(error.reason)


def _line(text: str) -> str:
    """Return a reason in one line of bounded length, with nothing that a terminal obeys."""
    return without_controls(" ".join(text.split()))[:LONGEST_REASON]


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
        self._last = last
        self._key: PublicKey | None = None
        if last is not None:
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
            self._key = checked_statement(statement, self._run, self._last, self._key)
        except (BadSignatureError, NoStatementError) as error:
            raise AwayError(f"its statement {statement.run_number} of the run: {error}") from None
        self._last = statement
        return Witnessed(url=self.url, key=self._key.fingerprint, statement=statement)


class StampingAuthority:
    """A time-stamp authority: a service by RFC 3161, of which there are public ones."""

    def __init__(self, url: str, run: str) -> None:
        """Know it.

        Args:
            url: where it is.
            run: the run's name.
        """
        self.url = url
        self._run = run

    def show(self, head: JournalDigest, seconds: float) -> list[AnyEvent]:
        from aiperf_hpc.run.time_stamps import (  # Few runs use one.
            NoStampError,
            message_of,
            parsed,
            request_of,
            stamp_of,
        )

        message = message_of(self._run, head)
        request = request_of(message)
        headers = {"Content-Type": "application/timestamp-query"}
        answer = post(self.url, request.as_bytes(), headers, seconds)
        if len(answer) > LONGEST_STAMP:
            raise AwayError(f"its time stamp is longer than {LONGEST_STAMP:,} bytes")
        try:
            response = parsed(answer)
            stamp_of(response, message)
        except NoStampError as error:
            raise AwayError(f"its answer: {error}") from None
        if response.tst_info.nonce != request.nonce:
            raise AwayError("its time stamp is of another request")
        return [TimeStamped(url=self.url, head=head, response=b64encode(answer).decode())]


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
