"""The parser of all commands, and what several of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

from aiperf_hpc.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # No type while the program runs.
Command = Callable[[argparse.Namespace], int]


def add_for_run(commands: Commands, name: str, command: Command, help_text: str) -> Parser:
    """Add a command about one run, which can print JSON."""
    added = commands.add_parser(name, help=help_text, description=help_text)
    added.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    added.add_argument("--json", action="store_true", help="print JSON")
    added.set_defaults(command=command)
    return added
