"""The controller with a launcher that reports given states."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.host_clocks import clocks
from tests.support.nodes import node, rank
from tests.support.present import present
from tests.support.rules import check_rule
from tests.support.run_factory import configuration
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import replica_started, run_started, trial_started
from tests.support.scripted_launcher import DONE, PENDING, RUNNING, ScriptedLauncher

from aiperf_hpc.clock import SYSTEM
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.control import controller
from aiperf_hpc.primary.control.context import PrimaryContext, Timing
from aiperf_hpc.primary.control.controller import DIGESTS_RETRIED, Controller
from aiperf_hpc.primary.control.journal_digests import JournalDigests
from aiperf_hpc.primary.launchers.base import ReplicaState, WaitLimit
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks, FileClock, read_clock
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.journal_digest import published
from aiperf_hpc.run.liveness import LISTING_SECONDS
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.run.search_digest import Digest, DigestWriter
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import JobPhase

LOST = ReplicaState(JobPhase.LOST, "n1", "NODE_FAIL")
QUICK = Timing(poll=0.01, look=0.01, late=0.1, grace=0.2, kill=0.2, lost=0.3)
HOUR = 1.0
MOMENT = 1.0 / 36_000.0
"""Hours: a tenth of a second."""


def run(
    folder: Path,
    launcher: ScriptedLauncher,
    *,
    hours: float = HOUR,
    watch: Callable[[], None] = lambda: None,
    file_clock: FileClock = read_clock,
    history: RunHistory | None = None,
    description: RankDescription | None = None,
    digest_seconds: float | None = None,
    read_clocks: Callable[[Path], Clocks | None] = lambda folder: None,
) -> tuple[str, list[AnyEvent]]:
    """Conduct a run; return its reason and what the primary recorded."""
    paths = RunPaths(folder)
    manifest = run_manifest(configuration(), nodes=len(launcher.left[0]), hours=hours)
    manifest.save(paths)
    history = history or RunHistory(paths)
    history.refresh()
    with (
        JournalWriter(paths.primary_journal) as journal,
        JournalWriter(paths.digest) as digest,
        JournalWriter(paths.journal_digests) as own,
    ):
        writer = DigestWriter(history, digest)
        digests = JournalDigests(history, journal, own, seconds=digest_seconds or math.inf)
        context = PrimaryContext(
            manifest=manifest, journal=journal, history=history, digest=writer,
            journal_digests=digests if digest_seconds is not None else None,
            file_clock=file_clock, description=description, clocks=read_clocks,
        )  # fmt: skip
        reason = Controller(context, launcher, timing=QUICK).run(watch)
    return reason, recorded(paths)


def recorded(paths: RunPaths) -> list[AnyEvent]:
    return [record.event for record in JournalReader(paths.primary_journal).read()]


def phases(events: list[AnyEvent], replica: str = "r0") -> list[JobPhase]:
    states = (e for e in events if isinstance(e, records.JobState) and e.replica == replica)
    return [state.phase for state in states]


def replica_says(folder: Path, reason: str, replica: str = "r0", *, later: float = 0.0) -> None:
    """Write a replica's journal: it came, and it ended, seconds later than now."""
    clock = Clock(SYSTEM.utc() + later)
    with JournalWriter(RunPaths(folder).replica_journal(replica), clock=clock) as journal:
        journal.append_all([replica_started(replica), records.ReplicaEnded(reason=reason)])


def test_changes_are_recorded_once(tmp_path: Path) -> None:
    waiting = ReplicaState(JobPhase.PENDING, None, "Resources")
    again = ReplicaState(JobPhase.REQUEUED, None, "BeginTime")
    told = ScriptedLauncher(
        *({"r0": s} for s in (waiting, waiting, RUNNING, RUNNING, again, RUNNING, DONE))
    )
    reason, events = run(tmp_path, told)
    assert phases(events) == ["pending", "running", "requeued", "running", "done"]
    assert reason == "the run's time is over"
    assert [e.type for e in events[:2]] == ["run_started", "replica_launched"]


