"""``aiperf stop``, ``aiperf scale`` and ``aiperf resume``."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from aiperf_hpc.cli.output import say
from aiperf_hpc.cli.parameters import FinalJson, Json, Run, SigningKey, key_of, option, value
from aiperf_hpc.cli.primary import conduct_run, finish, say_score, status_of, take_run
from aiperf_hpc.cli.serving import ServerSecurity, free_endpoint
from aiperf_hpc.errors import AIPerfError, JournalError, UsageError
from aiperf_hpc.formatting import few
from aiperf_hpc.primary.control.claim import ClaimedError, holder_is_gone
from aiperf_hpc.primary.control.elasticity import request_nodes
from aiperf_hpc.primary.control.journal_digests import JournalDigests
from aiperf_hpc.primary.control.prepare import require_packages
from aiperf_hpc.primary.control.resume import (
    all_have_ended,
    check_resumable,
    end_leftovers,
    lost_before_resume,
)
from aiperf_hpc.primary.control.run_clock import start_at_the_end
from aiperf_hpc.primary.launchers.backend import backend_of
from aiperf_hpc.results.report.provenance import is_whole
from aiperf_hpc.results.terminal.screen import Screen, one_line
from aiperf_hpc.results.terminal.status_line import going_on
from aiperf_hpc.results.views.run_view import RunState, RunStatus, RunView
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import AnyEvent, NodesRefused, RunEnded, TakenOver
from aiperf_hpc.run.requests import Service
from aiperf_hpc.streams import warn

if TYPE_CHECKING:
    from aiperf_hpc.service.endpoint import Endpoint

STOP_WAIT_SECONDS = 90.0
STOP_TELL_SECONDS = 5.0


def stop(run: Run, json: Json = False) -> int:
    """Stop a run gracefully and score it.

    The current steps end, the score is computed and the report is written. If the primary has
    died, the command records the end of the run.

    Examples:
      $ aiperf stop 20261121-101500-imagenet-3f2a
    """
    view = RunView.read(RunPaths(run))
    if view.status().state is RunState.ENDED:
        raise UsageError(f"{run}: the run has ended already; see `aiperf report`")
    if view.history.run_started is None:
        raise UsageError(f"{run}: this run never started; there is nothing to stop")
    write_whole(view.paths.stop_request, "stopped by `aiperf stop`\n")
    with _progress_of_stop(sys.stderr) as tell:  # Only the result goes to standard output.
        _wait_for_end(view, run, tell)
        reported = _is_reported_by_its_primary(view, run)
    if not reported:
        return finish(view, json)
    say_score(view, json)
    return status_of(view)


def _is_reported_by_its_primary(view: RunView, run: Path) -> bool:
    """Wait until the primary of an ended run has written its report.

    Two concurrent writers would list each other's incomplete files. Return False if the primary
    has exited without a report.
    """
    end = time.monotonic() + STOP_WAIT_SECONDS
    while not is_whole(view):
        if holder_is_gone(view.paths.claims):
            return is_whole(view)
        if time.monotonic() > end:
            raise AIPerfError(
                f"{run}: the run has ended, but its primary has not written the report within "
                f"{STOP_WAIT_SECONDS:.0f} s; `aiperf report {run}` writes it afterwards"
            )
        time.sleep(0.2)
    return True


def _wait_for_end(view: RunView, run: Path, tell: Callable[[RunStatus], None]) -> None:
    """Wait for the end of a run that was requested to stop; record the end if no primary can."""
    end = time.monotonic() + STOP_WAIT_SECONDS
    while (status := view.status()).state is not RunState.ENDED:
        tell(status)
        if time.monotonic() > end:
            raise AIPerfError(
                f"{run}: a stop is requested, but the run has not ended within "
                f"{STOP_WAIT_SECONDS:.0f} s; `aiperf status {run}` shows its state"
            )
        if all_have_ended(view.history):
            _end_for_its_primary(view)
        time.sleep(0.2)
        view.refresh()


@contextmanager
def _progress_of_stop(output: TextIO) -> Iterator[Callable[[RunStatus], None]]:
    """Return a function that periodically reports the replicas for which a stop waits."""
    screen, told, due = Screen(output), "", time.monotonic()
    screen.line("stopping: finishing the current steps, then computing the score")

    def tell(status: RunStatus) -> None:
        nonlocal told, due
        replicas = going_on(status)
        text = f"waiting for {few(replicas)}" if replicas else "waiting for the primary"
        if screen.is_terminal:
            screen.change(lambda columns, lines: one_line(text))
        elif text != told and time.monotonic() >= due:
            screen.line(text)
            told, due = text, time.monotonic() + STOP_TELL_SECONDS

    try:
        yield tell
    finally:
        screen.clear()


def _end_for_its_primary(view: RunView) -> None:
    """Record the end of a run whose primary has died."""
    try:
        claim = take_run(view.history, view.manifest, "stop")
    except ClaimedError:
        return  # The process that controls the run ends it.
    with claim, JournalWriter(view.paths.primary_journal) as journal:
        if view.history.run_ended is None and all_have_ended(view.history):
            journal.append(TakenOver(command="stop", host=socket.gethostname(), pid=os.getpid()))
            clock = start_at_the_end(view.history, view.manifest.replicas)
            ended = RunEnded(reason="stopped by `aiperf stop`; its primary had died")
            journal.append_all([*clock, *_last_findings(view, journal), ended])
            if problem := backend_of(view.manifest.launcher).release(view.manifest):
                warn(problem)


def _last_findings(view: RunView, journal: JournalWriter) -> list[AnyEvent]:
    """Return records of lost journals and, unless the run has none, of the final digests."""
    found: list[AnyEvent] = [*lost_before_resume(view.history)]
    try:
        if view.manifest.monitored:
            with JournalWriter(view.paths.journal_digests) as own:
                found.append(JournalDigests(view.history, journal, own, seconds=0.0).take(0.0))
    except JournalError as error:  # The run can be ended nevertheless.
        warn(f"no final digests were recorded, so `aiperf verify` will fail: {error}")
    return found


WAIT_SECONDS = 120.0
"""Time limit of the primary's response: it queries the scheduler first, and NFS has delays."""


