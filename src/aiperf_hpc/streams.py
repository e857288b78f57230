"""Text output of this process: readable in every locale, with correct terminal widths."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
import textwrap
from io import TextIOWrapper
from typing import TextIO

from rich.cells import cell_len, chop_cells

READABLE = "aiperf.readable"
"""Name of the codec error handler that replaces characters missing from the locale's encoding."""
UNLIMITED = 1_000_000
"""Columns if the output is not a terminal: each table row is one line for other programs."""
_PLAIN = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "×": "x", "±": "+-", "²": "2", "·": "*", "…": "...", "’": "'"}
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line separators and changes of the text direction, except tab and newline."""
_ESCAPED = range(0xDC80, 0xDD00)
"""Surrogate escapes: Python's substitutes for undecodable bytes in file names."""


def readable(text: str) -> str:
    """Return ``text`` in ASCII: ``-`` for dashes, ``x`` for ×, ``\\xfc`` for ü."""
    return "".join(map(_escaped, text.translate(_PLAIN)))


def _escaped(character: str) -> str:
    if ord(character) in _ESCAPED:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("ascii", "backslashreplace").decode("ascii")


def without_controls(text: str) -> str:
    """Escape control characters, so that a terminal displays untrusted text without effects."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def as_line(text: str) -> str:
    """Escape newlines, too, so that no part of untrusted text appears as a line of its own."""
    return without_controls(text).replace("\n", "\\n")


def warn(text: object) -> None:
    """Print a message to the standard error stream.

    Lines after the first must be indented. Other newlines, e.g. of a file name, are escaped.
    """
    message = re.sub(r"\n(?! )", r"\\n", without_controls(str(text)))
    sys.stderr.write(f"aiperf: {message}\n")
    sys.stderr.flush()


def without_stand_ins(text: str) -> str:
    """Escape surrogates, so that text with any file name can be encoded as UTF-8."""
    return re.sub("[\ud800-\udfff]", lambda found: _escaped(found[0]), text)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return readable(error.object[error.start : error.end]), error.end


codecs.register_error(READABLE, _replace)


def print_in_any_locale() -> None:
    """Make all output of this process printable in every locale; call this first in ``main``."""
    for stream in (sys.stdout, sys.stderr):
        # Both are None in a process started with closed streams.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=READABLE)


def ascii_json(text: str) -> str:
    """Escape non-ASCII characters of JSON: the same document in every encoding."""
    return re.sub("[^\x00-\x7e]", lambda found: _escaped_json(found[0]), text)


def _escaped_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def as_printed(text: str, stream: TextIO) -> str:
    """Return one line of ``text`` as displayed on ``stream``, without control characters."""
    shown = "".join(c if c.isprintable() or ord(c) in _ESCAPED else " " for c in text)
    encoding = stream.encoding or "utf-8"
    return shown.encode(encoding, READABLE).decode(encoding, "replace")


def width(text: str) -> int:
    """Return the width of ``text`` in terminal columns."""
    return cell_len(text)


def cut(text: str, columns: int) -> str:
    """Truncate ``text`` to a number of terminal columns."""
    return next(iter(chop_cells(text, columns)), "") if columns > 0 else ""


def window_columns() -> int:
    """Return the width from the variable COLUMNS, or else of the terminal window."""
    if "COLUMNS" not in os.environ and not sys.stdout.isatty():
        return UNLIMITED
    return shutil.get_terminal_size().columns


def folded(text: str, indent: int) -> str:
    """Wrap a line between words at the width of the terminal window.

    Args:
        text: the line.
        indent: indentation of continuation lines in columns.
    """
    lines = textwrap.wrap(
        text,
        window_columns(),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)
