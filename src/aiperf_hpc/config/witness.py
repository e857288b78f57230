"""Who outside sees that a run goes on."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from aiperf_hpc.config.section import Section

MOST_URLS = 16


def _web_address(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"'{text}' is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"'{text}' is no URL of http or https, as https://host:8766")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"'{text}' has a user, a query or a fragment; leave them out")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a URL has printable characters of ASCII alone, and no space")
    return text.rstrip("/")


Url = Annotated[str, Field(max_length=500), AfterValidator(_web_address)]


class WitnessConfig(Section):
    """Witnesses outside, which sign what they are shown of a run (``aiperf witness``)."""

    urls: tuple[Url, ...] = Field(
        (), max_length=MOST_URLS, description="of witnesses, e.g. [https://host:8766]"
    )
    seconds: float = Field(
        30.0, ge=1.0, le=3600.0, description="between two heads that a witness is shown"
    )


class TimestampsConfig(Section):
    """Authorities that stamp the time (RFC 3161)."""

    urls: tuple[Url, ...] = Field(
        (), max_length=MOST_URLS, description="of time-stamp authorities (RFC 3161)"
    )
    seconds: float = Field(
        300.0, ge=10.0, le=86_400.0, description="between two heads that are stamped"
    )
