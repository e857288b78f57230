"""The command line itself: help, completion, the options that Typer has not, wrong words."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest
from tests.support.command import AIPERF
from tests.support.refusals import refused_line
from typer import Option

from aiperf_hpc.cli import main
from aiperf_hpc.cli.command import Function, Row, make_command
from aiperf_hpc.cli.program import COMMANDS
from aiperf_hpc.errors import UsageError
from aiperf_hpc.streams import width

Help = Callable[..., list[str]]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LIGHT = ("aiperf_hpc.config", "numpy", "pydantic", "yaml", "aiperf_hpc.results.views")
"""What the list of all commands has no use for."""


def functions(row: Row) -> Mapping[str, Function]:
    """Return the functions of a row by the words that call them."""
    module, _, attribute = row.target.partition(":")
    found = getattr(import_module(f"aiperf_hpc.cli.{module}"), attribute)
    if isinstance(found, Mapping):
        return {f"{row.name} {name}": function for name, function in found.items()}
    return {row.name: found}


ALL = {words: function for row in COMMANDS for words, function in functions(row).items()}
FOR_PEOPLE = sorted(ALL.keys() - {"conduct"})


@pytest.fixture(params=["utf-8", "ascii"])
def help_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Help:
    """Return what gives a command's help as a terminal of 80 columns shows it."""
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*words: str) -> list[str]:
        written = io.BytesIO()
        output = io.TextIOWrapper(written, request.param)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            with pytest.raises(SystemExit, match="^0$"):
                main([*words, "--help"])
            output.flush()
        return written.getvalue().decode(request.param).splitlines()

    return shown


@pytest.mark.parametrize("words", ["", *FOR_PEOPLE])
def test_help_fits_80_columns_in_any_locale(words: str, help_of: Help) -> None:
    lines = help_of(*words.split())
    assert max(map(width, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert f"Usage: aiperf {words}".strip() in text
    assert "\\x" not in text
    if words:
        assert f"$ aiperf {words} " in f"{text} "  # An example of each.


def test_all_commands_are_listed_once_under_a_heading(help_of: Help) -> None:
    words = [line[2:].split()[:1] for line in help_of()]
    for row in COMMANDS:
        assert words.count([row.name]) == (row.panel != ""), row.name


def test_markup_would_swallow_brackets_so_that_docstrings_have_none() -> None:
    assert [words for words in ALL if "[" in (inspect.getdoc(ALL[words]) or "")] == []


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom aiperf_hpc.cli.program import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {LIGHT} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b"[]\n"


def completed(line: str, **environment: str) -> list[str]:
    """Return what a shell offers behind a line."""
    words = line.split(" ")
    more = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), **environment}
    more = {"_AIPERF_COMPLETE": "complete_bash", **more}
    done = subprocess.run(AIPERF, capture_output=True, check=True, env=os.environ | more)
    return done.stdout.decode().split()


def test_a_shell_completes_commands_options_and_presets() -> None:
    assert completed("aiperf st") == ["start", "stop", "status", "study"]
    assert completed("aiperf start --no") == ["--nodes"]
    assert completed("aiperf start --config q") == ["quickstart"]
    launchers = ["auto", "slurm", "local", "array", "allocation", "inside"]
    assert completed("aiperf start --launcher ") == launchers
    assert completed("aiperf data pr") == ["prepare"]


def test_without_a_command_the_first_steps_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split("  ")[1] for line in lines if line.startswith("  aiperf")]
    assert [step.split()[1] for step in steps] == ["doctor", "start", "report"]
    assert max(map(len, lines)) <= 80


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="^0$"):
        main(["--version"])
    assert capsys.readouterr().out == "aiperf-hpc 0.1.0\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dance", "no such command 'dance'; see `aiperf --help`"),
        ("stat", "no such command 'stat'. Did you mean 'start', 'status'?; see `aiperf --help`"),
        ("data dance", "no such command 'dance'; see `aiperf data --help`"),
        ("data", "missing command; see `aiperf data --help`"),
        ("status", "missing argument 'RUN'; see `aiperf status --help`"),
        ("status a b", "got unexpected extra argument(s) (b); see `aiperf status --help`"),
        ("start --nodes", "option '--nodes' requires an argument; see `aiperf start --help`"),
        ("start --nodes 2 --hours x", "--hours x: should be a number; see "),
        ("start --hour 1", "no such option: --hour (Possible options: --hours); see "),
        ("start --nodes 1 --hours 1 --launcher x", "--launcher x: should be one of 'auto', "),
        ("status a --json=yes", "option '--json' does not take a value; see "),
        ("count resnet50 --classes 2.5", "--classes 2.5: should be a whole number"),
        ("analyze x --scale 0", "--scale: 0 is not a whole number above 0"),
        ("analyze x --scale " + "9" * 5000, "--scale: 999"),
        ("analyze x --vflops-exponent 2.5", "--vflops-exponent: 2.5 is not a whole number"),
        ("analyze x --precision 100", "--precision: 100 is not a percentage between 0 and 100"),
        ("report x --scaling", "option '--scaling' requires an argument"),
        ("resume x --serve --no-serve", "--serve and --no-serve are mutually exclusive"),
    ],
)
def test_wrong_words_are_one_line(words: str, said: str) -> None:
    assert refused_line(*words.split()).startswith(said)


def parsed(*words: str) -> dict[str, object]:
    """Return what a command of the options that Typer has not gets of some words."""
    got: dict[str, object] = {}

    def probe(
        serve: Annotated[str | None, Option("--serve")] = None,
        scaling: Annotated[list[Path] | None, Option("--scaling", parser=Path)] = None,
        json: Annotated[bool, Option("--json")] = False,
    ) -> int:
        got.update(serve=serve, scaling=scaling, json=json)
        return 0

    command = make_command("probe", probe)
    with command.make_context("aiperf probe", list(words)) as context:
        assert command.invoke(context) == 0
    return {name: value for name, value in got.items() if value not in (None, False)}


def test_an_option_may_have_no_value_or_several() -> None:
    assert parsed("--serve") == {"serve": ""}
    assert parsed("--serve", "--json") == {"serve": "", "json": True}
    assert parsed("--serve", "host:1", "--json") == {"serve": "host:1", "json": True}
    assert parsed("--serve=host:1") == {"serve": "host:1"}
    runs = [Path("a"), Path("b"), Path("c")]
    assert parsed("--scaling", "a", "b", "c", "--json") == {"scaling": runs, "json": True}
    assert parsed("--scaling", "a", "--scaling", "b", "c") == {"scaling": runs}
    with pytest.raises(UsageError, match="requires an argument"):
        parsed("--scaling")


def test_output_whose_reader_has_exited_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # As `| head` does.
    command = [*AIPERF, "--show-completion", "bash"]
    with open(writing, "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