def test_the_primarys_node_and_clocks_are_recorded_before_the_launch(tmp_path: Path) -> None:
    """The clocks are read again before the end."""
    own, told = rank("login", node()), [clocks(1e9 + hour, hour) for hour in range(2)]
    left = iter(told)
    _, events = run(
        tmp_path,
        ScriptedLauncher({"r0": DONE}),
        description=own,
        read_clocks=lambda folder: next(left).clocks,
    )
    assert events[1:3] == [told[0], records.SystemDescribed(rank=None, description=own)]
    assert (events[0].type, events[3].type) == ("run_started", "replica_launched")
    assert events[-2] == told[1]
    assert events[-1].type == "run_ended"


def test_the_reason_is_that_of_the_replicas(tmp_path: Path) -> None:
    replica_says(tmp_path, "SIGTERM")
    assert run(tmp_path, ScriptedLauncher({"r0": RUNNING}, {"r0": DONE}))[0] == "SIGTERM"


def test_a_failure_is_named_with_the_launchers_words(tmp_path: Path) -> None:
    failed = ReplicaState(JobPhase.FAILED, "n2", "CANCELLED")
    assert (
        run(tmp_path / "a", ScriptedLauncher({"r0": DONE, "r1": failed}))[0]
        == "r1 failed: CANCELLED"
    )
    both = run(tmp_path / "b", ScriptedLauncher({"r0": failed, "r1": failed}))[0]
    assert both == "all replicas failed: CANCELLED"


def test_a_lost_replica_that_ended_in_order_is_done(tmp_path: Path) -> None:
    replica_says(tmp_path, "the run's time is over")
    reason, events = run(tmp_path, ScriptedLauncher({"r0": RUNNING}, {"r0": LOST}))
    assert phases(events) == ["running", "done"]
    assert reason == "the run's time is over"


def test_a_lost_replica_is_waited_for(tmp_path: Path) -> None:
    """It may be queued again, or its last records may only become visible."""
    lost = [{"r0": LOST}] * 5
    _, events = run(
        tmp_path / "a", ScriptedLauncher({"r0": RUNNING}, *lost, {"r0": RUNNING}, {"r0": DONE})
    )
    assert phases(events) == ["running", "lost", "running", "done"]
    reason, events = run(tmp_path / "b", ScriptedLauncher({"r0": RUNNING}, {"r0": LOST}))
    assert phases(events) == ["running", "lost"]
    assert reason == "all replicas failed: NODE_FAIL"


def test_after_the_runs_time_the_journals_say_who_has_ended(tmp_path: Path) -> None:
    replica_says(tmp_path, "the run's time is over", later=10.0)
    replica_says(tmp_path, "failed: no memory", "r1", later=10.0)
    told = ScriptedLauncher({"r0": RUNNING, "r1": RUNNING})
    reason, events = run(tmp_path, told, hours=MOMENT)
    assert phases(events) == ["running", "done"]
    assert phases(events, "r1") == ["running", "failed"]
    assert reason == "r1 failed: no memory"


def test_an_end_is_not_taken_for_final_while_another_life_may_follow(tmp_path: Path) -> None:
    replica_says(tmp_path, "SIGTERM")  # Preempted, say, and queued again.
    again = {"r0": ReplicaState(JobPhase.REQUEUED)}
    told = ScriptedLauncher({"r0": RUNNING}, again, {"r0": RUNNING}, {"r0": DONE})
    assert phases(run(tmp_path, told)[1]) == ["running", "requeued", "running", "done"]


