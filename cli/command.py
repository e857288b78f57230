"""Commands from typed functions by Typer, imported when they are called.

A command is a function that has parameters with Typer's annotations and returns an exit status.
Its docstring is its help: a summary, which also appears in the list of commands, then paragraphs
and indented examples. Related parameters, or parameters of several commands, are the fields of a
dataclass, which is one parameter of the function.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command
from typer.models import OptionInfo

from aiperf_hpc.errors import UsageError

if TYPE_CHECKING:
    from typer._click import Context

Function = Callable[..., int]
Commands = Mapping[str, Function]
"""Functions of a group's commands, by command name."""

PARSING: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
BARE = ("--serve",)
"""Options with an optional value (empty if omitted), which Typer does not support."""
SEVERAL = ("--scaling",)
"""Options that take all values up to the next option, which Typer does not support."""


class Command(TyperCommand):
    """A command with options that Typer does not support, and with one-line errors."""

    def get_help_option(self, ctx: Context) -> TyperOption | None:
        return _without_type(super().get_help_option(ctx))

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(_spelled_out(args)))
        except typer.TyperException as error:  # Not every one names its command.
            raise refusal(error, ctx.command_path) from None


class Group(TyperGroup):
    """Commands under one name, e.g. those of ``aiperf data``."""

    def get_help_option(self, ctx: Context) -> TyperOption | None:
        return _without_type(super().get_help_option(ctx))


class Deferred(TyperCommand):
    """A command or a group whose module is imported when it is called."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.name, rich_help_panel=row.panel, hidden=row.panel == "")
        self._row = row

    @property
    def help(self) -> str | None:
        return self._row.summary

    @help.setter
    def help(self, text: str | None) -> None:
        """Keep the row's text, regardless of the text with which the command is created."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: object
    ) -> Context:
        return self.loaded().make_context(info_name, args, parent, **extra)

    def loaded(self) -> Command | Group:
        """Return the command itself."""
        module, _, attribute = self._row.target.partition(":")
        found = getattr(import_module(f"aiperf_hpc.cli.{module}"), attribute)
        if isinstance(found, Mapping):
            return make_group(self._row.name, self._row.summary, found)
        return make_command(self._row.name, found)


@dataclass(frozen=True)
class Row:
    """A command in the list of commands."""

    name: str
    panel: str
    """Heading of the command in ``aiperf --help``; empty for an internal command."""
    target: str
    """Target: ``module:function`` in this package, or ``module:mapping of functions`` (a group)."""

    @property
    def summary(self) -> str:
        """First line of the docstring, for which the module is parsed and not imported."""
        module, _, attribute = self.target.partition(":")
        return _docstrings(module)[attribute].splitlines()[0]


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Return the docstrings of functions, tables and classes' fields, without importing a module.

    A field is named ``CLASS.FIELD``.
    """
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text("utf-8"))
    return dict(_described(tree.body, ""))


def _described(body: list[ast.stmt], within: str) -> Iterator[tuple[str, str]]:
    for node, below in pairwise((*body, ast.Pass())):
        match node, below:
            case ast.FunctionDef(name=name), _:
                yield f"{within}{name}", ast.get_docstring(node) or ""
            case ast.ClassDef(name=name, body=fields), _:
                yield from _described(fields, f"{name}.")
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(ast.Constant(str(text))),
            ):
                yield f"{within}{name}", " ".join(text.split())


def make_command(name: str, function: Function) -> Command:
    """Return the command that calls a function."""
    app = _app()
    app.command(name, cls=Command, help=_help(function))(_flat(function))
    command = get_command(app)
    assert isinstance(command, Command)  # noqa: S101 -- for the type checker
    without_types(command.params)
    return command


def make_group(name: str, summary: str, functions: Commands) -> Group:
    """Return a group of the commands that call these functions."""
    group = root(summary)
    group.name = name
    for each, function in functions.items():
        group.add_command(make_command(each, function))
    return group


def root(summary: str, function: Callable[..., object] | None = None) -> Group:
    """Return an empty group; the function takes the options that precede the commands."""
    app = _app()
    app.callback(cls=Group, help=summary)(function or (lambda: None))
    group = get_command(app)
    assert isinstance(group, Group)  # noqa: S101 -- for the type checker
    without_types(group.params)
    return group


def _app() -> typer.Typer:
    return typer.Typer(
        add_completion=False, rich_markup_mode="rich", context_settings=dict(PARSING)
    )


def without_types(parameters: Iterable[object]) -> None:
    """Omit Python types from the help: a metavar describes a value, and a flag has none."""
    for parameter in parameters:
        if isinstance(parameter, TyperArgument):
            parameter.display_type_rich = _nothing  # type: ignore[method-assign]
        elif isinstance(parameter, TyperOption):
            _without_type(parameter)


def _without_type(option: TyperOption | None) -> TyperOption | None:
    if option is not None and option.is_flag and option.metavar is None:
        option.metavar = ""
    return option


def _nothing(ctx: Context) -> str | None:
    return None


def refusal(error: typer.TyperException, command: str) -> UsageError:
    """Return Typer's error about a command line in one line, with a reference to the help."""
    message = " ".join(error.format_message().split()).rstrip(".")
    invalid = re.fullmatch(r"Invalid value for '([^']*)': (?:Value error, )?(.*)", message)
    if invalid is None:
        message = f"{message[:1].lower()}{message[1:]}"
    else:
        value, what = _rejected(error) or ("", invalid[2])
        what = re.sub("^'[^']*' is not one of", "should be one of", what).rstrip(".")
        message = f"{invalid[1]}{value}: {what}"
    context = getattr(error, "ctx", None)
    where = command if context is None else context.command_path
    return UsageError(f"{message}; see `{where} --help`")


