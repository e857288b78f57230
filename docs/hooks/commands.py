"""The reference of the commands, from the program's own help."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby
from typing import Literal, get_args, get_origin

from typer.core import TyperArgument, TyperOption

from aiperf_hpc.cli.command import Command, Deferred, Group
from aiperf_hpc.cli.program import COMMANDS, program


def all_commands() -> Iterator[tuple[str, Iterator[tuple[str, Command]]]]:
    """Yield each panel with its commands by name, e.g. ``data prepare``."""
    commands = program().commands
    for panel, rows in groupby((row for row in COMMANDS if row.panel), key=lambda row: row.panel):
        yield panel, chain.from_iterable(_commands(row.name, commands[row.name]) for row in rows)


def _commands(name: str, command: object) -> Iterator[tuple[str, Command]]:
    if isinstance(command, Deferred):
        command = command.loaded()
    if isinstance(command, Command):
        yield name, command
    elif isinstance(command, Group):
        for each in command.commands.values():
            yield from _commands(f"{name} {each.name}", each)


def reference() -> Iterator[str]:
    """Yield the commands by panel: usage, parameters, examples."""
    for panel, commands in all_commands():
        yield f"\n## {panel}\n"
        for name, command in commands:
            yield from _command(name, command)


def _command(name: str, command: Command) -> Iterator[str]:
    text, examples = help_of(command)
    yield f"\n### aiperf {name}\n\n{text}\n"
    yield f"```\n{usage(name, command)}\n```\n"
    yield "| parameter | description |\n|---|---|"
    yield from (f"| `{spelled}` | {text} |" for spelled, text in parameters(command))
    yield f"\n```\n{examples}\n```\n"


def help_of(command: Command) -> tuple[str, str]:
    """Return the description of a command and its examples."""
    text, _, examples = (command.help or "").partition("\n\nExamples:\n")
    return text, examples.strip()


def parameters(command: Command) -> Iterator[tuple[str, str]]:
    """Yield each parameter as it is written, with its description and default."""
    for each in command.params:
        if isinstance(each, TyperArgument | TyperOption) and not each.hidden:
            yield _spelled(each), f"{each.help}{_default(each)}"


def usage(name: str, command: Command) -> str:
    """Return the form of a command with its required parameters."""
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
