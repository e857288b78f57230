"""``aiperf scale``."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from typer import Option

from aiperf_hpc.cli.output import say
from aiperf_hpc.cli.parameters import Run
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.primary.control.scaling import ask_for_nodes
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import NodesRefused

WAIT_SECONDS = 120.0
"""How long the primary may take: it asks the scheduler first, and NFS shows files late."""


def scale(
    run: Run,
    nodes: Annotated[int, Option("--nodes", metavar="M", help="How many it is to have.")],
) -> int:
    """Change the number of nodes of a running benchmark.

    More are asked of the scheduler, and join as they are given. Of fewer, the highest replicas
    end in order; what they found stays in the search. Official results keep their nodes.

    Examples:
      $ aiperf scale 20261121-101500-imagenet-3f2a --nodes 8
      $ aiperf scale last --nodes 2
    """
    view = RunView(RunPaths(run))
    view.refresh()
    before = len(view.history.scalings)
    ask_for_nodes(view, nodes, f"aiperf scale on {socket.gethostname()}")
    _wait(view, run, lambda: not view.paths.scale_request.exists())
    answers = [event for _, event in view.history.scalings[before:]]
    if answers and isinstance(answers[-1], NodesRefused):
        raise UsageError(f"{answers[-1].reason}; nothing was changed")
    say(f"--nodes {nodes}: asked for; `aiperf status {run}` says which are there")
    return 0


def _wait(view: RunView, run: Path, answered: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not answered():
        if time.monotonic() > end:
            raise AIPerfError(
                f"{run}: the primary has not answered within {WAIT_SECONDS:.0f} s; "
                f"`aiperf status {run}` says what it does"
            )
        time.sleep(0.1)
        view.refresh()
        if view.status().state is RunState.ENDED:
            view.paths.scale_request.unlink(missing_ok=True)
            raise UsageError(f"{run}: the run has ended; nothing was changed")
    view.refresh()