def _rejected(error: BaseException) -> tuple[str, str] | None:
    """Return the value that pydantic rejected, after a space, and the error."""
    from pydantic import ValidationError  # Typer imports it to convert a value.

    from aiperf_hpc.untrusted.bounds import message_of

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        first = cause.errors()[0]
        return f" {first['input']}", message_of(first)
    return None


def _spelled_out(words: list[str]) -> Iterator[str]:
    """Yield a command's arguments with exactly one value per option, as Typer requires."""
    several = ""
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else "-"
        if word == "--":
            yield from words[number:]
            return
        if word.startswith("-") and len(word) > 1:
            several = word if word in SEVERAL else ""
            yield f"{word}=" if word in BARE and following.startswith("-") else word
        else:
            again = several and words[number - 1] != several
            yield from (several, word) if again else (word,)


def _flat(function: Function) -> Function:
    """Return a function of plain command-line parameters that creates the dataclasses."""
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    groups = {name: hints[name] for name in own if is_dataclass(hints[name])}
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name in groups:
            parameters += _of_fields(groups[name])
        else:
            parameters.append(_keyword(name, parameter.default, hints[name]))

    def flat(**values: object) -> int:
        given: dict[str, object] = {}
        for name in own:
            if (group := groups.get(name)) is None:
                given[name] = values[name]
            else:
                given[name] = group(**{field.name: values[field.name] for field in fields(group)})
        return function(**given)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    return flat


def _of_fields(group: type) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field; its docstring is its help, its name the option's."""
    hints = get_type_hints(group, include_extras=True)
    texts = _docstrings(group.__module__.rpartition(".")[2])
    for field in fields(group):
        hint: Any = hints[field.name]
        if text := texts.get(f"{group.__name__}.{field.name}"):
            hint = hint if hasattr(hint, "__metadata__") else Annotated[hint, typer.Option()]
            (given,) = hint.__metadata__
            given.help = text
            if isinstance(given, OptionInfo) and given.default is ...:
                given.param_decls = (f"--{field.name.replace('_', '-')}",)
        yield _keyword(field.name, _default(field), hint)


def _default(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _keyword(name: str, default: object, annotation: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _help(function: Function) -> str:
    """Return a docstring with each paragraph in one line, except indented ones."""
    text = inspect.getdoc(function) or ""
    return "\n\n".join(map(_unwrapped, text.split("\n\n")))


def _unwrapped(paragraph: str) -> str:
    lines = paragraph.splitlines()
    separator = "\n" if any(line.startswith(" ") for line in lines) else " "
    return separator.join(line.strip() for line in lines)


_typed: ContextVar[tuple[str, ...]] = ContextVar("_typed", default=())


def remember(arguments: Sequence[str]) -> None:
    """Store the program's arguments before they are parsed."""
    _typed.set(tuple(arguments))


def command_line() -> str:
    """Return the command, quoted for a shell, or an empty string if there was none."""
    return shlex.join(["aiperf", *_typed.get()]) if _typed.get() else ""
