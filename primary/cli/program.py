"""The program ``aiperf``: parses, and calls the command."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence

from aiperf_hpc import __version__
from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.primary.cli import (
    analyze,
    config,
    count,
    data,
    machine,
    profile,
    report,
    resume,
    simulate,
    start,
    status,
    stop,
    study,
)
from aiperf_hpc.primary.cli.parser import Command, Parser
from aiperf_hpc.streams import print_in_any_locale, without_controls

INTERRUPTED = 130
COMMANDS = (
    start.add,
    status.add,
    stop.add,
    resume.add,
    report.add,
    report.add_search,
    analyze.add_analyze,
    analyze.add_card,
    study.add_study,
    status.add_serve,
    count.add,
    data.add,
    simulate.add,
    machine.add_allreduce,
    machine.add_peaks,
    profile.add,
    config.add,
    machine.add_doctor,
    start.add_conduct,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit status."""
    print_in_any_locale()
    try:
        options = parser().parse_args(arguments)
        command: Command = options.command
        return command(options)
    except AIPerfError as error:
        sys.stderr.write(f"aiperf: {without_controls(str(error))}\n")
        return error.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("aiperf: interrupted\n")
        return INTERRUPTED
    except UnicodeEncodeError as error:
        # Of a path that the configuration names, say; what is printed is never refused.
        if codecs.lookup(error.encoding) != codecs.lookup(sys.getfilesystemencoding()):
            raise
        sys.stderr.write(
            f"aiperf: {error.object}: this locale ({error.encoding}) has no such file name; "
            "set LC_ALL=C.UTF-8\n"
        )
        return 1
    except OSError as error:
        where = f"{without_controls(str(error.filename))}: " if error.filename else ""
        sys.stderr.write(f"aiperf: {where}{reason_of(error)}\n")
        return 1


def parser() -> Parser:
    """Return the parser of all commands."""
    whole = Parser(prog="aiperf", description="Benchmark an AI-HPC machine by AutoML.")
    whole.add_argument("--version", action="version", version=f"aiperf-hpc {__version__}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for add in COMMANDS:
        add(commands)
    return whole