def test_after_the_runs_time_the_end_of_an_earlier_life_says_nothing(tmp_path: Path) -> None:
    """The scheduler runs another one, which has not written yet."""
    replica_says(tmp_path, "SIGTERM", later=-10.0)
    told = ScriptedLauncher({"r0": RUNNING})
    told.when_stopped = {"r0": DONE}
    reason, events = run(tmp_path, told, hours=MOMENT)
    assert told.calls == ["stop"]  # It was waited for until it was told to stop.
    assert phases(events) == ["running", "done"]
    assert reason == "the run's time is over"


def test_silence_of_the_scheduler_is_one_record(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING, "r1": RUNNING})
    answers: list[str | None] = [None, "no answer", "no answer", None]

    def watch() -> None:
        if answers:
            told.problem = answers.pop(0)
        else:
            told.left = [{"r0": DONE, "r1": DONE}]

    _, events = run(tmp_path, told, watch=watch)
    states = [e for e in events if isinstance(e, records.SchedulerState)]
    assert [(s.reachable, s.detail) for s in states] == [(False, "no answer"), (True, "")]
    assert phases(events) == ["running", "done"]


def test_the_clock_of_a_run_stands_while_it_is_in_the_queue(tmp_path: Path) -> None:
    """Ten times its hours pass, and it is not over; the time in the queue is recorded."""
    submitted = SYSTEM.utc()
    waiting = ReplicaState(JobPhase.PENDING, None, "Resources", submitted_utc=submitted)
    told = ScriptedLauncher({"r0": waiting})
    told.wait_limit = WaitLimit()
    begun = SYSTEM.monotonic()

    def watch() -> None:
        if SYSTEM.monotonic() - begun < 10 * 3600.0 * MOMENT:
            return
        if told.left == [{"r0": waiting}]:
            replica_says(tmp_path, "the run's time is over")
            granted = submitted + 10.0
            runs = replace(RUNNING, submitted_utc=submitted, started_utc=granted)
            told.left, told.when_stopped = [{"r0": runs}], {"r0": DONE}

    reason, events = run(tmp_path, told, hours=MOMENT, watch=watch)
    assert reason == "the run's time is over"
    (started,) = (e for e in events if isinstance(e, records.RunStarted))
    (clock,) = (e for e in events if isinstance(e, records.ClockStarted))
    assert started.clock_starts == "first"
    assert clock.queue_seconds == 10.0  # As the scheduler says, whatever our clock does.
    assert events.index(clock) > phases(events).index(JobPhase.RUNNING)
    history = RunHistory.read(RunPaths(tmp_path))
    assert history.end_utc is not None
    assert history.start_utc == clock.start_utc
    assert history.run_starts[0][0] + 3600.0 * MOMENT < clock.start_utc < history.end_utc


def test_a_run_that_is_resumed_in_the_queue_has_one_clock(tmp_path: Path) -> None:
    """Its first primary died before it knew that a replica was at work; another goes on."""
    now = SYSTEM.utc()
    begun = run_started().model_copy(update={"clock_starts": "first"})
    with JournalWriter(RunPaths(tmp_path).primary_journal, clock=Clock(now - 600.0)) as journal:
        journal.append(begun)
    replica_says(tmp_path, "SIGTERM", later=-60.0)
    told = ScriptedLauncher({"r0": RUNNING}, {"r0": RUNNING}, {"r0": DONE})
    told.wait_limit = WaitLimit()
    _, events = run(tmp_path, told)
    assert {e.clock_starts for e in events if isinstance(e, records.RunStarted)} == {"first"}
    (clock,) = (e for e in events if isinstance(e, records.ClockStarted))
    assert clock.start_utc == pytest.approx(now - 60.0, abs=1.0)


