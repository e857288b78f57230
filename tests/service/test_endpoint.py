"""Where a service listens, and what protects it: addresses, tokens and TLS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.conftest import TOKEN

from aiperf_hpc.errors import UsageError
from aiperf_hpc.service.endpoint import DEFAULT_PORT, Endpoint, Tokens, is_loopback, parse_address


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
        ("80x", "'80x' is not a port number"),
        (":", "there is no port"),
        ("host:x", "'x' is not a port number"),
        ("host:65536", "ports go from 0 to 65535"),
        ("host:" + "9" * 5000, "ports go from 0 to 65535"),
        ("host:٣", "not a port number"),
        ("::1:8080", "in brackets"),
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


def test_what_only_this_machine_can_reach() -> None:
    assert all(map(is_loopback, ("127.8.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "login-1.cluster", "fe80::1%eth0")))  # noqa: S104


def test_every_token_of_the_file_is_accepted_and_nothing_else(token_file: Path) -> None:
    tokens = Tokens.read(token_file)
    assert tokens.accept(TOKEN)
    assert tokens.accept("another-token-0123456789")
    for other in ("", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "# who may", "\udc80" + TOKEN):
        assert not tokens.accept(other)


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("", 0o600, "has no token"),
        ("# nothing\n", 0o600, "has no token"),
        ("short\n", 0o600, "no token of 16 printable characters"),
        ("two words of a token\n", 0o600, "without spaces"),
        ("ümlaut-ümlaut-ümlaut\n", 0o600, "printable"),
        (f"{TOKEN}\n", 0o640, "chmod 600"),
        (f"{TOKEN}\n", 0o604, "others may read"),
    ],
)
def test_invalid_token_files(token_file: Path, content: str, mode: int, why: str) -> None:
    token_file.write_text(content, "utf-8")
    token_file.chmod(mode)
    with pytest.raises(UsageError, match=why) as raised:
        Tokens.read(token_file)
    assert TOKEN not in str(raised.value)


def test_a_token_file_that_is_not_there_is_refused_with_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file or directory; .*openssl rand"):
        Tokens.read(tmp_path / "none")


def test_only_this_machine_is_served_without_tokens(token_file: Path) -> None:
    assert Endpoint("127.0.0.1").tokens() is None
    everybody = Endpoint("0.0.0.0")  # noqa: S104 -- it is refused
    with pytest.raises(UsageError, match=r"0.0.0.0 is reachable from other hosts: .* --token-file"):
        everybody.tokens()
    assert replace(everybody, token_file=token_file).tokens() is not None


def test_certificate_and_key(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    chain, key = certificate
    whole = Endpoint(certificate=chain, key=key)
    whole.check_tls()
    assert whole.scheme == "https"
    with pytest.raises(UsageError, match="must be given together"):
        replace(whole, key=None).check_tls()
    with pytest.raises(UsageError, match="No such file"):
        replace(whole, key=tmp_path / "none").check_tls()
    with pytest.raises(UsageError, match="cannot use the certificate"):
        replace(whole, certificate=key).check_tls()
