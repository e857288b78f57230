"""Queue of runs in a folder, which starts each in a process, one at a time on this machine.

Each submission is a file, rewritten atomically whenever its state changes: a restarted service
resumes the queue. Schedulers have queues of their own, so their runs are handed over
immediately.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import psutil
from pydantic import ValidationError

from aiperf_hpc.errors import (
    AIPerfError,
    ConfigError,
    RunDirectoryError,
    UsageError,
    reason_of,
    restated,
)
from aiperf_hpc.primary.control.claim import Holder, this_holder
from aiperf_hpc.primary.control.elasticity import request_nodes
from aiperf_hpc.primary.control.prepare import (
    describe_dataset,
    make_manifest,
    make_run_directory,
    require_eligible,
)
from aiperf_hpc.primary.control.resume import check_resumable
from aiperf_hpc.primary.launchers.backend import backend_of
from aiperf_hpc.primary.programs import start_command
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.service.problem import Fault, ProblemError, conflict, not_found
from aiperf_hpc.service.submission import Queue, Submission, SubmissionState, Submitted

LOOK_SECONDS = 1.0
MOST_WAITING = 1000
FOLDER = ".aiperf-service"
"""Folder for the service's own files, in the folder of the runs."""


class Process(Protocol):
    """A started primary process."""

    def poll(self) -> int | None:
        """Return the exit status, or None while the process is running."""


