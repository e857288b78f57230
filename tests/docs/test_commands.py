"""The commands that pages and README print are commands: each parses, and its settings exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from aiperf_hpc.cli.command import Command, Deferred, Group
from aiperf_hpc.cli.program import COMMANDS, NAMES, program
from aiperf_hpc.config import load_config, preset_names, validate

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted(
        [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "deploy/README.md"]
    )
    if page.name != "CHANGELOG.md"  # What it tells of may be gone since.
]
FOR_USERS = [
    page
    for page in PAGES
    if page.parent.name not in ("decisions", "deploy") and page.stem != "performance"
]
"""Pages that speak of this program's options alone, not of SLURM's or a benchmark's."""
FENCED = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
BEFORE = re.compile(r"^(\$ |[A-Z_]+=\S+ |srun |nohup |(?:\S*/)?bin/|\S*/)*")
COMMENT = re.compile(r"\s#|\s>|\s2>|\s&$")
BETWEEN = re.compile(r";|&&|\s[|]\s")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_in_a_block_can_be_given_so(page: Path) -> None:
    for line in printed(page.read_text("utf-8")):
        words = words_of(line)
        if any("..." in word for word in words):
            check_names(words)
        else:
            parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_in_a_sentence_has_its_name_and_options(page: Path) -> None:
    text = FENCED.sub("", page.read_text("utf-8"))
    for found in INLINE.findall(text):
        code = " ".join(found.split())
        if code.split(" ")[0] in NAMES and code not in NAMES:
            check_names(words_of(code))


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_an_option_in_a_sentence_is_one_of_some_command(page: Path) -> None:
    text = FENCED.sub("", page.read_text("utf-8"))
    named = {found for code in INLINE.findall(text) for found in re.findall(r"^--[a-z-]+", code)}
    assert named - all_options() == set()


@cache
def all_options() -> set[str]:
    whole = program()
    names = [row.name for row in COMMANDS]
    groups = [command for name in names if isinstance(command := loaded(name), Group)]
    commands = [loaded(name) for name in names] + [c for g in groups for c in g.commands.values()]
    return {"--help"} | {
        name for command in (whole, *commands) for each in command.params for name in each.opts
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_configuration_in_a_block_is_one(page: Path) -> None:
    for _, block in FENCED.findall(page.read_text("utf-8")):
        if block.startswith("preset:"):
            validate(yaml.safe_load(block), page.name)


def test_commands_are_found() -> None:
    assert len(list(printed((ROOT / "README.md").read_text("utf-8")))) >= 8


def printed(text: str) -> Iterator[str]:
    """The lines of fenced blocks that call the program, whole."""
    for _, block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in BETWEEN.split(COMMENT.split(line.strip())[0]):
                command = BEFORE.sub("", part.strip())
                if command.partition(" ")[0] in NAMES:
                    yield command


def words_of(line: str) -> list[str]:
    """A command's words; the latest run, which is looked for at once, is any run here."""
    return ["RUN" if word == "last" else word for word in shlex.split(line)[1:]]


def loaded(name: str) -> Command | Group:
    found = program().commands[name]
    assert isinstance(found, Deferred)
    return found.loaded()


def command_of(words: list[str]) -> tuple[Command | Group, list[str]]:
    """The command that words call, and the words that follow its name."""
    command, rest = loaded(words[0]), words[1:]
    if isinstance(command, Group) and rest and not rest[0].startswith("-"):
        each = command.commands[rest[0]]
        assert isinstance(each, Command)
        return each, rest[1:]
    return command, rest


def check_names(words: list[str]) -> None:
    if words[0].isupper():
        return  # `aiperf COMMAND --help`
    whole = program()
    if words[0].startswith("-"):
        assert words[0] in {name for each in whole.params for name in each.opts} | {"--help"}
        return
    command, rest = command_of(words)
    options = {name for each in command.params for name in each.opts} | {"--help"}
    asked = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert asked - options == set(), words


def parse(words: list[str]) -> None:
    if words[0].startswith("-") or "--help" in words:
        check_names(words)
        return
    command, rest = command_of(words)
    with command.make_context(words[0], rest) as context:
        given = context.params
    config = given.get("config")
    if config is None or config in preset_names():
        load_config(config or "quickstart", given.get("assignments") or ())
