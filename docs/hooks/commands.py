"""The reference of the commands, from the program's own help."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal, get_args, get_origin

from typer.core import TyperArgument, TyperOption

from aiperf_hpc.cli.command import Command, Deferred, Group
from aiperf_hpc.cli.program import COMMANDS, program


def reference() -> Iterator[str]:
    """Yield the commands by panel: usage, parameters, examples."""
    commands = program().commands
    for panel, rows in groupby((row for row in COMMANDS if row.panel), key=lambda row: row.panel):
        yield f"\n## {panel}\n"
        for row in rows:
            deferred = commands[row.name]
            assert isinstance(deferred, Deferred)  # noqa: S101 -- for the type checker
            yield from _command(row.name, deferred.loaded())


def _command(name: str, command: Command | Group) -> Iterator[str]:
    if isinstance(command, Group):
        for each in command.commands.values():
            assert isinstance(each, Command)  # noqa: S101 -- for the type checker
            yield from _command(f"{name} {each.name}", each)
        return
    text, _, examples = (command.help or "").partition("\n\nExamples:\n")
    yield f"\n### aiperf {name}\n\n{text}\n"
    yield f"```\n{_usage(name, command)}\n```\n"
    yield "| parameter | description |\n|---|---|"
    for parameter in command.params:
        if isinstance(parameter, TyperArgument | TyperOption) and not parameter.hidden:
            yield f"| `{_spelled(parameter)}` | {parameter.help}{_default(parameter)} |"
    yield f"\n```\n{examples.strip()}\n```\n"


def _usage(name: str, command: Command) -> str:
    words = ["aiperf", name]
    for each in command.params:
        if isinstance(each, TyperOption) and each.required:
            words.append(_spelled(each))
        elif isinstance(each, TyperArgument):
            words.append(_spelled(each) if each.required else f"[{_spelled(each)}]")
    return " ".join([*words, "[OPTIONS]"])


def _spelled(parameter: TyperArgument | TyperOption) -> str:
    metavar = parameter.metavar
    if metavar is None:
        metavar = "|".join(_choices(parameter))
    if isinstance(parameter, TyperArgument):
        return f"{metavar} ..." if parameter.nargs == -1 else metavar
    return " ".join(filter(None, [", ".join(parameter.opts), metavar]))


def _choices(parameter: TyperArgument | TyperOption) -> tuple[str, ...]:
    annotation: object = parameter.type_descriptor.annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _default(parameter: TyperArgument | TyperOption) -> str:
    default = parameter.default
    shown = parameter.show_default and default not in (None, False, "") and not callable(default)
    return f" Default: `{default}`." if shown else ""
