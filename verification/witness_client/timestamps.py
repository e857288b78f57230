"""Time-stamp authorities: services by RFC 3161, of which there are public ones."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509 import (
    Certificate,
    DuplicateExtension,
    InvalidVersion,
    load_der_x509_certificate,
    load_pem_x509_certificates,
)
from rfc3161_client import (
    HashAlgorithm,
    PKIStatus,
    TimestampRequestBuilder,
    TimeStampResponse,
    VerificationError,
    VerifierBuilder,
    decode_timestamp_response,
)

from aiperf_hpc.errors import AIPerfError, UsageError, reason_of
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.records import AnyEvent, TimeStamped
from aiperf_hpc.untrusted.files import bytes_of
from aiperf_hpc.verification.witness_client.http import AwayError, post

RESOLUTION: Final = 1.0
"""Seconds by which a time may be later than it is stamped: most authorities stamp whole ones."""
LONGEST: Final = 70_000
"""Bytes of the longest answer that is recorded; with its certificates one has 2,000 to 7,000."""


BAD_CERTIFICATE: Final = (ValueError, InvalidVersion, DuplicateExtension, UnsupportedAlgorithm)
"""What reading a certificate that somebody made up raises."""


class NoStampError(AIPerfError):
    """What is said to be a time stamp of a head is none."""


class Stamp(NamedTuple):
    """When an authority was shown a head."""

    early: float
    """Not before this, UTC seconds."""
    late: float
    """Not after this, UTC seconds."""


def message_of(run: str, head: JournalDigest) -> bytes:
    """Return what is stamped for a run's head."""
    return f"aiperf-hpc head {run} {head.bytes} {head.sha256}\n".encode()


class StampingAuthority:
    """One that answers by RFC 3161 over HTTP."""

    def __init__(self, url: str, run: str) -> None:
        """Know it.

        Args:
            url: where it is.
            run: the run's name.
        """
        self.url = url
        self._run = run

    def show(self, head: JournalDigest, seconds: float) -> list[AnyEvent]:
        message = message_of(self._run, head)
        asked = TimestampRequestBuilder().data(message).hash_algorithm(HashAlgorithm.SHA256).build()
        headers = {"Content-Type": "application/timestamp-query"}
        said = post(self.url, asked.as_bytes(), headers, seconds)
        if len(said) > LONGEST:
            raise AwayError(f"its time stamp is longer than {LONGEST:,} bytes")
        try:
            response = _parsed(said)
            _stamp(response, message)
        except NoStampError as error:
            raise AwayError(f"its answer: {error}") from None
        if response.tst_info.nonce != asked.nonce:
            raise AwayError("its time stamp is of another request")
        return [TimeStamped(url=self.url, head=head, response=b64encode(said).decode())]


@dataclass(frozen=True, slots=True)
class TimeStampChecker:
    """Checks time stamps of a run's heads, and by whom they are."""

    run: str
    """The run's name."""
    roots: Sequence[Certificate] = ()
    """The certificates that are trusted."""

    def check(self, event: TimeStamped) -> Stamp:
        """Return when a head was stamped.

        Raises:
            NoStampError: it was not.
        """
        return _stamp(_decoded(event), message_of(self.run, event.head))

    def is_trusted(self, event: TimeStamped) -> bool:
        """Return whether a time stamp is signed below one of the trusted certificates."""
        response, message = _decoded(event), message_of(self.run, event.head)
        return any(_is_below(root, response, message) for root in self.roots)


def _is_below(root: Certificate, response: TimeStampResponse, message: bytes) -> bool:
    inside = [each for each in _certificates(response) if each != root]
    verifier = VerifierBuilder(roots=[root], intermediates=inside).build()
    try:
        return verifier.verify_message(response, message)
    except (VerificationError, *BAD_CERTIFICATE):
        return False


def _certificates(response: TimeStampResponse) -> list[Certificate]:
    try:
        return [load_der_x509_certificate(each) for each in response.signed_data.certificates]
    except BAD_CERTIFICATE:
        return []


def read_roots(files: Sequence[Path]) -> tuple[Certificate, ...]:
    """Return the certificates in files of PEM. Raises UsageError where there are none."""
    found: list[Certificate] = []
    for path in files:
        try:
            found += load_pem_x509_certificates(bytes_of(path, 10_000_000))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {reason_of(error)}") from None
        except BAD_CERTIFICATE:
            raise UsageError(f"{path} has no certificate in PEM") from None
    return tuple(found)


def _decoded(event: TimeStamped) -> TimeStampResponse:
    try:
        return _parsed(b64decode(event.response, validate=True))
    except ValueError:
        raise NoStampError("it is no time stamp") from None


def _parsed(content: bytes) -> TimeStampResponse:
    try:
        return decode_timestamp_response(content)
    except ValueError:
        raise NoStampError("it is no time stamp of RFC 3161") from None


def _stamp(response: TimeStampResponse, message: bytes) -> Stamp:
    """Return what a response says. Raises NoStampError when it is not of this message."""
    if response.status != PKIStatus.GRANTED:
        raise NoStampError(f"it is refused, with status {response.status}")
    try:
        info = response.tst_info
        imprint, at = info.message_imprint, info.gen_time.timestamp()
        apart = _seconds(info.accuracy)
    except (ValueError, OverflowError, AttributeError):
        raise NoStampError("it has no time stamp") from None
    asked = TimestampRequestBuilder().data(message).hash_algorithm(HashAlgorithm.SHA256).build()
    wanted = asked.message_imprint
    if (imprint.hash_algorithm, imprint.message) != (wanted.hash_algorithm, wanted.message):
        raise NoStampError("it is of something else")
    return Stamp(at - apart, at + RESOLUTION + apart)


def _seconds(accuracy: object) -> float:
    parts = (("seconds", 1.0), ("millis", 1e-3), ("micros", 1e-6))
    return sum((getattr(accuracy, name, None) or 0) * unit for name, unit in parts)
