"""The primary of a run, for commands that start or end a run: control, score and report."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from aiperf_hpc.cli.output import say_document, say_folded, shown_path
from aiperf_hpc.errors import AIPerfError, JournalError, UsageError
from aiperf_hpc.host.processes import Interrupts
from aiperf_hpc.primary.control.claim import Claim, Claimed, take
from aiperf_hpc.primary.control.context import PrimaryContext
from aiperf_hpc.primary.control.controller import Controller
from aiperf_hpc.primary.control.journal_digests import JournalDigests, remove_token, witnesses_of
from aiperf_hpc.primary.launchers.backend import backend_of
from aiperf_hpc.results.terminal.progress import ProgressDisplay
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_catalog import run_argument
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.clocks import read_clocks
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.history.presence import requested_nodes
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import JobState
from aiperf_hpc.run.requests import Service
from aiperf_hpc.run.search_digest import DigestWriter
from aiperf_hpc.run.storage import BackoffRetry, Retry
from aiperf_hpc.streams import as_printed, warn
from aiperf_hpc.system.node import describe_rank
from aiperf_hpc.trial import JobPhase, TrialState
from aiperf_hpc.verification.witness_client import submitting

if TYPE_CHECKING:
    from aiperf_hpc.integrity.signatures import PrivateKey
    from aiperf_hpc.service.endpoint import Endpoint


MOST_FAILURES = 2
"""Maximum failed replicas listed at the end of a run, so the score stays on the screen."""
LAST_OUTPUT_BYTES = 500
"""Bytes at the end of a replica's output that are searched for its last line."""


def take_run(history: RunHistory, manifest: RunManifest, command: str) -> Claim:
    """Claim a run, and read its records. Raises ClaimedError if another process controls it."""
    heartbeat = manifest.config.journal.heartbeat_interval_seconds
    return take(history, heartbeat, command, BackoffRetry(lambda: False))


def plan_line(manifest: RunManifest, folder: Path) -> str:
    """Return a one-line description of the run."""
    shares = ", ".join("+".join(str(c) for c in share) for share in manifest.cores)
    cores = f", cores {shares}" if shares else ""
    size = manifest.config.replica.ranks
    most = manifest.most_replicas
    count = f"{manifest.replicas}-{most}" if most > manifest.replicas else f"{manifest.replicas}"
    replicas = f"{count} replica{'s' * (most > 1)}"
    replicas += f" of {size} ranks" if size > 1 else ""
    return (
        f"{replicas} ({manifest.launcher}{cores}) for {manifest.hours:g} h, "
        f"{manifest.config.preset} on {manifest.config.dataset.name}, "
        f"records in {shown_path(folder)}"
    )


def conduct_run(
    manifest: RunManifest,
    paths: RunPaths,
    endpoint: Endpoint | None,
    claim: Claim,
    *,
    as_json: bool,
    launch: int = 0,
    key: PrivateKey | None = None,
) -> int:
    """Run to the end, print the score, write the report, and sign it if there is a key."""
    output = sys.stderr if as_json else sys.stdout
    view = RunView(paths)
    live = CachedView(view)
    progress = ProgressDisplay(live, output)
    progress.say(plan_line(manifest, paths.root))
    view.refresh()
    interrupts = Interrupts()
    retry = BackoffRetry(interrupts.at_once)
    # A resumed run starts the previously requested number.
    requested = manifest.model_copy(update={"nodes": requested_nodes(view.history, manifest.nodes)})
    launcher = backend_of(manifest.launcher).launcher(requested, paths, launch, retry)
    claimed = Claimed(claim, retry)
    with (
        JournalWriter(paths.primary_journal, retry=claimed, recorded=claim.recorded) as journal,
        JournalWriter(paths.digest, retry=claimed) as digest,
        _journal_digests(manifest, view.history, journal, claimed) as digests,
        _server(live, endpoint, output, paths, retry, progress.say),
        progress.alert(interrupts, retry),
        submitting(witnesses_of(manifest, view.history), journal, progress.say) as show,
    ):
        writer = DigestWriter(view.history, digest)
        context = PrimaryContext(
            manifest=manifest,
            journal=journal,
            history=view.history,
            digest=writer,
            clocks=read_clocks,
            journal_digests=digests,
            show=show,
            description=describe_rank(manifest.folders(paths)),  # Before the clock starts.
            retry=retry,
        )
        controller = Controller(context, launcher, interrupts=interrupts, say=progress.say)
        with closing(launcher):
            controller.run(progress.tick)
    progress.end()
    view.refresh()
    remove_token(view.history)
    if controller.refused is not None:
        raise AIPerfError(f"{controller.refused}; the run was stopped")
    claim.release()  # The run has ended. This writes into the directory, as do log lines.
    return finish(RunView(paths), as_json, key)


