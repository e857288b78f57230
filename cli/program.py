"""The program ``aiperf``: parses, and calls the command."""

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
from aiperf_hpc.cli.output import say
from aiperf_hpc.errors import AIPerfError, UsageError, reason_of
from aiperf_hpc.streams import print_in_any_locale, without_controls

INTERRUPTED = 130
NAMES = ("aiperf", "aiperf-hpc")
"""What the program is called; the second is for where another program has the first."""
RUN, WATCH, RESULTS = "Run the benchmark", "Watch a run", "Results"
ANALYSIS, MACHINE, DATA = "Analysis", "This machine", "Data and configuration"
COMMANDS = (
    Row("start", RUN, "start:start", "Run the benchmark."),
    Row("stop", RUN, "control:stop", "Stop a run gracefully and score it."),
    Row("scale", RUN, "control:scale", "Change the number of nodes of a running benchmark."),
    Row("resume", RUN, "resume:resume", "Resume an interrupted run."),
    Row("simulate", RUN, "start:simulate", "Run the benchmark on a simulated machine."),
    Row("list", WATCH, "runs:list_runs", "List the runs in a folder, the latest first."),
    Row("status", WATCH, "watch:status", "Show what a run is doing."),
    Row("watch", WATCH, "watch:watch", "Watch a run live."),
    Row("logs", WATCH, "logs:logs", "Show a run's events and the output of its processes."),
    Row("serve", WATCH, "watch:serve", "Serve all runs in a folder, or one run, over HTTP."),
    Row("report", RESULTS, "report:report", "Write a run's report, also during the run."),
    Row("keygen", RESULTS, "signing:keygen", "Generate a key pair for signing results."),
    Row("sign", RESULTS, "signing:sign", "Sign a finished run."),
    Row(
        "verify",
        RESULTS,
        "report:verify",
        "Verify a run: recompute its score from the records and re-execute sampled trials.",
    ),
    Row(
        "witness",
        RESULTS,
        "signing:witness",
        "Run a timestamping server that signs journal digests.",
    ),
    Row(
        "compare",
        RESULTS,
        "runs:compare",
        "Compare runs: their configuration, machines, scores, time and energy.",
    ),
    Row("rank", RESULTS, "analyze:rank", "Rank verified runs by their score."),
    Row("search", RESULTS, "report:SEARCH", "Inspect a run's search."),
    Row(
        "analyze",
        ANALYSIS,
        "analyze:analyze",
        "Measure runs and public logs as MLPerf HPC, HPC AI500, DAWNBench and MLBench do.",
    ),
    Row(
        "card",
        ANALYSIS,
        "analyze:card",
        "Summarize one machine's runs by the figures of five benchmarks.",
    ),
    Row(
        "study",
        ANALYSIS,
        "study:study",
        "Measure the contribution of each factor, alone and in combination.",
    ),
    Row("doctor", MACHINE, "machine:doctor", "Check this machine's software and hardware."),
    Row("system", MACHINE, "machine:system", "Describe this machine, or the machine of a run."),
    Row(
        "peaks",
        MACHINE,
        "machine:peaks",
        "Measure peak compute, memory, all-reduce and storage performance.",
    ),
    Row(
        "allreduce",
        MACHINE,
        "machine:allreduce",
        "Measure the all-reduce of every installed collective.",
    ),
    Row(
        "profile",
        MACHINE,
        "machine:profile",
        "Break training steps of a network down by kernels, with the framework's profiler.",
    ),
    Row("data", DATA, "data:DATA", "Prepare or verify a dataset."),
    Row("workloads", DATA, "workloads:workloads", "List workloads or describe one."),
    Row("config", DATA, "config:CONFIG", "Show configurations."),
    Row("count", DATA, "count:count_operations", "Count a network's operations for one sample."),
    Row("conduct", "", "start:conduct", "Conduct a detached run; used by `start --detach`."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit status."""
    print_in_any_locale()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        remember(given)
        return _carry_out(given)
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


def program() -> TyperGroup:
    """Return the group of all commands."""
    whole = root("Benchmark an AI-HPC machine of any size by automated machine learning.", _options)
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
        with whole.make_context(name, [], resilient_parsing=True) as context:
            whole.get_help(context)
        raise UsageError(f"name a command; see `{name} --help`")
    try:
        with whole.make_context(name, arguments) as context:
            return int(whole.invoke(context))
    except typer.TyperException as error:
        raise refusal(error, name) from None
    except typer.Exit as exit_:
        raise SystemExit(exit_.exit_code) from None
