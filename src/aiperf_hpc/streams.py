"""What this process prints: readable in every locale, and as wide on a terminal as it looks."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from io import TextIOWrapper
from typing import TextIO

READABLE = "aiperf.readable"
"""The name of the way to write what a locale's encoding does not have."""
UNLIMITED = 1_000_000
"""Columns where the output is no terminal: a row of a table is one line for other programs."""
_PLAIN = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "×": "x", "±": "+-", "²": "2", "·": "*", "…": "...", "’": "'"}
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, colours it or turns its text round; tab and line end stay."""
_ESCAPED = range(0xDC80, 0xDD00)
"""Python's stand-ins for bytes of file names that are no text in the locale's encoding."""


def readable(text: str) -> str:
    """Return ``text`` in ASCII: a dash for each dash, x for ×, ``\\xfc`` for ü."""
    return "".join(map(_escaped, text.translate(_PLAIN)))


def _escaped(character: str) -> str:
    if ord(character) in _ESCAPED:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("ascii", "backslashreplace").decode("ascii")


def without_controls(text: str) -> str:
    """Return ``text`` so that a terminal shows it and obeys nothing in it, whoever wrote it."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def without_stand_ins(text: str) -> str:
    """Return ``text`` so that it can be written as UTF-8, whatever file name is in it."""
    return re.sub("[\ud800-\udfff]", lambda found: _escaped(found[0]), text)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return readable(error.object[error.start : error.end]), error.end


codecs.register_error(READABLE, _replace)


def print_in_any_locale() -> None:
    """Let this process's output and errors be written in every locale. Call it first in a main."""
    for stream in (sys.stdout, sys.stderr):
        # Neither is there in a process that was started with them closed.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=READABLE)


def ascii_json(text: str) -> str:
    """Return JSON with all but ASCII escaped: the same document, whatever encoding it goes by."""
    return re.sub("[^\x00-\x7e]", lambda found: _escaped_json(found[0]), text)


def _escaped_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def as_printed(text: str, stream: TextIO) -> str:
    """Return what a reader of ``stream`` sees of one line of ``text``, control characters aside."""
    shown = "".join(c if c.isprintable() or ord(c) in _ESCAPED else " " for c in text)
    encoding = stream.encoding or "utf-8"
    return shown.encode(encoding, READABLE).decode(encoding, "replace")


def width(text: str) -> int:
    """Return the columns that ``text`` takes on a terminal."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut(text: str, columns: int) -> str:
    """Return the beginning of ``text`` that takes no more than so many columns."""
    kept, left = [], columns
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept)


def window_columns() -> int:
    """Return the columns of the variable COLUMNS or else of the terminal's window."""
    if "COLUMNS" not in os.environ and not sys.stdout.isatty():
        return UNLIMITED
    return shutil.get_terminal_size().columns


def folded(text: str, indent: int) -> str:
    """Return a line, folded between words where a terminal's window ends.

    Args:
        text: the line.
        indent: columns by which the further lines are indented.
    """
    lines = textwrap.wrap(
        text,
        window_columns(),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)
