"""``aiperf simulate``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from aiperf_hpc.primary.cli.parser import Commands


def add(commands: Commands) -> None:
    """Add ``simulate``."""
    simulate = commands.add_parser("simulate", help="run the benchmark on a simulated machine")
    simulate.add_argument("run", type=Path, metavar="RUN_DIR", help="a new folder")
    simulate.add_argument("--nodes", type=int, required=True, metavar="N", help="replicas")
    simulate.add_argument("--hours", type=float, required=True, metavar="H", help="simulated")
    simulate.add_argument("--config", default="simulated", metavar="FILE|PRESET")
    simulate.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE"
    )
    simulate.set_defaults(command=_simulate)


def _simulate(options: argparse.Namespace) -> NoReturn:
    command = [sys.executable, "-m", "aiperf_hpc.simulation", str(options.run)]
    command += ["--nodes", str(options.nodes), "--hours", str(options.hours)]
    command += ["--config", options.config]
    command += [part for value in options.assignments for part in ("--set", value)]
    # In this process, so that its controller hears each signal, once.
    os.execv(sys.executable, command)  # noqa: S606 -- the program is this Python
