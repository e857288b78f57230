"""Endpoint of a service: address, tokens and TLS."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.errors import UsageError, restated

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8765
LEAST = 16
"""Minimum number of characters of a token."""
HOW_TO = "`(umask 077; openssl rand -hex 32 > FILE)` creates one"


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``:PORT``, ``PORT`` or ``[::1]:PORT``.

    The default host is loopback, which only this machine can reach. An empty text gives the
    default port too. Port 0 selects any free port.

    Raises:
        UsageError: the text has none of these forms; the message lists them.
    """
    if not text:
        return LOOPBACK, DEFAULT_PORT
    host, port = _split(text)
    _demand(bool(port), text, "there is no port")
    _demand(port.isascii() and port.isdecimal(), text, f"{port!r} is not a port number")
    _demand(len(port) <= 5 and int(port) <= 65_535, text, "ports go from 0 to 65535")
    return host or LOOPBACK, int(port)


def _split(text: str) -> tuple[str, str]:
    """Return the formatted host and port."""
    _demand("/" not in text, text, "it has no scheme and no path")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        _demand(rest.startswith(":"), text, "there is no port")
        _demand(bool(re.fullmatch(r"[0-9A-Fa-f:.]+(%[\w.-]+)?", host)), text, "no IPv6 address")
        return host, rest[1:]
    host, colon, port = text.rpartition(":")
    _demand(":" not in host, text, "write an IPv6 address in brackets, as in [::1]:8765")
    _demand(bool(re.fullmatch(r"[\w.-]*", host, re.ASCII)), text, "no host name")
    _demand(bool(colon) or port[:1].isdecimal(), text, "there is no port")
    return host, port


def _demand(condition: bool, text: str, what: str) -> None:
    if not condition:
        raise UsageError(f"address {text!r}: {what}; write HOST:PORT, :PORT or PORT")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback, which only this machine can reach."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


class Tokens:
    """Access tokens, each with the same rights."""

    def __init__(self, tokens: list[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a file with one token per line; comments begin with #.

        Raises:
            UsageError: the file is unreadable, readable by other users, or has an invalid token.
        """
        with restated(f"cannot read the token file {path}", after=f"; {HOW_TO}"):
            mode, text = path.stat().st_mode, path.read_text("utf-8")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"others may read the token file {path}: `chmod 600 {path}`")
        tokens = [line for each in text.splitlines() if (line := each.partition("#")[0].strip())]
        if not tokens:
            raise UsageError(f"the token file {path} has no token; {HOW_TO}")
        for token in tokens:
            if len(token) < LEAST or not token.isascii() or not token.isprintable() or " " in token:
                raise UsageError(
                    f"the token file {path} has a line that is no token of {LEAST} printable "
                    f"characters or more, without spaces; {HOW_TO}"
                )
        return cls(tokens)

    def accept(self, shown: str) -> bool:
        """Return whether the token is valid, in time that is independent of the tokens (no side
        channel)."""
        digest = _digest(shown)
        # Compare with every token: the time must not depend on a match.
        matches = [hmac.compare_digest(digest, each) for each in self._digests]
        return any(matches)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address, token file and TLS files of a service."""

    host: str = LOOPBACK
    port: int = 0
    """Port; 0 selects any free one."""
    token_file: Path | None = None
    certificate: Path | None = None
    """Path of the TLS certificate with its chain, in PEM format."""
    key: Path | None = None
    """Path of the certificate's private key, in PEM format."""

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    @property
    def open_reading(self) -> bool:
        """Whether read access needs no token, because only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def unencrypted(self) -> bool:
        """Whether tokens are sent unencrypted over a network."""
        return self.certificate is None and not self.open_reading

    def tokens(self) -> Tokens | None:
        """Return the tokens, or None if no token is required.

        Raises:
            UsageError: the tokens are unreadable or missing.
        """
        if self.token_file is not None:
            return Tokens.read(self.token_file)
        if not self.open_reading:
            raise UsageError(
                f"{self.host} is reachable from other hosts: require a token with --token-file "
                f"FILE; {HOW_TO}"
            )
        return None

    def check_tls(self) -> None:
        """Raise UsageError if a certificate is given but it or its key is unusable."""
        if self.certificate is None and self.key is None:
            return
        if self.certificate is None or self.key is None:
            raise UsageError("--tls-certificate and --tls-key must be given together")
        files = f"the certificate {self.certificate} with the key {self.key}"
        with restated(f"cannot use {files}", caught=(OSError, ValueError)):  # SSLError: an OSError
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=_no_password)


def _no_password() -> str:
    raise ValueError("the key has a password; `openssl pkey` writes one without")
