"""Asking a server that may be slow, gone, or hostile: bounded in bytes and in time."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.streams import without_controls

LONGEST: Final = 1_000_000
"""Bytes of the longest answer that is read."""
LONGEST_REASON: Final = 300


class AwayError(AIPerfError):
    """A witness does not answer, or not as it should."""


class _NoRedirect(HTTPRedirectHandler):
    """Follows none: who moves is to be named by its new address."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Return nothing, so that the answer is an error."""


def _opener() -> OpenerDirector:
    from urllib.request import HTTPDefaultErrorHandler, HTTPErrorProcessor

    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),  # As the environment has it: clusters reach the world by one.
        HTTPHandler(),
        HTTPSHandler(),
        _NoRedirect(),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


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
    ask = _opener().open
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
