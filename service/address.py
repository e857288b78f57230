"""Addresses to listen at, as people write them."""

from __future__ import annotations

import ipaddress
import re

from aiperf_hpc.errors import UsageError

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8765


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``:PORT``, ``PORT`` or ``[::1]:PORT``.

    Without a host it is this machine alone (loopback); an empty text has the default port, too.
    Port 0 is any free one.

    Raises:
        UsageError: it is none of these; the message says how to write it.
    """
    if not text:
        return LOOPBACK, DEFAULT_PORT
    host, port = _split(text)
    _demand(bool(port), text, "there is no port")
    _demand(port.isascii() and port.isdecimal(), text, f"{port!r} is no port number")
    _demand(len(port) <= 5 and int(port) <= 65_535, text, "ports go from 0 to 65535")
    return host or LOOPBACK, int(port)


def _split(text: str) -> tuple[str, str]:
    """Return host and port as they are written."""
    _demand("/" not in text, text, "it has no scheme and no path")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        _demand(rest.startswith(":"), text, "there is no port")
        _demand(bool(re.fullmatch(r"[0-9A-Fa-f:.]+(%[\w.-]+)?", host)), text, "no IPv6 address")
        return host, rest[1:]
    host, colon, port = text.rpartition(":")
    _demand(":" not in host, text, "an IPv6 address stands in brackets, as in [::1]:8765")
    _demand(bool(re.fullmatch(r"[\w.-]*", host, re.ASCII)), text, "no host name")
    _demand(bool(colon) or port[:1].isdecimal(), text, "there is no port")
    return host, port


def _demand(condition: bool, text: str, what: str) -> None:
    if not condition:
        raise UsageError(f"address {text!r}: {what}; write HOST:PORT, :PORT or PORT")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach what listens at a host, a name or an address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