def test_a_run_that_ends_in_the_queue_took_no_time(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": PENDING})
    told.wait_limit, told.when_stopped = WaitLimit(), {"r0": DONE}
    write_whole(RunPaths(tmp_path).stop_request, "asked by a test\n")
    reason, events = run(tmp_path, told)
    assert reason == "asked by a test"
    assert not [e for e in events if isinstance(e, records.ClockStarted)]
    view = RunView.read(RunPaths(tmp_path))
    status = view.status()
    assert (status.state, status.elapsed_seconds, status.score.ops) == (RunState.ENDED, 0.0, 0.0)


def test_a_stop_request_is_passed_on(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING})
    told.when_stopped = {"r0": DONE}
    write_whole(RunPaths(tmp_path).stop_request, "asked by a test\n")
    reason, events = run(tmp_path, told)
    assert reason == "asked by a test"
    assert told.calls == ["stop"]
    assert any(isinstance(e, records.StopRequested) for e in events)


def test_a_silent_scheduler_does_not_hold_the_primary(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING})
    reason, events = run(tmp_path, told, hours=MOMENT)
    assert reason == "the run's time is over"
    assert told.calls[0] == "stop"
    assert told.calls[-1] == "kill"
    assert phases(events) == ["running", "failed"]


def test_a_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING})

    def watch() -> None:
        if len(told.calls) < 2:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            told.left = [{"r0": ReplicaState(JobPhase.FAILED, "n1", "CANCELLED")}]

    assert run(tmp_path, told, watch=watch)[0] == "interrupted by the user"
    assert told.calls[:2] == ["stop", "kill"]


def test_a_run_that_is_interrupted_before_it_is_launched_is_not(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING})

    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    now = clocks(SYSTEM.utc(), SYSTEM.monotonic()).clocks
    reason, events = run(
        tmp_path, told, file_clock=interrupted, digest_seconds=1.0, read_clocks=lambda folder: now
    )
    assert reason == "interrupted by the user"
    found = ["run_started", "clocks_read", "digests_recorded", "run_ended"]
    assert [event.type for event in events] == found
    assert check_rule("timekeeping", RunPaths(tmp_path)).failures == ()


def test_nohup_keeps_a_run_from_ending_with_its_terminal(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING})

    def watch() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        told.left = [{"r0": DONE}]

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run(tmp_path, told, watch=watch)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told.calls == []


def fault() -> None:
    raise ZeroDivisionError("a fault")


def test_an_unexpected_failure_leaves_a_record_and_no_replica(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING})
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, told, watch=fault)
    assert told.calls == ["stop", "kill"]
    assert recorded(RunPaths(tmp_path))[-1] == records.PrimaryFailed(
        reason="unexpected ZeroDivisionError: a fault"
    )
    view = RunView.read(RunPaths(tmp_path))
    status = view.status()
    assert status.state is RunState.GONE
    assert status.reason == (
        "the primary failed: unexpected ZeroDivisionError: a fault; "
        f"`aiperf resume {tmp_path}` resumes the run"
    )


def test_a_failed_primary_waits_for_the_scheduler_to_kill(tmp_path: Path) -> None:
    """It carries out what it is asked to when it is looked at, one request at a time."""

    class Slow(ScriptedLauncher):
        looks = 0

        def states(self) -> dict[str, ReplicaState]:
            if "kill" in self.calls:
                self.looks += 1
                self.left = [{"r0": DONE}] if self.looks > 3 else self.left
            return super().states()

    slow = Slow({"r0": RUNNING})
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, slow, watch=fault)
    assert slow.looks == 4


def test_a_launcher_that_fails_unforeseen_leaves_no_replica(tmp_path: Path) -> None:
    class Half(ScriptedLauncher):
        def start(self) -> dict[str, str]:
            raise OSError(28, "No space left on device")

    half = Half({"r0": RUNNING})
    with pytest.raises(OSError, match="No space"):
        run(tmp_path, half)
    assert half.calls == ["stop", "kill"]
    assert recorded(RunPaths(tmp_path))[-1].type == "primary_failed"


