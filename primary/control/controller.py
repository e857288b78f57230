"""Controller of a run: launch the replicas, start the clock, monitor them, stop the clock."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aiperf_hpc.errors import AIPerfError, JournalError, StorageError
from aiperf_hpc.formatting import few
from aiperf_hpc.host.processes import Interrupts, ending_signals, handled
from aiperf_hpc.primary.control.claim import LostClaimError
from aiperf_hpc.primary.control.context import PrimaryContext, Timing
from aiperf_hpc.primary.control.elasticity import Elasticity
from aiperf_hpc.primary.control.preflight import Preflight
from aiperf_hpc.primary.control.resume import SCORED_WITHOUT, lost_before_resume
from aiperf_hpc.primary.control.run_clock import RunClock
from aiperf_hpc.primary.launchers.base import Launcher, ReplicaState, WaitLimit
from aiperf_hpc.results.views.cached_view import rest_after
from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.liveness import LISTING_SECONDS, Timekeeping
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.requests import requested_stop
from aiperf_hpc.trial import JobPhase

INTERRUPTED = "interrupted by the user"
DIGESTS_RETRIED = "the journal digests are recorded when it can be written again"


class Controller:
    """The primary's control loop of one run."""

    def __init__(
        self,
        context: PrimaryContext,
        launcher: Launcher,
        *,
        timing: Timing | None = None,
        interrupts: Interrupts | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Create a controller without launching or recording anything.

        Args:
            context: context of the run.
            launcher: launcher of the replicas.
            timing: polling intervals and timeouts.
            interrupts: counter of the user's requests to stop.
            say: callback that reports the end of the run and pending replicas to the user.
        """
        self._run = context
        self._clock = context.clock
        self._launcher = launcher
        self._journal_digests = context.journal_digests
        self._digests_failed = False
        self._timekeeping = Timekeeping(lambda: self._clocks(context.clocks), context.clock)
        self._timing = timing or Timing()
        self._deadline = self._closing_utc = math.inf
        self._run_clock: RunClock | None = None
        """Detector of the clock's start; None once the clock has started."""
        self._stop_reason: str | None = None
        self._stop_requested_at = self._killed_at = 0.0
        self._interrupts = interrupts or Interrupts()
        self._say = say
        self._known: dict[str, ReplicaState] = {}
        self._lost_since: dict[str, float] = {}
        self._problem: str | None = None
        self._lost_journals: set[Path] = set()
        """Journals that were recorded as missing."""
        self._next_look = 0.0
        self._elasticity = Elasticity(context, launcher, self._timing, say)
        self._preflight = Preflight(context.history, context.clock, self._elasticity.joined)
        self.refused: str | None = None
        """Mismatch between nodes and request for which the run was stopped; None otherwise."""

    def run(self, watch: Callable[[], None] = lambda: None) -> str:
        """Control the run until it ends and return the reason of its end.

        Args:
            watch: callback, called several times per second while replicas run, e.g. to show
                progress.

        Raises:
            UsageError: the launcher started no replica; the journal records this.
        """
        # The first one requests a graceful stop, the second kills all replicas.
        with handled(ending_signals(), self._interrupts.received):
            return self._conduct(watch)

    def _conduct(self, watch: Callable[[], None]) -> str:
        manifest, paths = self._run.manifest, self._run.history.paths
        folder = paths.primary_journal.parent
        # Before other processes can read that the run has started.
        first = self._run.history.run_started is None
        starts = self._clock_starts()
        clock = self._run.retry(
            lambda: self._run.file_clock(folder, self._clock.utc), f"a file in {folder}"
        )
        started = self._run.journal.append(
            records.RunStarted(
                run_id=manifest.run_id,
                nodes=manifest.nodes,
                hours=manifest.hours,
                launcher=self._launcher.name,
                host=socket.gethostname(),
                pid=os.getpid(),
                manifest_sha256=paths.manifest_digest(),
                clock=clock,
                clock_starts=starts,
            )
        )
        # The clock of a resumed run never stopped.
        begun = self._run.history.start_utc
        if begun is not None or starts == "now":
            self._close_after(started.utc if begun is None else begun, started)
        else:
            self._run_clock = RunClock(
                self._run.history,
                starts,
                manifest.replicas,
                self._clock,
                grace=self._timing.lost,
                wait_limit=self._launcher.wait_limit or WaitLimit(),
            )
        about = [*self._timekeeping.at_start(), *([] if first else self._lost_before())]
        late = started.mono >= self._deadline
        # The replicas of a resumed run may be active: it is stopped like any other run.
        if late or (self._interrupts.count and first):
            reason = records.TIME_OVER if late else INTERRUPTED
            ended = records.RunEnded(reason=reason)
            self._run.journal.append_all([*about, *self._new_digests(), ended])
            return reason
        if self._run.description is not None:
            about.append(records.SystemDescribed(rank=None, description=self._run.description))
        if about:
            self._run.journal.append_all(about)
        jobs = self._launch(first)
        launched = [records.ReplicaLaunched(replica=r, job=j) for r, j in jobs.items()]
        try:
            self._run.journal.append_all(launched)
            self._elasticity.begin()
            states = self._watch(watch)
        except BaseException as error:
            self._fail(error)
            raise
        reason = self._reason(states)
        self._end(reason)
        return reason

    def _lost_before(self) -> list[records.AnyEvent]:
        """Return records of the journals that were lost while no primary ran."""
        history = self._run.history
        lost = lost_before_resume(history)
        names = [*history.missing_journals, *(each.file for each in lost)]
        self._lost_journals.update(history.paths.root / name for name in names)
        return list[records.AnyEvent](lost)

    def _clock_starts(self) -> records.ClockStarts:
        """Return the start condition of the clock; the recorded one if the run is resumed."""
        if self._run.history.run_starts:
            return self._run.history.clock_starts
        if self._run.manifest.start_when == "all":
            return "all"
        return "now" if self._launcher.wait_limit is None else "first"

    def _close_after(self, start_utc: float, at: records.Record) -> None:
        """Set the run's deadline to its hours after the clock's start; ``at`` is now."""
        closing = start_utc + self._run.manifest.hours * 3600.0
        self._closing_utc = min(closing, self._closing_utc)
        self._deadline = at.mono + (closing - at.utc)

    def _start_clock(self, *, last: bool = False) -> None:
        """Start the run's clock if the records meet its start condition."""
        if self._run_clock is not None and (due := self._run_clock.due(last=last)) is not None:
            self._run_clock = None
            self._close_after(due.start_utc, self._run.journal.append(due))

    def _clocks(self, read: Callable[[Path], Clocks | None]) -> Clocks | None:
        folder = self._run.history.paths.primary_journal.parent
        return self._run.retry(lambda: read(folder), f"a file in {folder}")

    def _end(self, reason: str) -> None:
        history, workers = self._run.history, self._run.manifest.config.search.processes
        until = self._clock.monotonic() + LISTING_SECONDS
        with suppress(JournalError):  # The records read before are covered; verify reports this.
            history.refresh()
            while history.unlisted(workers) and self._clock.monotonic() < until:
                self._clock.sleep(self._timing.look)
                history.refresh()
        self._record_lost_journals()
        self._start_clock(last=True)
        last = [*self._timekeeping.at_end(), *self._new_digests()]
        self._run.journal.append_all(
            [*self._storage_waits(), *last, records.RunEnded(reason=reason)]
        )

    def _fail(self, error: BaseException) -> None:
        """End all replicas and record why this primary cannot continue."""
        foreseen = isinstance(error, AIPerfError)
        reason = str(error) if foreseen else f"unexpected {type(error).__name__}: {error}"
        self._say(f"the primary cannot continue: {reason}; its replicas are stopped")
        try:
            self._leave_nothing_running()
        finally:
            # If it cannot be written, `aiperf status` still finds that the process has exited; and
            # if another primary controls the run, this one must not write it.
            with suppress(StorageError, LostClaimError):
                self._run.journal.append(records.PrimaryFailed(reason=reason))

    def _leave_nothing_running(self) -> None:
        """End the replicas of a primary that cannot continue, because no other process would."""
        self._launcher.ask_to_stop()
        if not self._all_end(self._timing.grace, self._interrupts.at_once):
            self._launcher.kill()
            # A scheduler's launcher executes requests while it is polled.
            self._all_end(self._timing.kill, lambda: False)

    def _all_end(self, seconds: float, over: Callable[[], bool]) -> bool:
        """Wait for all replicas, with a timeout, until ``over``; return whether all ended."""
        end = self._clock.monotonic() + seconds
        while self._clock.monotonic() < end and not over():
            if all(state.phase.ended for state in self._launcher.states().values()):
                return True
            self._clock.sleep(self._timing.poll)
        return False

    def _storage_waits(self) -> list[records.StorageWaited]:
        return [records.StorageWaited(**wait._asdict()) for wait in self._run.retry.take()]

    def _launch(self, first: bool) -> dict[str, str]:
        try:
            return self._launcher.start()
        except AIPerfError as error:
            # If only resuming failed, the run can be resumed again: its replicas may be active,
            # and its clock continues.
            if first:
                self._end(f"not started: {error}")
            raise
        except BaseException as error:
            self._fail(error)  # Some replicas may have been started.
            raise

    def _watch(self, watch: Callable[[], None]) -> Mapping[str, ReplicaState]:
        """Wait until all replicas have ended; return their states."""
        beat = self._clock.monotonic()
        while True:
            reported = self._launcher.states()
            states = self._resolved(reported)
            self._record(states)
            self._look()
            self._check_nodes(states)
            # A list, so that the timeout of each lost replica begins when it is lost.
            over = [self._over(name, state) for name, state in states.items()]
            left = self._deadline - self._clock.monotonic()
            added = self._stop_reason is None and self._elasticity.update(reported, left)
            if all(over) and not added:
                return states
            self._stop_when_due(states)
            if waited := self._storage_waits():
                self._run.journal.append_all(waited)
            if (
                self._clock.monotonic() - beat
                >= self._run.manifest.config.journal.heartbeat_interval_seconds
            ):
                beat = self._clock.monotonic()
                self._run.journal.append_all(
                    [*self._timekeeping.if_due(), records.PrimaryHeartbeat()]
                )
            watch()
            self._clock.sleep(self._timing.poll)

    def _resolved(self, states: Mapping[str, ReplicaState]) -> Mapping[str, ReplicaState]:
        """Return the states, completed by the ends of replicas that only the journals record.

        A scheduler reports the end of a replica seconds late or never. The replica's last record
        reports it if no further attempt can follow: the run's time was over, a stop was requested,
        or the replica is lost. An earlier end may be that of an attempt that was requeued.
        """
        closing = self._clock.utc() >= self._closing_utc
        lost = any(state.phase is JobPhase.LOST for state in states.values())
        if self._launcher.exact or not (closing or lost):
            return states
        late = self._killed_at and self._clock.monotonic() >= self._killed_at + self._timing.kill
        resolved = {}
        for name, state in states.items():
            replica = self._run.history.replicas.get(name)
            ended = replica.ended if replica is not None else None
            last = replica is not None and replica.ended_utc >= self._closing_utc
            open_end = state.phase is JobPhase.LOST or (last and not state.phase.ended)
            if open_end and ended is not None:
                phase = JobPhase.FAILED if ended.startswith("failed") else JobPhase.DONE
                state = replace(state, phase=phase, detail=ended.removeprefix("failed: "))
            elif late and not state.phase.ended:
                what = f"its end is not confirmed {self._timing.kill:.0f} s after it was cancelled"
                state = replace(state, phase=JobPhase.FAILED, detail=what)
            resolved[name] = state
        return resolved

    def _look(self) -> None:
        """Read the journals and handle new records, if the interval has passed."""
        began = self._clock.monotonic()
        if began < self._next_look:
            return
        try:
            self._run.history.refresh()
        except JournalError:
            pass  # Progress shows it. A failed read must not end the run, and is repeated.
        else:
            self._start_clock()
            self._update_digest()
            self._restore_manifest()
            self._record_lost_journals()
        self._record_digests()
        now = self._clock.monotonic()
        self._next_look = now + rest_after(now - began, self._timing.look)

    def _update_digest(self) -> None:
        """Write the digest for the search workers."""
        try:
            self._run.digest.update()
        except JournalError as error:
            self._run.digest.remake()
            remedy = "it was rebuilt from the journals"
            self._record_problem(self._run.digest.path, error, remedy)

    def _record_digests(self) -> None:
        """Record and publish the digests of all journals, if the interval has passed."""
        digests = self._journal_digests
        if digests is not None and digests.is_due(self._clock.monotonic()):
            if found := self._new_digests():
                self._run.journal.append_all(found)
            digests.publish(self._run.retry)
            self._run.show()

    def _new_digests(self) -> list[records.AnyEvent]:
        """Return records of the current digests, or of the first of successive failures.

        A run continues without digests; each interval tries again.
        """
        if self._journal_digests is None:
            return []
        try:
            found = self._journal_digests.take(self._clock.monotonic())
        except JournalError as error:
            known, self._digests_failed = self._digests_failed, True
            path = self._run.history.paths.journal_digests
            return [] if known else [self._run.file_problem(path, error, DIGESTS_RETRIED)]
        self._digests_failed = False
        return [found]

    def _restore_manifest(self) -> None:
        """Rewrite the manifest if it is missing: restarted replicas would find no run."""
        paths = self._run.history.paths
        where = str(paths.manifest)
        if not self._run.retry(paths.manifest.exists, where, "read"):
            self._run.retry(lambda: self._run.manifest.save(paths), where)
            remedy = "it was rewritten unchanged"
            self._record_problem(paths.manifest, f"{where} is missing", remedy)

    def _record_lost_journals(self) -> None:
        """Record each missing journal of a replica once: its records no longer count."""
        for lost in self._run.history.lost_journals:
            if lost.path not in self._lost_journals:
                self._lost_journals.add(lost.path)
                what = f"{lost.path}: {lost.what}"
                self._record_problem(lost.path, what, SCORED_WITHOUT)

    def _record_problem(self, path: Path, problem: object, remedy: str) -> None:
        self._run.journal.append(self._run.file_problem(path, problem, remedy))

    def _record(self, states: Mapping[str, ReplicaState]) -> None:
        """Record what changed."""
        self._record_scheduler_state()
        events: list[records.AnyEvent] = []
        for replica, state in states.items():
            known = self._known.get(replica)
            if state is known or state == known:
                continue
            self._known[replica] = state
            if state.phase is JobPhase.RUNNING:
                self._preflight.expect(replica)
            events.append(records.JobState(replica=replica, **records.JobState.fields_from(state)))
            if state.status is not None:
                events.append(records.ReplicaExited(replica=replica, status=state.status))
        if events:
            # Thousands of states change at once when a run begins.
            self._run.journal.append_all(events)

    def _check_nodes(self, states: Mapping[str, ReplicaState]) -> None:
        """Compare the nodes; stop the run if they do not match the request."""
        if found := self._preflight.look():
            self._run.journal.append_all(found)
        if self._stop_reason is not None:
            return
        unfit = next(
            ((n, s) for n, s in states.items() if s.refused and self._is_decisive(n)), None
        )
        refused = self._preflight.refused if unfit is None else self._unfit_reason(*unfit)
        if refused is not None:
            self.refused = refused
            self._request_stop(refused, states)

    def _is_decisive(self, name: str) -> bool:
        """Return whether a replica's unfit node makes the run differ from the request.

        If the replica has already trained, or joined later, only this replica is affected.
        """
        replica = self._run.history.replicas.get(name)
        return not self._elasticity.joined(name) and (replica is None or not replica.trials)

    def _unfit_reason(self, name: str, state: ReplicaState) -> str:
        self._next_look = 0.0
        self._look()  # It may have just recorded the reason.
        replica = self._run.history.replicas.get(name)
        ended = replica.ended if replica is not None else None
        if ended is not None and ended.startswith("failed: node "):
            return f"{name}: {ended.removeprefix('failed: ')}"
        return f"{name} on {state.node}: {state.detail}"

    def _record_scheduler_state(self) -> None:
        problem = self._launcher.problem
        if problem != self._problem:
            self._problem = problem
            state = records.SchedulerState(reachable=problem is None, detail=problem or "")
            self._run.journal.append(state)

    def _over(self, name: str, state: ReplicaState) -> bool:
        if state.phase is not JobPhase.LOST:
            self._lost_since.pop(name, None)
            return state.phase.ended
        since = self._lost_since.setdefault(name, self._clock.monotonic())
        return self._interrupts.at_once() or self._clock.monotonic() >= since + self._timing.lost

    def _stop_when_due(self, states: Mapping[str, ReplicaState]) -> None:
        now = self._clock.monotonic()
        if self._stop_reason is None:
            if self._interrupts.count:
                self._request_stop(INTERRUPTED, states)
            elif (request := requested_stop(self._run.history.paths.stop_request)) is not None:
                self._request_stop(request, states)
            elif self._run_clock is not None and (why := self._run_clock.overdue()):
                self._request_stop(why, states)
            elif now >= self._deadline + self._timing.late:
                # Replicas observe the same deadline; this is for one that cannot or hangs.
                self._request_stop(records.TIME_OVER, states)
        elif self._interrupts.at_once() or now >= self._stop_requested_at + self._timing.grace:
            if not self._killed_at:
                self._killed_at = now
                self._say(f"killing {_active(states)}")
            self._launcher.kill()

    def _request_stop(self, reason: str, states: Mapping[str, ReplicaState]) -> None:
        self._stop_reason = reason
        self._stop_requested_at = self._clock.monotonic()
        self._closing_utc = min(self._closing_utc, self._clock.utc())
        self._say(f"{reason}: waiting for {_active(states)}")
        self._run.journal.append(records.StopRequested(reason=reason))
        request = self._run.history.paths.stop_request
        # It lets a replica distinguish the run's end from preemption by the scheduler. If it
        # cannot be written, e.g. on a full disk, the launcher's signal must suffice.
        with suppress(OSError):
            if not request.exists():
                write_whole(request, f"{reason}\n")
        self._launcher.ask_to_stop()

    def _reason(self, states: Mapping[str, ReplicaState]) -> str:
        if self._stop_reason is not None:
            return self._stop_reason
        stayed = {n: state for n, state in states.items() if n not in self._elasticity.released}
        failed = [name for name, state in stayed.items() if state.phase is not JobPhase.DONE]
        if not failed:
            return self._reason_of_replicas()
        who = "all replicas" if len(failed) == len(stayed) else ", ".join(failed)
        details = {states[name].detail for name in failed}
        why = details.pop() if len(details) == 1 else ""
        return f"{who} failed: {why}" if why else f"{who} failed"

    def _reason_of_replicas(self) -> str:
        """Return the reasons that the replicas recorded for their ends."""
        self._next_look = 0.0
        self._look()
        with self._run.history.lock:
            stayed = [r for r in self._run.history.replicas.values() if r.released_utc is None]
            reasons = {r.ended for r in stayed if r.ended is not None}
        return "; ".join(sorted(reasons)) or records.TIME_OVER


def _active(states: Mapping[str, ReplicaState]) -> str:
    return few([name for name, state in states.items() if not state.phase.ended])
