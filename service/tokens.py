"""The tokens of a service, from a file that nobody else may read."""

from __future__ import annotations

import hashlib
import hmac
import stat
from pathlib import Path

from aiperf_hpc.errors import UsageError, reason_of

LEAST = 16
"""Characters of the shortest token that is taken."""
HOW_TO = "`(umask 077; openssl rand -hex 32 > FILE)` makes one"


class Tokens:
    """What a client may show, of which each is as good as any other."""

    def __init__(self, tokens: list[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a file with a token on each line; what follows a # is a comment.

        Raises:
            UsageError: it cannot be read, others may read it, or what it has is no token.
        """
        try:
            mode, text = path.stat().st_mode, path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read the token file {path}: {reason_of(error)}; {HOW_TO}"
            ) from None
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
        """Return whether it is one of the tokens; how long that takes says nothing of them."""
        digest = _digest(shown)
        matches = [hmac.compare_digest(digest, each) for each in self._digests]  # Each of them.
        return any(matches)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
