"""Clients of a run's witnesses: ``aiperf witness`` servers and timestamp authorities (RFC 3161).

A thread for each witness submits journal digests; the run never waits for a witness.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.integrity.signatures import BadSignatureError, PublicKey
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.journal_digest import (
    JournalDigest,
    NoStatementError,
    Statement,
    checked_statement,
    signer_of,
)
from aiperf_hpc.run.records import AnyEvent, TimeStamped, Witnessed, WitnessState
from aiperf_hpc.streams import without_controls
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_of

LONGEST: Final = 1_000_000
"""Maximum size of an answer in bytes."""
LONGEST_REASON: Final = 300
ADDRESS: Final = "/api/v1/statements"
TOKEN_BYTES: Final = 32
LONGEST_STAMP: Final = 70_000
"""Maximum size of a recorded timestamp in bytes; 2,000 to 7,000 are usual with certificates."""
ANSWER_SECONDS: Final = 10.0
"""Timeout of a request in seconds."""
END_SECONDS: Final = 10.0
"""Maximum seconds of waiting after the end of a run until a witness has received its digest."""
PAUSES: Final = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Pauses in seconds between requests to a witness that does not answer; the last one repeats."""
END_PAUSE: Final = 0.5


class AwayError(AIPerfError):
    """A witness does not answer, or its answer is invalid."""


class _NoRedirect(HTTPRedirectHandler):
    """Handler that follows no redirects: a witness that moves must be configured again."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Return None, so that the redirect is reported as an error."""


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> bytes:
    """Send a POST request and return the body of the answer.

    Args:
        url: URL with http or https.
        body: body of the request.
        headers: headers of the request.
        seconds: timeout of each socket operation in seconds.

    Raises:
        AwayError: there is no answer of at most ``LONGEST`` bytes; the message is one line.
    """
    request = Request(url, body, dict(headers), method="POST")  # noqa: S310 -- http(s) by config
    # Proxies are taken from the environment: clusters often need one for external hosts.
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
        raise AwayError(_line(f"invalid HTTP response: {error!r}")) from None
    if len(content) > LONGEST:
        raise AwayError(f"its response is longer than {LONGEST:,} bytes")
    return content


def _detail(error: HTTPError) -> str:
    """Return a server's detail of an error."""
    try:
        said = json.loads(error.read(10_000))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return str(error.reason)
    detail = said.get("detail") if isinstance(said, dict) else None
    return detail if isinstance(detail, str) else str(error.reason)


def _line(text: str) -> str:
    """Return a reason in one line of bounded length without control characters."""
    return without_controls(" ".join(text.split()))[:LONGEST_REASON]


class Witness(ABC):
    """A service that confirms journal digests."""

    def __init__(self, url: str, run: str, every: float = 0.0) -> None:
        """Create a client of a service.

        Args:
            url: URL of the service.
            run: identifier of the run.
            every: seconds between two digests that it confirms; by default, it confirms each.
        """
        self.url = url
        self.every = every
        self._run = run

    @abstractmethod
    def show(self, digest: JournalDigest, seconds: float) -> list[AnyEvent]:
        """Submit a digest with a timeout in seconds, and return the records of the answer.

        Raises:
            AwayError: there is no valid answer.
        """


class _Answer(Value):
    statements: tuple[Statement, ...]


class StatingWitness(Witness):
    """A server of ``aiperf witness``."""

    def __init__(
        self, url: str, run: str, token: str, last: Statement | None = None, every: float = 0.0
    ) -> None:
        """Create a client of a witness.

        Args:
            url, run, every: as in the base class.
            token: secret that authenticates the run.
            last: its last recorded statement of the run.
        """
        super().__init__(url, run, every)
        self._token = token
        self._last = last
        self._key: PublicKey | None = None
        if last is not None:
            with suppress(BadSignatureError):  # Verification reports that it was changed.
                self._key = signer_of(last)

    def show(self, digest: JournalDigest, seconds: float) -> list[AnyEvent]:
        after = 0 if self._last is None else self._last.run_number
        asked = {"run": self._run, "head": digest.model_dump(), "after": after}
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
        }
        said = post(f"{self.url}{ADDRESS}", json.dumps(asked).encode(), headers, seconds)
        try:
            found = _Answer.model_validate_json(said)
        except ValidationError:
            raise AwayError("its response has no statements") from None
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


