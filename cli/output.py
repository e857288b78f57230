"""Output of commands: lines and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_hpc.streams import as_line, ascii_json, folded, without_controls

if TYPE_CHECKING:
    from pydantic import BaseModel


def say(line: str) -> None:
    """Print a line; control characters and newlines, e.g. of a log or a file name, are escaped."""
    say_lines([line])


def say_lines(lines: Iterable[str]) -> None:
    """Print lines, each as ``say`` does."""
    _print("\n".join(map(as_line, lines)))


def say_text(text: str) -> None:
    """Print text that the program has made of several lines."""
    say_lines(text.rstrip().split("\n"))


def say_to_stderr(text: str) -> None:
    """Print a line to standard error, because standard output may carry JSON."""
    sys.stderr.write(f"{as_line(text)}\n")


def shown_path(path: Path) -> str:
    """Return a path, relative to the current folder if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def say_csv(text: str) -> None:
    """Print CSV, whose quoted values may contain newlines."""
    _print(text.rstrip("\n"))


def say_folded(text: str, indent: int) -> None:
    """Print a line, wrapped between words at the width of the terminal.

    Args:
        text: line to print.
        indent: indentation of continuation lines in columns.
    """
    say_text(folded(as_line(text), indent))


def say_json(value: object) -> None:
    """Print a value as JSON."""
    say_document(json.dumps(value, indent=1))


def say_document(text: str) -> None:
    """Print JSON independent of the locale."""
    _print(ascii_json(text))


def say_result(result: BaseModel | str, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result as JSON or as readable lines."""
    if not as_json:
        say_lines(lines)
        return
    from pydantic import BaseModel

    if isinstance(result, BaseModel):
        result = result.model_dump_json(indent=1)
    say_document(result)


def _print(text: str) -> None:
    try:
        sys.stdout.write(f"{without_controls(text)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()  # The command continues, e.g. with the report.


def discard_output() -> None:
    """Discard all further output, because its reader has exited, e.g. `| head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
