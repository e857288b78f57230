"""Addresses to listen at."""

from __future__ import annotations

import pytest

from aiperf_hpc.errors import UsageError
from aiperf_hpc.service.endpoint import DEFAULT_PORT, is_loopback, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("127.0.0.1", DEFAULT_PORT)),
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),  # noqa: S104 -- a user may ask for it
        ("login-1.cluster:65535", ("login-1.cluster", 65_535)),
        ("[::1]:8080", ("::1", 8080)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("host", "there is no port"),
        ("80x", "'80x' is no port number"),
        ("host:", "there is no port"),
        (":", "there is no port"),
        ("host:x", "'x' is no port number"),
        ("host:-1", "'-1' is no port number"),
        ("host:65536", "ports go from 0 to 65535"),
        ("host:" + "9" * 5000, "ports go from 0 to 65535"),
        ("host:٣", "no port number"),
        ("::1:8080", "stands in brackets"),
        ("[]:80", "no IPv6 address"),
        ("[::1]", "there is no port"),
        ("[::1]:", "there is no port"),
        ("http://host:80", "no scheme"),
        ("a b:80", "no host name"),
        ("h\nx:80", "no host name"),
    ],
)
def test_addresses_that_are_none(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        parse_address(text)
    assert "write HOST:PORT" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_what_only_this_machine_can_reach(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "login-1.cluster", "fe80::1%eth0"])  # noqa: S104
def test_what_others_can_reach(host: str) -> None:
    assert not is_loopback(host)