class Refusing(ScriptedLauncher):
    """A scheduler that refuses the job, while the service reads the controller's records."""

    def __init__(self, history: RunHistory) -> None:
        super().__init__({"r0": RUNNING})
        self.history = history

    def start(self) -> dict[str, str]:
        self.history.refresh()
        raise UsageError("SLURM refused the job: no")


def refused(folder: Path) -> list[AnyEvent]:
    history = RunHistory(RunPaths(folder))
    with pytest.raises(UsageError, match="SLURM refused the job: no"):
        run(folder, Refusing(history), history=history)
    return recorded(history.paths)


def test_a_run_that_did_not_start_says_so_in_its_records(tmp_path: Path) -> None:
    events = refused(tmp_path)
    assert [e.type for e in events] == ["run_started", "run_ended"]
    assert events[-1] == records.RunEnded(reason="not started: SLURM refused the job: no")


def test_a_run_that_could_not_be_resumed_has_not_ended(tmp_path: Path) -> None:
    """SLURM did not answer, say: the next `aiperf resume` resumes it."""
    with JournalWriter(RunPaths(tmp_path).primary_journal) as journal:
        journal.append(run_started())
    assert [e.type for e in refused(tmp_path)] == ["run_started", "run_started"]


UNFIT = ReplicaState(JobPhase.FAILED, "n2", "its node cannot access it", refused=True)


def test_a_node_that_is_not_fit_stops_the_run(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING, "r1": RUNNING}, {"r0": RUNNING, "r1": UNFIT})
    told.when_stopped = {"r0": DONE, "r1": UNFIT}
    assert run(tmp_path, told)[0] == "r1 on n2: its node cannot access it"
    assert told.calls == ["stop"]


def test_a_node_that_is_not_fit_says_so_in_its_own_words_where_it_can(tmp_path: Path) -> None:
    with JournalWriter(RunPaths(tmp_path).replica_journal("r0")) as journal:
        journal.append(records.ReplicaEnded(reason="failed: node n2: numpy is 1.0 here"))
    assert run(tmp_path, ScriptedLauncher({"r0": UNFIT}))[0] == "r0: node n2: numpy is 1.0 here"


def test_nodes_are_checked_and_that_is_recorded(tmp_path: Path) -> None:
    told = ScriptedLauncher({"r0": RUNNING})

    def watch() -> None:
        replica_says(tmp_path, "the run's time is over")
        if any(isinstance(e, records.NodeChecked) for e in recorded(RunPaths(tmp_path))):
            told.left = [{"r0": DONE}]

    _, events = run(tmp_path, told, watch=watch)
    (checked,) = [e for e in events if isinstance(e, records.NodeChecked)]
    assert (checked.replica, checked.host) == ("r0", "n")
    (started,) = [e for e in events if isinstance(e, records.RunStarted)]
    assert abs(present(started.clock).ahead_seconds) < 1.0


def test_files_that_vanish_are_written_again_and_said(tmp_path: Path) -> None:
    """The digest, and ``run.yaml``, without which no replica could start again."""
    paths, before = RunPaths(tmp_path), b""

    def lose() -> None:
        nonlocal before
        if not before:
            before = paths.manifest.read_bytes()
            paths.manifest.unlink()
            paths.digest.unlink()
            with JournalWriter(paths.replica_journal("r0")) as journal:
                journal.append(trial_started())

    def told() -> list[records.FileProblem]:
        return [e for e in recorded(paths) if isinstance(e, records.FileProblem)]

    class Patient(ScriptedLauncher):
        """Its replica runs until both were seen."""

        def states(self) -> dict[str, ReplicaState]:
            return {"r0": DONE if len(told()) == 2 else RUNNING}

    run(tmp_path, Patient({"r0": RUNNING}), watch=lose)
    assert {(p.file, p.remedy) for p in told()} == {
        ("primary/digest.jsonl", "it was rebuilt from the journals"),
        ("run.yaml", "it was rewritten unchanged"),
    }
    assert paths.manifest.read_bytes() == before
    found = Digest(paths)
    found.refresh()
    assert set(found.trials) == {"t1"}
    view = RunView.read(paths)
    assert len([p for p in view.status().problems if p.startswith("primary: ")]) == 2


