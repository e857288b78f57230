"""The command line of this process, as it was typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar

_typed: ContextVar[tuple[str, ...]] = ContextVar("_typed", default=())


def remember(arguments: Sequence[str]) -> None:
    """Take the program's arguments, before anything is made of them."""
    _typed.set(tuple(arguments))


def command_line() -> str:
    """Return the command, so that a shell takes it again; empty where there was none."""
    return shlex.join(["aiperf", *_typed.get()]) if _typed.get() else ""