@contextmanager
def _journal_digests(
    manifest: RunManifest, history: RunHistory, journal: JournalWriter, retry: Retry
) -> Iterator[JournalDigests | None]:
    """Open the file of journal digests; a run continues without one that is damaged."""
    try:
        writer = JournalWriter(history.paths.journal_digests, retry=retry)
    except JournalError as error:
        warn(f"no journal digests are recorded, so `aiperf verify` will fail: {error}")
        yield None
        return
    with writer:
        yield JournalDigests(history, journal, writer, seconds=manifest.config.digest_seconds)


@contextmanager
def _server(
    live: CachedView,
    endpoint: Endpoint | None,
    output: TextIO,
    paths: RunPaths,
    retry: Retry,
    log: Callable[[str], None],
) -> Iterator[None]:
    """Serve the run's status over REST while the block runs, if an address was given."""
    if endpoint is None:
        yield
        return
    from aiperf_hpc.service.runs import OneRun
    from aiperf_hpc.service.server import ServerThread

    with ServerThread(OneRun(paths.root.name, live), endpoint, log) as server:
        Service(
            **Service.fields_from(server.endpoint),
            url=server.url,
            primary_host=socket.gethostname(),
            primary_pid=os.getpid(),
        ).save(paths, retry)
        output.write(f"{where_served(server.url)}\n")
        output.flush()
        yield


def finish(view: RunView, as_json: bool, key: PrivateKey | None = None) -> int:
    """Print the score of an ended run, write its report, and sign it if there is a key.

    The report comes last: its manifest lists all files of the run, including the output of a
    primary in the background.
    """
    from aiperf_hpc.results.report.writer import write_report

    view.refresh()
    say_score(view, as_json)  # First, so that no later error hides it.
    try:
        write_report(view, key=key)
    except KeyboardInterrupt:
        raise UsageError(
            f"interrupted while writing the report; `aiperf report {view.paths.root}` writes it"
        ) from None
    return status_of(view)


def say_score(view: RunView, as_json: bool) -> None:
    """Print the failures of an ended run, the path of its report, and last its score."""
    from aiperf_hpc.results.report.writer import RESULT_INDENT, summary_lines

    name, failures = run_argument(view.paths.root), list(_failures(view))
    for line in failures[:MOST_FAILURES]:
        warn(line)
    if (more := len(failures) - MOST_FAILURES) > 0:
        warn(f"{more} more replicas failed; `aiperf logs {name}` shows why")
    sys.stderr.flush()
    if as_json:
        say_document(view.status().model_dump_json(indent=1))
        return
    lines = summary_lines(view)
    for line in (f"Report           {shown_path(view.paths.report_html)}", *lines):
        say_folded(line, RESULT_INDENT)


def _failures(view: RunView) -> Iterator[str]:
    """Yield lines with the failed replicas, the reasons, and the paths of their output."""
    for replica in view.history.replicas.values():
        log = view.paths.replica_log(replica.id)
        if replica.ended is not None and replica.ended.startswith("failed"):
            yield f"{replica.id} {replica.ended}; its output is in {log}"
        elif replica.exit_status:
            yield f"{replica.id} ended with status {replica.exit_status}; see {log}"
        elif (job := replica.job_state) is not None and _failed(replica, job):
            yield _end_of_job(replica, job, view.paths)


def status_of(view: RunView) -> int:
    """Return the exit status of an ended run: 0 if a replica shut down cleanly.

    It is 1 nevertheless if every trial failed, e.g. because of damaged data.
    """
    in_order = [
        r for r in view.history.replicas.values() if r.ended and not r.ended.startswith("failed")
    ]
    states = {trial.state for trial in view.history.trials.values()}
    return 0 if in_order and states != {TrialState.FAILED} else 1


def _failed(replica: ReplicaHistory, job: JobState) -> bool:
    """Return whether the job failed, or neither the job nor the replica is known to have ended."""
    return job.phase is not JobPhase.DONE and (job.phase.ended or replica.ended is None)


def _end_of_job(replica: ReplicaHistory, job: JobState, paths: RunPaths) -> str:
    """Return the launcher's reason for the end of a replica that recorded none."""
    node = f" on {job.node}" if job.node else ""
    description = (
        f"{replica.id} (job {replica.job}{node}) {job.phase}: {job.detail or 'no reason given'}"
    )
    log = paths.replica_log(replica.id)
    words = _last_output_line(log)
    if replica.started is None and words is None:
        return f"{description}; it wrote no record: can its node access {paths.root}?"
    last = f", and ends with '{words}'" if words else ""
    return f"{description}; its output is in {log}{last}"


def _last_output_line(log: Path) -> str | None:
    """Return the last line that a replica or its scheduler printed, or None if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_OUTPUT_BYTES))
            printed = file.read(LAST_OUTPUT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None  # It does not explain the replica's end.
    lines = [line.strip() for line in printed.splitlines() if line.strip(" -=*")]
    return as_printed(lines[-1], sys.stderr) if lines else None


def where_served(url: str) -> str:
    """Return the address of a run's live page, for people."""
    return f"live page at {url}/"