def scale(
    run: Run,
    nodes: Annotated[int, option("--nodes", "M", "New number of nodes.")],
) -> int:
    """Change the number of nodes of a running benchmark.

    Additional nodes are requested from the scheduler and join when they are allocated. To reduce
    the number, the replicas with the highest numbers shut down cleanly; their results remain in the
    search. Official results require a constant number of nodes.

    Examples:
      $ aiperf scale 20261121-101500-imagenet-3f2a --nodes 8
      $ aiperf scale last --nodes 2
    """
    view = RunView.read(RunPaths(run))
    before = len(view.history.scalings)
    request_nodes(view, nodes, f"aiperf scale on {socket.gethostname()}")
    _wait_for_answer(view, run)
    answers = [event for _, event in view.history.scalings[before:]]
    if answers and isinstance(answers[-1], NodesRefused):
        raise UsageError(f"{answers[-1].reason}; nothing was changed")
    say(f"--nodes {nodes}: requested; `aiperf status {run}` lists the nodes")
    return 0


def _wait_for_answer(view: RunView, run: Path) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while view.paths.scale_request.exists():
        if time.monotonic() > end:
            raise AIPerfError(
                f"{run}: the primary has not responded within {WAIT_SECONDS:.0f} s; "
                f"`aiperf status {run}` shows its state"
            )
        time.sleep(0.1)
        view.refresh()
        if view.status().state is RunState.ENDED:
            view.paths.scale_request.unlink(missing_ok=True)
            raise UsageError(f"{run}: the run has ended; nothing was changed")
    view.refresh()


@dataclass(frozen=True)
class ServeOptions:
    """Server options of a resumed run."""

    serve: Annotated[str | None, value("[HOST:PORT]")] = None
    """Serve the run's status over REST. Default: the previous address."""
    no_serve: bool = False
    """Do not serve the run, even if it was served before."""


def resume(
    run: Run,
    serving: ServeOptions,
    security: ServerSecurity,
    key: SigningKey = None,
    json: FinalJson = False,
) -> int:
    """Resume an interrupted run.

    The run ends at its original time, because its clock kept running. Replicas that are alive
    continue; the others are restarted.

    Examples:
      $ aiperf resume 20261121-101500-imagenet-3f2a
    """
    if serving.serve is not None and serving.no_serve:
        raise UsageError("--serve and --no-serve are mutually exclusive")
    own = key_of(key)
    manifest, history = check_resumable(run)
    require_packages(manifest.config, manifest.launcher)
    with take_run(history, manifest, "resume") as claim:
        if history.run_ended is not None:  # By another process since the check.
            raise UsageError(f"{run}: this run has ended; see `aiperf report`")
        endpoint = _endpoint_again(serving, security, history.paths)
        end_leftovers(history)
        launch = max(len(history.run_starts), claim.number - 1)
        return conduct_run(
            manifest, history.paths, endpoint, claim, as_json=json, launch=launch, key=own
        )


def _endpoint_again(
    serving: ServeOptions, security: ServerSecurity, paths: RunPaths
) -> Endpoint | None:
    """Return the address at which a resumed run is served: the requested or the previous one.

    The previous address is optional: if there is none, or if it is in use, the run is not served.
    """
    if serving.no_serve:
        return None
    if serving.serve is not None:
        return free_endpoint(serving.serve, security)
    try:
        before = Service.load(paths)
        if before is None:
            return None
        from aiperf_hpc.service.endpoint import Endpoint
        from aiperf_hpc.service.server import check_free

        endpoint = Endpoint(
            before.host,
            before.port,
            security.token_file or before.token_file,
            security.tls_certificate or before.certificate,
            security.tls_key or before.key,
        )
        check_free(endpoint)
    except UsageError as error:
        warn(f"{error}; not served: `aiperf serve {paths.root}` does that")
        return None
    return endpoint
