"""``aiperf status``, ``aiperf watch`` and ``aiperf serve``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument

from aiperf_hpc.cli.output import say, say_document, say_folded
from aiperf_hpc.cli.parameters import Json, Run, option, run_named
from aiperf_hpc.cli.primary import where_served
from aiperf_hpc.cli.serving import ServerSecurity, endpoint_of
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import age, duration
from aiperf_hpc.host.processes import ending_early, interruptible
from aiperf_hpc.results.terminal.progress import ProgressDisplay
from aiperf_hpc.results.terminal.status_line import status_line
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.clock import clock_lines
from aiperf_hpc.results.views.nodes import elasticity_lines, kind_lines
from aiperf_hpc.results.views.replica_status import ReplicaStatus, StorageStatus
from aiperf_hpc.results.views.run_catalog import AnnotatedStatus, annotated_status, run_name
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView, outcome
from aiperf_hpc.results.views.telemetry import telemetry_lines
from aiperf_hpc.results.views.trials import model_lines
from aiperf_hpc.results.views.witnesses import witness_line
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import warn


def status(run: Run, json: Json = False) -> int:
    """Show the current status of a run.

    Works on any node that can read the run directory, even after the run has ended.

    Examples:
      $ aiperf status 20261121-101500-imagenet-3f2a
      $ aiperf status 20261121-101500-imagenet-3f2a --json
    """
    now = annotated_status(RunView.read(RunPaths(run)))
    parts = (_headline(run_name(run), now), status_line(now), *(f"  {e}" for e in _lines(now)))
    if json:
        say_document(now.model_dump_json(indent=1))
    else:
        for line in parts:
            say_folded(line, 4)
    return 0


def _headline(name: str, status: RunStatus) -> str:
    kind = ", simulated" if status.simulated else ""
    reason = f" ({status.reason})" if status.reason else ""
    return f"{name}: {outcome(status.state, status.reason)}{reason}{kind}"


def _lines(status: AnnotatedStatus) -> Iterator[str]:
    yield from status.lines()
    if status.annotations_error:
        yield f"problem: {status.annotations_error}"
    yield status.resources.summary
    if status.service_url is not None:
        yield where_served(status.service_url)
    yield from (f"queue  {line}" for line in clock_lines(status.clock))
    if status.machine:
        yield status.machine
    yield from (_replica_line(status, replica) for replica in status.replicas)
    if status.elasticity is not None:
        yield from elasticity_lines(status.elasticity)
    yield from model_lines(status.models, status.metric)
    yield from kind_lines(status.kinds)
    yield witness_line(status.witnesses, ended=status.state is RunState.ENDED)
    if status.telemetry is not None:
        yield from telemetry_lines(status.telemetry)
    yield from (f"INVALID: {each.reason}" for each in status.violations if each.rule == "engine")
    if status.scheduler_problem:
        yield f"the scheduler does not respond: {status.scheduler_problem}"
    yield from map(_storage_line, status.storage)
    yield from (f"problem: {problem}" for problem in status.problems)


def _replica_line(status: RunStatus, replica: ReplicaStatus) -> str:
    last = replica.last_record_seconds
    seen = "" if last is None else f", last record {age(last)} ago"
    where = f"on {replica.node}" if replica.node else "on no node yet"
    detail = f" ({replica.detail})" if replica.detail else ""
    done = (
        f"round {status.rounds[replica.id]}, {replica.trials} trials, queue {replica.queue_length}"
    )
    if status.models is not None:
        done = f"{replica.trials} trials"  # Without a search, there are no rounds and no queue.
    return f"{replica.id}  {replica.state}{detail}  {where}, job {replica.job}, {done}{seen}"


def _storage_line(storage: StorageStatus) -> str:
    waited = f"{storage.component} waited {duration(storage.seconds)} for storage"
    if storage.count > 1:
        waited += f", {storage.count} times"
    if storage.waiting:
        return f"{waited}, and waits now: {storage.last_reason}"
    if storage.last_started_seconds is None:
        return waited
    began = f"{duration(storage.last_started_seconds)} after the start"
    return f"{waited}, {'last ' if storage.count > 1 else ''}from {began}: {storage.last_reason}"


def serve(
    folder: Annotated[
        Path,
        Argument(metavar="DIR", parser=run_named, help="Folder with runs, or one run directory."),
    ],
    security: ServerSecurity,
    address: Annotated[
        str,
        option("--address", "HOST:PORT", "Listening address. Default: 127.0.0.1, any free port."),
    ] = "",
) -> int:
    """Serve all runs in a folder, or one run, over HTTP.

    Runs that start in the folder later are also served. Read access from this machine requires no
    token; read access from other hosts and all write access do.

    Examples:
      $ aiperf serve runs
      $ aiperf serve 20261121-101500-imagenet-3f2a --address 127.0.0.1:8000
      $ aiperf serve runs --address 0.0.0.0:8765 --token-file tokens
    """
    from aiperf_hpc.service.runs import runs_in
    from aiperf_hpc.service.server import serve

    endpoint = endpoint_of(address, security)
    if endpoint.unencrypted:
        warn("tokens travel unencrypted; --tls-certificate and --tls-key change that")
    serve(runs_in(folder), endpoint, announce=say, log=warn)
    return 0


LOOK_SECONDS = 0.2
OVER = (RunState.ENDED, RunState.GONE)


def watch(run: Run) -> int:
    """Watch a run live.

    Shows the time, the score, the running trials, and a line for each trial that ends. Works on
    any node that can read the run directory. Ctrl-C ends the display, not the run.

    Examples:
      $ aiperf watch last
      $ aiperf watch 20261121-101500-imagenet-3f2a
    """
    view = RunView.read(RunPaths(run))
    message = f"no longer watched; the run continues, and `aiperf stop {run}` ends it"
    with ending_early(lambda: message), interruptible():
        last = _until_over(CachedView(view))
    return _say_result(view, last, run)


def _until_over(live: CachedView) -> RunStatus:
    """Show a run until it has ended or its primary has exited; return its last state."""
    progress = ProgressDisplay(live, sys.stdout)
    progress.skip_news()
    status = live.ask(RunView.status)
    try:
        while status.state not in OVER:
            progress.tick()
            time.sleep(LOOK_SECONDS)
            with suppress(AIPerfError):  # The display reports it, and the read is retried.
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
