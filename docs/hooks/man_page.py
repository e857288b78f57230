"""The manual page aiperf(1), from the program's own help: ``make man`` writes ``docs/aiperf.1``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.cli.program import TITLE
from commands import all_commands, help_of, parameters, usage

EXIT_STATUS = re.compile(r"^\| (\d+) \| (.*) \|$", re.MULTILINE)
"""A row of the table of exit statuses in the reference of the commands."""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield f'.TH AIPERF 1 "" "aiperf\\-hpc {__version__}" "AIPerf\\-HPC"\n.ad l\n.nh'
    yield f".SH NAME\naiperf \\- {_plain(TITLE).rstrip('.')}"
    yield ".SH SYNOPSIS\n.B aiperf\n.I COMMAND\n[OPTIONS]"
    yield ".SH DESCRIPTION"
    yield _text("`aiperf COMMAND --help` prints the help of a command.")
    for panel, commands in all_commands():
        yield f".SH {panel.upper()}"
        for name, command in commands:
            text, examples = help_of(command)
            yield f'.SS "{_plain(usage(name, command))}"'
            yield "\n.PP\n".join(map(_text, text.split("\n\n")))
            for spelled, description in parameters(command):
                yield f".TP\n\\fB{_plain(spelled)}\\fR\n{_text(description)}"
            yield f".PP\nExamples:\n.PP\n.RS\n.nf\n{_plain(examples)}\n.fi\n.RE"
    yield ".SH EXIT STATUS"
    reference = Path(__file__).parents[1] / "reference" / "commands.md"
    for status, meaning in EXIT_STATUS.findall(reference.read_text("utf-8")):
        yield f".TP\n.B {status}\n{_text(meaning)}"


def _text(text: str) -> str:
    """Return a paragraph, with code in bold, and a line for each of its lines."""
    return re.sub("`([^`]*)`", r"\\fB\1\\fR", _plain(text))


def _plain(text: str) -> str:
    """Return text in which troff finds no request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
