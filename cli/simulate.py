"""``aiperf simulate``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

from typer import Argument, Option

from aiperf_hpc.cli.parameters import Assignments, Config


def simulate(
    run: Annotated[Path, Argument(metavar="RUN_DIR", parser=Path, help="A new folder.")],
    nodes: Annotated[int, Option("--nodes", metavar="N", help="Replicas.")],
    hours: Annotated[float, Option("--hours", metavar="H", help="Simulated hours.")],
    config: Config = "simulated",
    assignments: Assignments = None,
) -> NoReturn:
    """Run the benchmark on a simulated machine.

    The code of both sides is the real one, the clock and the training are not. Needs the extra
    `simulate`.

    Examples:
      $ aiperf simulate runs/big --nodes 4096 --hours 1
    """
    command = [sys.executable, "-m", "aiperf_hpc.simulation", str(run)]
    command += ["--nodes", str(nodes), "--hours", str(hours)]
    command += ["--config", config]
    command += [part for value in assignments or [] for part in ("--set", value)]
    # In this process, so that its controller hears each signal, once.
    os.execv(sys.executable, command)  # noqa: S606 -- the program is this Python
