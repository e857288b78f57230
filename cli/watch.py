"""``aiperf watch``."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

from aiperf_hpc.cli.output import say_folded
from aiperf_hpc.cli.parameters import Run
from aiperf_hpc.errors import AIPerfError, EndedEarlyError
from aiperf_hpc.host.signals import Interruption, interruptible
from aiperf_hpc.results.terminal.progress import ProgressDisplay
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView
from aiperf_hpc.run.paths import RunPaths

LOOK_SECONDS = 0.2
OVER = (RunState.ENDED, RunState.GONE)


def watch(run: Run) -> int:
    """Watch a run live.

    As its own terminal shows it: its time, its score and the trials under way, and a line for each
    that ends. From any node that sees the run directory. Ctrl-C ends the watching and not the run.

    Examples:
      $ aiperf watch last
      $ aiperf watch 20261121-101500-imagenet-3f2a
    """
    view = RunView(RunPaths(run))
    view.refresh()
    try:
        with interruptible():
            last = _until_over(CachedView(view))
    except Interruption as interruption:
        raise EndedEarlyError(
            f"no longer watched; the run goes on, and `aiperf stop {run}` ends it",
            interruption.exit_status,
        ) from None
    return _say_result(view, last, run)


def _until_over(live: CachedView) -> RunStatus:
    """Show a run until it has ended, or its primary is gone; return its last state."""
    progress = ProgressDisplay(live, sys.stdout)
    progress.skip_news()
    status = live.ask(RunView.status)
    try:
        while status.state not in OVER:
            progress.tick()
            time.sleep(LOOK_SECONDS)
            with suppress(AIPerfError):  # The display says so, and it is tried again.
                status = live.ask(RunView.status)
    finally:
        progress.end()
    return status


def _say_result(view: RunView, last: RunStatus, run: Path) -> int:
    if last.state is RunState.GONE:
        raise AIPerfError(f"{run}: {last.reason}")
    from aiperf_hpc.results.report.writer import RESULT_INDENT, summary_lines

    view.refresh()
    for line in summary_lines(view):
        say_folded(line, RESULT_INDENT)
    return 0
