"""The program ``aiperf``: parses the command line and calls the command."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.completion import shell_complete
from typer.core import TyperGroup
from typer.main import get_install_completion_arguments

from aiperf_hpc import __version__
from aiperf_hpc.cli.command import Deferred, Row, refusal, remember, root, without_types
from aiperf_hpc.cli.output import discard_output, say, say_text
from aiperf_hpc.errors import AIPerfError, UsageError, reason_of
from aiperf_hpc.streams import print_in_any_locale, warn

INTERRUPTED = 130
NAMES = ("aiperf", "aiperf-hpc")
"""Names of the program; the second is for systems where another program has the first."""
RUN, WATCH, RESULTS = "Run the benchmark", "Watch a run", "Results"
ANALYSIS, MACHINE, DATA = "Analysis", "This machine", "Data and configuration"
TITLE = "Benchmark AI-HPC machines of any size with automated machine learning."
FIRST_STEPS = f"""\
{TITLE}

  aiperf doctor                          Check this machine.
  aiperf start --nodes 2 --hours 0.05    Run the benchmark for 3 minutes.
  aiperf report last                     Write the report of the latest run.

`aiperf --help` lists all commands."""
COMMANDS = (
    Row("start", RUN, "start:start"),
    Row("stop", RUN, "control:stop"),
    Row("scale", RUN, "control:scale"),
    Row("resume", RUN, "control:resume"),
    Row("simulate", RUN, "start:simulate"),
    Row("list", WATCH, "runs:list_runs"),
    Row("annotate", WATCH, "runs:annotate"),
    Row("status", WATCH, "watch:status"),
    Row("watch", WATCH, "watch:watch"),
    Row("logs", WATCH, "logs:logs"),
    Row("serve", WATCH, "watch:serve"),
    Row("report", RESULTS, "report:report"),
    Row("keygen", RESULTS, "signing:keygen"),
    Row("sign", RESULTS, "signing:sign"),
    Row("verify", RESULTS, "report:verify"),
    Row("witness", RESULTS, "signing:witness"),
    Row("compare", RESULTS, "runs:compare"),
    Row("rank", RESULTS, "analyze:rank"),
    Row("search", RESULTS, "report:SEARCH"),
    Row("analyze", ANALYSIS, "analyze:analyze"),
    Row("card", ANALYSIS, "analyze:card"),
    Row("study", ANALYSIS, "study:study"),
    Row("doctor", MACHINE, "machine:doctor"),
    Row("system", MACHINE, "machine:system"),
    Row("peaks", MACHINE, "machine:peaks"),
    Row("allreduce", MACHINE, "machine:allreduce"),
    Row("profile", MACHINE, "machine:profile"),
    Row("data", DATA, "data:DATA"),
    Row("workloads", DATA, "workloads:workloads"),
    Row("config", DATA, "config:CONFIG"),
    Row("count", DATA, "count:count_operations"),
    Row("conduct", "", "start:conduct"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one command and return its exit status."""
    print_in_any_locale()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        remember(given)
        return _carry_out(given)
    except AIPerfError as error:
        warn(error)
        return error.exit_status
    except KeyboardInterrupt:
        warn("interrupted")
        return INTERRUPTED
    except UnicodeEncodeError as error:
        # E.g. of a configured path; output itself never raises it.
        if codecs.lookup(error.encoding) != codecs.lookup(sys.getfilesystemencoding()):
            raise
        warn(
            f"{error.object}: this locale ({error.encoding}) cannot represent this file name; "
            "set LC_ALL=C.UTF-8"
        )
        return 1
    except BrokenPipeError:  # E.g. of `--help | head`.
        discard_output()
        return 1
    except OSError as error:
        warn(f"{error.filename}: {reason_of(error)}" if error.filename else reason_of(error))
        return 1


def program() -> TyperGroup:
    """Return the group with all commands."""
    whole = root(TITLE, _options)
    whole.params += get_install_completion_arguments()
    without_types(whole.params)
    for row in COMMANDS:
        whole.add_command(Deferred(row))
    return whole


def _say_version(asked: bool) -> None:
    if asked:
        say(f"aiperf-hpc {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take what precedes a command."""


def _carry_out(arguments: list[str]) -> int:
    name = Path(sys.argv[0]).name
    name = name if name in NAMES else NAMES[0]
    whole = program()
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    if instruction := os.environ.get(variable):
        return shell_complete(whole, {}, name, variable, instruction)
    if not arguments:
        say_text(FIRST_STEPS.replace("aiperf", name))
        return UsageError.exit_status
    try:
        with whole.make_context(name, arguments) as context:
            return int(whole.invoke(context))
    except typer.TyperException as error:
        raise refusal(error, name) from None
    except typer.Exit as exit_:
        raise SystemExit(exit_.exit_code) from None