class StampingAuthority(Witness):
    """A timestamp authority (RFC 3161), e.g. a public one."""

    def show(self, digest: JournalDigest, seconds: float) -> list[AnyEvent]:
        from aiperf_hpc.run.time_stamps import (  # Imported on demand: few runs use an authority.
            NoStampError,
            message_of,
            parsed,
            request_of,
            stamp_of,
        )

        message = message_of(self._run, digest)
        request = request_of(message)
        headers = {"Content-Type": "application/timestamp-query"}
        answer = post(self.url, request.as_bytes(), headers, seconds)
        if len(answer) > LONGEST_STAMP:
            raise AwayError(f"its timestamp is longer than {LONGEST_STAMP:,} bytes")
        try:
            response = parsed(answer)
            stamp_of(response, message)
        except NoStampError as error:
            raise AwayError(f"its answer: {error}") from None
        if response.tst_info.nonce != request.nonce:
            raise AwayError("its timestamp is for another request")
        return [TimeStamped(url=self.url, digest=digest, response=b64encode(answer).decode())]


def token_in(path: Path) -> str:
    """Return the secret by which witnesses recognize a run; create it if the file does not exist.

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


@contextmanager
def submitting(
    witnesses: Sequence[Witness],
    journal: JournalWriter,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Callable[[], None]]:
    """Submit digests of the primary's journal during the block, and the final one after it.

    Yields:
        A function to call when there is a new digest.

    Args:
        witnesses: witnesses of the run.
        journal: journal of the primary, in which the answers are recorded.
        say: callback with a message when a witness ceases or begins to answer.
    """
    submitters = [_Submitter(witness, journal, say) for witness in witnesses]
    for submitter in submitters:
        submitter.start()

    def show() -> None:
        for submitter in submitters:
            submitter.wake()

    try:
        yield show
    finally:
        for submitter in submitters:
            submitter.end()
        until = time.monotonic() + END_SECONDS + 1.0
        for submitter in submitters:
            submitter.join(max(0.0, until - time.monotonic()))


class _Submitter(threading.Thread):
    """Thread that submits digests to one witness."""

    def __init__(
        self, witness: Witness, journal: JournalWriter, say: Callable[[str], None]
    ) -> None:
        super().__init__(name=f"witness {witness.url}", daemon=True)
        self._witness = witness
        self._journal = journal
        self._say = say
        self._new = threading.Event()
        self._over = threading.Event()
        self._away = ""

    def wake(self) -> None:
        """Notify the thread of a new digest."""
        self._new.set()

    def end(self) -> None:
        """Notify the thread of the run's end: only the final digest is still submitted."""
        self._over.set()
        self._new.set()

    def run(self) -> None:
        try:
            self._show_while_it_lasts()
            self._show_the_end()
        except AIPerfError as error:
            # The journal cannot be written; the run itself reports the reason.
            self._say(f"{self._witness.url} no longer receives digests: {error}")

    def _show_while_it_lasts(self) -> None:
        due, failures = 0.0, 0
        while not self._over.is_set():
            self._new.wait()
            self._new.clear()
            if self._over.is_set() or time.monotonic() < due:
                continue
            if self._shown(ANSWER_SECONDS):
                # Slightly less than the interval; otherwise every other digest would be skipped.
                due, failures = time.monotonic() + 0.9 * self._witness.every, 0
            else:
                self._over.wait(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
                self._new.set()

    def _show_the_end(self) -> None:
        until = time.monotonic() + END_SECONDS
        while (left := until - time.monotonic()) > 0.0 and not self._shown(left):
            time.sleep(min(END_PAUSE, left))

    def _shown(self, seconds: float) -> bool:
        """Submit the current digest; return whether it was answered."""
        try:
            events = self._witness.show(self._journal.digest, seconds)
        except AwayError as error:
            self._is_away(str(error))
            return False
        if self._away:
            self._is_away("")
        self._journal.append_all(events)
        return True

    def _is_away(self, why: str) -> None:
        if bool(why) != bool(self._away):
            url = self._witness.url
            self._journal.append(WitnessState(url=url, reachable=not why, detail=why))
            self._say(
                f"{url} does not respond as a witness: {why}"
                if why
                else f"{url} responds as a witness again"
            )
        self._away = why