class Primaries:
    """Primary processes on this machine."""

    def plan(self, submission: Submission) -> RunManifest:
        """Return the prepared run of a submission, after all checks of `aiperf start`.

        Raises:
            UsageError: the run is impossible; the message states the reason.
        """
        config = submission.config()
        manifest = make_manifest(
            config,
            submission.nodes,
            submission.hours,
            submission.launcher,
            nodes_max=submission.nodes_max,
        )
        said = {"division": submission.division, "start_when": submission.start_when}
        manifest = manifest.model_copy(update=said)
        require_eligible(manifest)
        dataset = describe_dataset(config.dataset)
        require_eligible(manifest, dataset)
        return manifest.model_copy(update={"dataset": dataset})

    def start(self, manifest: RunManifest, folder: Path) -> Process:
        """Start a run in a new folder. Raises UsageError if the folder cannot be created."""
        assert manifest.dataset is not None  # noqa: S101 -- planned
        paths = make_run_directory(manifest, folder, manifest.dataset)
        backend_of(manifest.launcher).wait()  # The clock of some runs starts with the run.
        return start_command("conduct", paths)

    def stop(self, paths: RunPaths) -> Process | None:
        """Request the stop of a run; if its primary has died, start a process that ends the run.

        Raises:
            UsageError: the run is not active.
        """
        view = RunView.read(paths)
        state = view.status().state
        if state is RunState.ENDED:
            raise UsageError("the run has ended already")
        if view.history.run_started is None or view.manifest.simulated:
            raise UsageError("this run never started, or is simulated; there is nothing to stop")
        write_whole(paths.stop_request, "stopped by the service\n")
        lives = state in (RunState.QUEUED, RunState.RUNNING, RunState.STOPPING)
        return None if lives else start_command("stop", paths)

    def scale(self, paths: RunPaths, nodes: int) -> None:
        """Request another number of nodes of a running benchmark. Raises UsageError if
        impossible."""
        view = RunView.read(paths)
        request_nodes(view, nodes, "the service")

    def resume(self, paths: RunPaths) -> Process:
        """Resume a run. Raises UsageError or RunDirectoryError if it cannot be resumed."""
        check_resumable(paths.root)
        return start_command("resume", paths, ["--no-serve"])

    def busy(self) -> str | None:
        """Return a description of a process that executes a run on this machine, or None."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "aiperf_hpc.replica" in words:
                return f"process {process.pid} computes on this machine, for another run"
        return None


def output_of(paths: RunPaths) -> str:
    """Return the last output line of a primary in the background."""
    try:
        lines = paths.primary_log.read_text("utf-8", errors="backslashreplace").splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("aiperf: ") if lines else ""


class RunQueue:
    """Queue that starts, stops and resumes the runs of a folder. It is thread-safe."""

    def __init__(
        self,
        folder: Path,
        primaries: Primaries | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create a queue from a folder, a starter of processes, and a function that logs a line."""
        self.folder = folder
        self._primaries = primaries or Primaries()
        self._log = log
        self._lock = threading.RLock()
        self._planning = threading.Lock()
        self._entries: dict[str, Submitted] = {}
        self._plans: dict[str, RunManifest] = {}
        self._processes: dict[str, Process] = {}
        """Started processes that may still run, by the run's name."""
        self._here: set[str] = set()
        """Runs that execute on this machine."""
        self._queue = folder
        self._wake = threading.Event()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Lock the folder and start waiting runs while the block executes.

        Raises:
            UsageError: another service has locked the folder.
            RunDirectoryError: the folder is not writable, or a file of the queue is damaged.
        """
        with owned(self.folder) as own:
            self._queue = own / "queue"
            self._queue.mkdir(exist_ok=True)
            self._entries = dict(_read(self._queue))
            self._settle()
            over = threading.Event()
            thread = threading.Thread(target=self._work, args=(over,), name="queue", daemon=True)
            thread.start()
            try:
                yield
            finally:
                over.set()
                self._wake.set()
                thread.join()

    # Requests of clients.

    def submit(self, submission: Submission) -> Submitted:
        """Check a submission and add it to the queue.

        Raises:
            ProblemError: it is invalid, its name is in use, or the queue is full.
        """
        with self._lock:
            self._require_room(submission)
        try:
            with self._planning:  # One check at a time, because it may load a framework.
                plan = self._primaries.plan(submission)
        except AIPerfError as error:
            faults = error.faults if isinstance(error, ConfigError) else {}
            raise ProblemError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "cannot-run",
                f"this cannot run: {error}",
                tuple(Fault(where=f"body.settings.{k}", message=v) for k, v in faults.items()),
            ) from None
        with self._lock:
            self._require_room(submission)
            number = max((int(each) for each in self._entries), default=0) + 1
            entry = Submitted(
                id=f"{number:06d}",
                state=SubmissionState.QUEUED,
                submitted_utc=time.time(),
                submission=submission,
            )
            self._plans[entry.id] = plan
            self._put(entry)
        self._wake.set()
        return entry

    def submissions(self) -> Queue:
        """Return all submissions: first the waiting ones, then the others, latest first."""
        with self._lock:
            entries = list(self._entries.values())
        waiting = [e for e in entries if e.state is SubmissionState.QUEUED]
        others = [e for e in entries if e.state is not SubmissionState.QUEUED]
        return Queue(queue=(*waiting, *reversed(others)))

    def submitted(self, name: str) -> Submitted:
        """Return a submission. Raises ProblemError if it does not exist."""
        with self._lock:
            entry = self._entries.get(name)
        if entry is None:
            raise not_found(f"there is no submission {name!r}")
        return entry

    def cancel(self, name: str) -> Submitted:
        """Cancel a waiting submission. Raises ProblemError if it is not waiting."""
        with self._lock:
            entry = self.submitted(name)
            if entry.state is not SubmissionState.QUEUED:
                raise conflict(
                    f"submission {name} is {entry.state}; only a waiting one can be cancelled"
                )
            return self._change(entry, SubmissionState.CANCELLED)

    def stop(self, paths: RunPaths) -> None:
        """Stop a run. Raises UsageError if the run is not active."""
        with self._lock:
            process = self._primaries.stop(paths)
            if process is not None:
                self._processes[f"{paths.root.name} (stop)"] = process

    def scale(self, paths: RunPaths, nodes: int) -> None:
        """Request another number of nodes of a run. Raises UsageError if that is impossible."""
        self._primaries.scale(paths, nodes)

    def resume(self, paths: RunPaths) -> None:
        """Resume a run. Raises UsageError if that is impossible, ProblemError if the machine is
        busy."""
        with self._lock, self._planning:
            local = RunManifest.load(paths).launcher == "local"
            if local and (busy := self._busy()) is not None:
                raise conflict(f"one run at a time: {busy}")
            name = str(paths.root.relative_to(self.folder))
            self._processes[name] = self._primaries.resume(paths)
            self._here |= {name} if local else set()

    # The queue.

    def _work(self, over: threading.Event) -> None:
        while not over.is_set():
            self._wake.clear()
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 -- logged; the others still get their turn
                self._log(f"queue: unexpected {type(error).__name__}: {error}")
            self._wake.wait(LOOK_SECONDS)

    def _turn(self) -> None:
        """Start the submissions that can start now."""
        with self._lock:
            self._reap()
        for entry in self.submissions().queue:
            if entry.state is not SubmissionState.QUEUED:
                break
            try:
                if not self._waits(entry):
                    self._start(entry, self._plan(entry))
            except AIPerfError as error:
                self._change(entry, SubmissionState.FAILED, reason=str(error))

    def _plan(self, entry: Submitted) -> RunManifest:
        """Check the submission again in the current state. Raises AIPerfError if it is invalid."""
        with self._planning:
            self._plans[entry.id] = plan = self._primaries.plan(entry.submission)
        return plan

    def _waits(self, entry: Submitted) -> bool:
        """Return whether a submission must wait, and record the reason."""
        plan = self._plans.get(entry.id) or self._plan(entry)
        with self._lock:
            busy = self._busy() if plan.launcher == "local" else None
            if busy is not None and entry.reason != busy:
                self._change(entry, SubmissionState.QUEUED, reason=busy)
        return busy is not None

    def _start(self, entry: Submitted, plan: RunManifest) -> None:
        with self._lock:
            if self._entries[entry.id].state is not SubmissionState.QUEUED:
                return  # Canceled in the meantime.
            name = entry.submission.name or plan.run_id
            entry = self._change(entry, SubmissionState.STARTING, run=name)
            self._processes[name] = self._primaries.start(plan, self.folder / name)
            self._here |= {name} if plan.launcher == "local" else set()
            self._plans.pop(entry.id, None)
            self._change(entry, SubmissionState.STARTED)
            self._log(f"queue: submission {entry.id} has started as {name}")

    def _busy(self) -> str | None:
        """Return a description of the run that this machine executes, or None."""
        self._reap()
        going_on = next((name for name in self._processes if name in self._here), None)
        return self._primaries.busy() if going_on is None else f"run {going_on} goes on"

    def _reap(self) -> None:
        """Record the exit of processes."""
        for name, process in list(self._processes.items()):
            if (status := process.poll()) is None:
                continue
            del self._processes[name]
            if status:
                self._ended_badly(name, status)

    def _ended_badly(self, name: str, status: int) -> None:
        paths = RunPaths(self.folder / name)
        reason = f"its primary ended with status {status}: {output_of(paths)}"
        self._log(f"queue: run {name}: {reason}")
        for entry in self._entries.values():
            if entry.run == name and not _has_begun(paths):
                self._change(entry, SubmissionState.FAILED, reason=reason)
                break

    def _settle(self) -> None:
        """Record the outcome of submissions whose start was interrupted by the end of an earlier
        service."""
        for entry in list(self._entries.values()):
            if entry.state is SubmissionState.STARTING:
                began = _has_begun(RunPaths(self.folder / (entry.run or "")))
                state = SubmissionState.STARTED if began else SubmissionState.FAILED
                self._change(entry, state, reason="" if began else "the service ended meanwhile")

    def _require_room(self, submission: Submission) -> None:
        waiting = [e for e in self._entries.values() if e.state is SubmissionState.QUEUED]
        if len(waiting) >= MOST_WAITING:
            raise ProblemError(
                HTTPStatus.TOO_MANY_REQUESTS, "queue-full", f"{MOST_WAITING} submissions wait"
            )
        name = submission.name
        taken = name is not None and (
            (self.folder / name).exists() or name in {e.submission.name for e in waiting}
        )
        if taken:
            raise conflict(f"a run or submission {name!r} exists already; choose another name")

    def _change(
        self, entry: Submitted, state: SubmissionState, *, run: str | None = None, reason: str = ""
    ) -> Submitted:
        with self._lock:
            new = entry.model_copy(
                update={"state": state, "run": run or entry.run, "reason": reason}
            )
            self._put(new)
        return new

    def _put(self, entry: Submitted) -> None:
        write_whole(self._queue / f"{entry.id}.json", f"{entry.model_dump_json(indent=1)}\n")
        self._entries[entry.id] = entry


def _has_begun(paths: RunPaths) -> bool:
    """Return whether the clock of a run has started."""
    try:
        return paths.primary_journal.stat().st_size > 0
    except OSError:
        return False


def _read(folder: Path) -> Iterator[tuple[str, Submitted]]:
    for path in sorted(folder.glob("[0-9]*.json")):
        try:
            yield path.stem, Submitted.model_validate_json(path.read_bytes())
        except ValidationError:
            raise RunDirectoryError(
                f"{path} is damaged; removing it discards only one submission"
            ) from None


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[Path]:
    """Lock a folder while the block executes; yield the folder for the service's own files.

    The kernel or the file server releases the lock when the process ends for any reason.

    Raises:
        UsageError: another service has locked the folder.
        RunDirectoryError: the folder is not writable.
    """
    own, advice = folder / FOLDER, "; without --token-file it is read-only"
    what = f"cannot write in {folder}, where runs are to be started"
    with restated(what, RunDirectoryError, advice):
        own.mkdir(exist_ok=True)
        file = os.open(own / "owner.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(file, folder)
        os.ftruncate(file, 0)
        os.pwrite(file, this_holder("serve").model_dump_json().encode(), 0)
        yield own
    finally:
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{folder} is served already, by {_owner(file)}: use that service, or stop it; without "
            "--token-file any number of services may read"
        ) from None
    except OSError as error:
        raise RunDirectoryError(
            f"the file system of {folder} has no locks ({reason_of(error)}), which ensure that "
            "only one service changes it; without --token-file it is read-only"
        ) from None


def _owner(file: int) -> str:
    try:
        return Holder.model_validate_json(os.pread(file, 4096, 0)).where
    except ValidationError:
        return "another process"
