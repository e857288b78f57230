"""Timestamps of a run's journal digests by timestamp authorities (RFC 3161)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import rfc3161_client as rfc3161
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from aiperf_hpc.errors import AIPerfError, UsageError, raising, reason_of
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.records import TimeStamped
from aiperf_hpc.untrusted.files import bytes_of

RESOLUTION: Final = 1.0
"""Seconds by which the true time may exceed the stamp: most authorities stamp whole seconds."""
BAD_CERTIFICATE: Final = (
    ValueError,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    UnsupportedAlgorithm,
)
"""Exceptions raised by reading a fabricated certificate."""


class NoStampError(AIPerfError):
    """An alleged timestamp of a journal digest is invalid."""


class Stamp(NamedTuple):
    """The time at which an authority stamped a journal digest."""

    early: float
    """Earliest possible time, UTC seconds."""
    late: float
    """Latest possible time, UTC seconds."""


def message_of(run: str, digest: JournalDigest) -> bytes:
    """Return the message that is stamped for a journal digest of a run."""
    return f"aiperf-hpc head {run} {digest.bytes} {digest.sha256}\n".encode()


def request_of(message: bytes) -> rfc3161.TimeStampRequest:
    """Return a request to stamp a message."""
    return (
        rfc3161.TimestampRequestBuilder()
        .data(message)
        .hash_algorithm(rfc3161.HashAlgorithm.SHA256)
        .build()
    )


def check_stamp(run: str, event: TimeStamped) -> Stamp:
    """Return the time of a stamped journal digest. Raises NoStampError if the stamp is invalid."""
    return stamp_of(_decoded(event), message_of(run, event.digest))


def is_trusted(run: str, event: TimeStamped, roots: Sequence[x509.Certificate]) -> bool:
    """Return whether a timestamp's signature chains to one of the trusted certificates."""
    response, message = _decoded(event), message_of(run, event.digest)
    return any(_is_below(root, response, message) for root in roots)


def _is_below(root: x509.Certificate, response: rfc3161.TimeStampResponse, message: bytes) -> bool:
    inside = [each for each in _certificates(response) if each != root]
    verifier = rfc3161.VerifierBuilder(roots=[root], intermediates=inside).build()
    try:
        return verifier.verify_message(response, message)
    except (rfc3161.VerificationError, *BAD_CERTIFICATE):
        return False


def _certificates(response: rfc3161.TimeStampResponse) -> list[x509.Certificate]:
    try:
        return [x509.load_der_x509_certificate(each) for each in response.signed_data.certificates]
    except BAD_CERTIFICATE:
        return []


def read_roots(files: Sequence[Path]) -> tuple[x509.Certificate, ...]:
    """Return the certificates in PEM files. Raises UsageError if a file has none."""
    found: list[x509.Certificate] = []
    for path in files:
        try:
            found += x509.load_pem_x509_certificates(bytes_of(path, 10_000_000))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {reason_of(error)}") from None
        except BAD_CERTIFICATE:
            raise UsageError(f"{path} has no certificate in PEM") from None
    return tuple(found)


def _decoded(event: TimeStamped) -> rfc3161.TimeStampResponse:
    with raising(NoStampError("it is not a timestamp"), ValueError):
        return parsed(b64decode(event.response, validate=True))


def parsed(content: bytes) -> rfc3161.TimeStampResponse:
    """Parse a response. Raises NoStampError if it is malformed."""
    with raising(NoStampError("it is not an RFC 3161 timestamp"), ValueError):
        return rfc3161.decode_timestamp_response(content)


def stamp_of(response: rfc3161.TimeStampResponse, message: bytes) -> Stamp:
    """Return the time in a response. Raises NoStampError if it does not stamp ``message``."""
    if response.status != rfc3161.PKIStatus.GRANTED:
        raise NoStampError(f"the request was refused with status {response.status}")
    damage = (ValueError, OverflowError, AttributeError)
    with raising(NoStampError("it has no timestamp"), *damage):
        info = response.tst_info
        imprint, at = info.message_imprint, info.gen_time.timestamp()
        apart = _seconds(info.accuracy)
    wanted = request_of(message).message_imprint
    if (imprint.hash_algorithm, imprint.message) != (wanted.hash_algorithm, wanted.message):
        raise NoStampError("it is for another message")
    return Stamp(at - apart, at + RESOLUTION + apart)


def _seconds(accuracy: object) -> float:
    parts = (("seconds", 1.0), ("millis", 1e-3), ("micros", 1e-6))
    return sum((getattr(accuracy, name, None) or 0) * unit for name, unit in parts)