def test_heads_are_taken_at_the_start_now_and_then_and_with_the_end(tmp_path: Path) -> None:
    replica_says(tmp_path, "SIGTERM")
    told = ScriptedLauncher(*[{"r0": RUNNING}] * 5, {"r0": DONE})
    _, events = run(tmp_path, told, digest_seconds=0.01)
    assert [e.type for e in events[-2:]] == ["digests_recorded", "run_ended"]
    taken = [e for e in events if isinstance(e, records.DigestsRecorded)]
    paths = RunPaths(tmp_path)
    read = [record.event for record in JournalReader(paths.journal_digests).read()]
    assert len(read) == len(taken) > 2
    first = read[0]
    assert isinstance(first, records.JournalDigestsRecord)
    assert (first.new_primary, first.new_journals) == (True, ("replicas/r0/0.0/journal.jsonl",))
    assert first.appended_bytes == (paths.replica_journal("r0").stat().st_size,)
    content = paths.journal_digests.read_bytes()
    for each in taken:
        assert hashlib.sha256(content[: each.digest.bytes]).hexdigest() == each.digest.sha256
    head = present(published(paths))
    whole = paths.primary_journal.read_bytes()
    assert hashlib.sha256(whole[: head.bytes]).hexdigest() == head.sha256


def test_a_run_goes_on_without_heads_that_cannot_be_written(tmp_path: Path) -> None:
    told, paths = ScriptedLauncher(*[{"r0": RUNNING}] * 5, {"r0": DONE}), RunPaths(tmp_path)
    reason, events = run(
        tmp_path,
        told,
        digest_seconds=0.01,
        watch=lambda: paths.journal_digests.unlink(missing_ok=True),
    )
    assert reason == "the run's time is over"
    said = [e for e in events if isinstance(e, records.FileProblem)]
    assert [(e.file, e.remedy) for e in said] == [
        ("primary/journal_digests.jsonl", DIGESTS_RETRIED)
    ]
    assert isinstance(events[-1], records.RunEnded)


@pytest.mark.parametrize(
    ("after", "seconds", "ended"), [(30, LISTING_SECONDS, "SIGTERM"), (math.inf, 0.1, None)]
)
def test_a_run_ends_when_journals_that_exist_are_listed_or_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: float, seconds: float, ended: str | None
) -> None:
    replica_says(tmp_path, "SIGTERM")
    listed, calls = RunPaths.journal_files, itertools.count()

    def late(paths: RunPaths, replica: str | None = None) -> Iterator[str]:
        call = next(calls)
        assert call < 1000, "it waits for ever"
        return (file for file in listed(paths, replica) if call > after or "/replicas/" not in file)

    monkeypatch.setattr(RunPaths, "journal_files", late)
    monkeypatch.setattr(controller, "LISTING_SECONDS", seconds)
    history = RunHistory(RunPaths(tmp_path))
    run(tmp_path, ScriptedLauncher({"r0": RUNNING}, {"r0": DONE}), history=history)
    assert history.replicas["r0"].ended == ended


def test_a_lost_journal_is_not_recorded_again_by_later_primaries(tmp_path: Path) -> None:
    replica_says(tmp_path, "SIGTERM")
    folder = RunPaths(tmp_path).replica("r0")
    for _ in range(3):
        told = ScriptedLauncher(*[{"r0": RUNNING}] * 3, {"r0": DONE})
        _, events = run(
            tmp_path,
            told,
            watch=lambda: shutil.rmtree(folder, ignore_errors=True),
            digest_seconds=0.01,
        )
    (lost,) = (each for each in events if isinstance(each, records.FileProblem))
    assert lost.file == "replicas/r0/0.0/journal.jsonl"
