from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.nodes import node, rank
from tests.support.run_writer import (
    MACHINE,
    START,
    RunWriter,
    evaluated,
    progress,
    proposed,
    replica_started,
    run_ended,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.errors import JournalError
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import AnyEvent, TimeSpent
from aiperf_hpc.trial import TimePhase, TrialState
from aiperf_hpc.untrusted.bounds import MOST_COUNT

TRAINING = records.TrainingStarted(trial="t1")


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    return RunWriter(tmp_path / "run")


def test_a_run_directory_without_journals_is_an_empty_history(tmp_path: Path) -> None:
    history = RunHistory.read(RunPaths(tmp_path / "absent"))
    assert (history.start_utc, history.end_utc, history.best) == (None, None, None)
    assert (history.trials, history.problems, history.record_count) == ({}, [], 0)


def test_the_clock_runs_from_the_first_start_to_the_last_end(run: RunWriter) -> None:
    run.primary(0, run_started())
    run.primary(10, run_ended())
    history = run.history()
    assert (history.start_utc, history.end_utc) == (START, START + 10)
    run.primary(20, run_started())  # The primary was restarted; the time in between counts.
    history.refresh()
    assert (history.start_utc, history.end_utc) == (START, None)
    run.primary(30, run_ended())
    history.refresh()
    assert (history.start_utc, history.end_utc) == (START, START + 30)


def test_a_clock_that_waits_for_nodes_starts_once(run: RunWriter) -> None:
    run.primary(0, run_started().model_copy(update={"clock_starts": "first"}))
    assert run.history().start_utc is None
    for at in (10, 15):
        times = dict.fromkeys(("submitted_utc", "granted_utc"), START + at)
        run.primary(20, records.ClockStarted(start_utc=START + at, replica="r0", **times))
    assert run.history().start_utc == START + 10


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], TrialState.COMPILING),
        ([TRAINING], TrialState.TRAINING),
        ([trial_ended(state=TrialState.FAILED)], TrialState.FAILED),
        ([TRAINING, trial_ended(state=TrialState.STOPPED)], TrialState.STOPPED),
        ([TRAINING, trial_ended(state=TrialState.COMPLETED)], TrialState.COMPLETED),
    ],
)
def test_a_trial_is_in_the_state_of_its_last_record(
    run: RunWriter, events: list[AnyEvent], state: TrialState
) -> None:
    run.replica(1, trial_started(), *events)
    trial = run.history().trials["t1"]
    assert trial.state is state
    assert trial.state.ended == (trial.ended is not None)


def test_what_ranks_tell_of_their_nodes_is_that_of_the_latest_life(run: RunWriter) -> None:
    first, second = rank("n1", node()), rank("n1", None)
    started = replica_started()
    run.primary(0, run_started(), records.SystemDescribed(rank=None, description=second))
    run.replica(1, started, records.SystemDescribed(rank=0, description=first))
    run.replica(2, records.SystemDescribed(rank=1, description=second))
    history = run.history()
    assert history.primary_described == second
    assert history.replicas["r0"].described == {0: first, 1: second}
    run.replica(3, started, records.SystemDescribed(rank=0, description=second))
    history.refresh()
    assert history.replicas["r0"].described == {0: second}


def test_a_trial_has_what_its_records_say(run: RunWriter) -> None:
    run.replica(1, trial_started())
    run.replica(2, records.TrainingStarted(trial="t1"))
    run.replica(3, progress(train=448), progress(train=52, validation=100))
    run.replica(4, evaluated(correct=40, epoch=1))
    run.replica(5, evaluated(correct=70, epoch=2), evaluated(correct=70, epoch=3))
    run.replica(6, trial_ended(predicted=0.75))
    trial = run.history().trials["t1"]
    assert (trial.replica, trial.reason, trial.has_checkpoint) == ("r0", "epoch limit", True)
    assert trial.started_utc == START + 1
    assert (trial.training_utc, trial.ended_utc) == (START + 2, START + 6)
    assert (trial.train_samples, trial.validation_samples) == (500, 100)
    assert trial.best is not None
    assert (trial.best.epoch, trial.best.quality, trial.best.error) == (2, 0.7, 0.3)
    assert trial.objective_value == 0.75


def test_an_objective_value_is_predicted_or_else_reached_or_else_none(run: RunWriter) -> None:
    steps = (trial_started(), evaluated(correct=40), trial_ended(), trial_ended(predicted=0.5))
    found = []
    for seconds, event in enumerate(steps, 1):
        run.replica(seconds, event)
        found.append(run.history().trials["t1"].objective_value)
    assert found == [None, 0.4, 0.4, 0.5]


@pytest.mark.parametrize(("writer", "trial", "lines"), [("r0", "t2", (2, 3)), ("r1", "t1", (1, 2))])
def test_records_of_a_trial_that_this_replica_did_not_start_are_reported_and_not_applied(
    run: RunWriter, writer: str, trial: str, lines: tuple[int, ...]
) -> None:
    run.replica(1, trial_started("t1"))
    run.replica(2, progress(trial, train=448), evaluated(trial, correct=1), name=writer)
    history = run.history()
    path = run.paths.replica_journal(writer)
    assert [str(p) for p in history.problems] == [
        f"{path}, line {line}: a record of trial {trial}, which no record of this replica started"
        for line in lines
    ]
    assert list(history.executions) == []
    assert history.best is None
    assert history.trials["t1"].train_samples == 0


@pytest.mark.parametrize("second", ["r0", "r1"])
def test_a_trial_that_starts_twice_is_reported_and_not_mixed(run: RunWriter, second: str) -> None:
    """Else the samples of one graph would be credited as those of another."""
    run.replica(1, trial_started("t1", "first"), progress("t1", train=448), name="r0")
    run.replica(2, trial_started("t1", "second"), name=second)
    history = run.history()
    assert history.trials["t1"].started.graph == "first"
    assert history.trials["t1"].train_samples == 448
    (problem,) = history.problems
    assert problem.path == run.paths.replica_journal(second)
    assert "trial t1 starts a second time" in problem.what


def test_the_line_of_an_orphan_is_right_behind_a_damaged_line(run: RunWriter) -> None:
    run.replica(1, trial_started("t1"), progress("t1"), progress("t2"))
    path = run.paths.replica_journal("r0")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    problems = [p for p in run.history().problems if "t2" in p.what]
    assert [p.line for p in problems] == [2]


def test_a_journal_of_the_primary_that_is_gone_is_named(run: RunWriter) -> None:
    run.primary(0, run_started())
    history = run.history()
    assert history.lost == ""
    run.paths.primary_journal.unlink()
    history.refresh()
    assert history.lost == f"the journal {run.paths.primary_journal} is missing; restore it"


def test_torn_journals_are_named(run: RunWriter) -> None:
    run.replica(1, trial_started("t1"))
    path = run.paths.replica_journal("r0")
    path.write_bytes(path.read_bytes() + b'{"v":1,')
    history = run.history()
    assert history.torn == [path]
    assert history.problems == []
    assert history.bytes_read == {path: path.stat().st_size - len(b'{"v":1,')}
    run.replica(2, progress("t1", train=1))
    history.refresh()
    assert history.torn == []
    assert history.trials["t1"].train_samples == 1


def test_proposals_wait_until_a_trial_takes_them_or_they_are_rejected(run: RunWriter) -> None:
    run.search(2, proposed("late"), worker=0)
    run.search(1, proposed("early"), worker=1)
    run.search(1.5, proposed("middle"), worker=1)
    run.search(1, proposed("elsewhere"), proposed("moves"), name="r0")
    run.search(1, proposed("elsewhere"), name="r1")
    run.search(2, proposed("moves"), name="r1")
    history = run.history()
    assert [p.id for p in history.pending("r0")] == ["early", "middle", "late"]
    assert [p.id for p in history.pending("r1")] == ["elsewhere", "moves"]
    assert [history.stock(replica) for replica in ("r0", "r1", "r2")] == [3, 2, 0]
    run.replica(3, trial_started("t1", proposal="middle"))
    run.replica(3, records.ProposalRejected(proposal="early", reason="damaged"))
    history.refresh()
    assert [p.id for p in history.pending("r0")] == ["late"]
    assert history.rejected == {"early": "damaged"}


def test_failures_of_the_search_are_kept_with_their_replica(run: RunWriter) -> None:
    run.search(1, records.SearchFailed(reason="exhausted"), name="r7")
    run.search(2, records.SearchEnded(reason="failed: no memory"), name="r7")
    run.search(2, records.SearchEnded(reason="the run is over"), name="r8")
    assert run.history().search_failures == ["r7: exhausted", "r7: failed: no memory"]


def test_a_replica_is_where_its_start_says_and_does_what_its_heartbeat_says(
    run: RunWriter,
) -> None:
    run.primary(1, records.ReplicaLaunched(replica="r0", job="1"))
    launched = run.history().replicas["r0"]
    assert (launched.machine, launched.alive_utc) == (None, 0.0)
    beat = records.Heartbeat(phase=TimePhase.EVALUATE, cpu_percent=1.0, memory_bytes=1)
    run.replica(2, replica_started())
    run.replica(3, beat)
    replica = run.history().replicas["r0"]
    assert replica.machine == MACHINE
    assert (replica.phase, replica.heartbeat) == (TimePhase.EVALUATE, beat)
    assert (replica.started_utc, replica.last_utc) == (START + 2, START + 3)


def test_graphs_are_those_that_were_trained_not_those_that_were_proposed(run: RunWriter) -> None:
    run.search(1, proposed("p1", "proposed"))
    run.replica(2, trial_started("t1", "trained"), trial_started("t2", "trained"))
    assert run.history().graphs == {"trained"}


def test_a_replica_that_is_started_again_is_there_again(run: RunWriter) -> None:
    launched = records.ReplicaLaunched(replica="r0", job="1")
    run.primary(1, launched)
    run.replica(2, replica_started(), records.ReplicaEnded(reason="preempted"))
    run.primary(3, records.ReplicaExited(replica="r0", status=1))
    history = run.history()
    assert (history.replicas["r0"].exit_status, history.replicas["r0"].ended) == (1, "preempted")
    run.primary(4, launched)
    run.replica(5, replica_started())
    history.refresh()
    replica = history.replicas["r0"]
    assert (replica.exit_status, replica.ended) == (None, None)
    assert [replica.started_by(START + seconds) for seconds in (1.9, 2.0)] == [
        None, replica_started()
    ]  # fmt: skip


JOURNALS: dict[str, list[AnyEvent]] = {
    "primary": [
        run_started(),
        records.ReplicaLaunched(replica="r0", job="1"),
        records.ReplicaLaunched(replica="r1", job="2"),
        records.PrimaryHeartbeat(),
        records.StopRequested(reason="time"),
        records.ReplicaExited(replica="r1", status=0),
        run_ended(),
    ],
    "r0": [
        replica_started("r0"),
        trial_started("r0-1"),
        records.TrainingStarted(trial="r0-1"),
        progress("r0-1", train=448),
        progress("nobody's", train=448),
        evaluated("r0-1", correct=50),
        trial_ended("r0-1"),
        trial_started("r0-2", proposal="p1"),
        progress("r0-2", train=64),
        records.CheckpointDeleted(trial="r0-1"),
        records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1),
    ],
    "r1": [
        replica_started("r1"),
        trial_started("r1-1"),
        progress("r1-1", train=448),
        evaluated("r1-1", correct=50),
        records.ReplicaEnded(reason="stop"),
    ],
    "search-0": [proposed("p1"), proposed("p3"), records.SearchFailed(reason="x")],
    "search-1": [proposed("p2"), proposed("p4")],
}


def snapshot(history: RunHistory) -> dict[str, object]:
    return {
        "run": (history.run_started, history.run_ended, history.stop_requests),
        "times": (history.primary_utc, history.last_utc),
        "trials": history.trials,
        "replicas": history.replicas,
        "proposals": history.proposals,
        "pending": [history.pending(name) for name in ("r0", "r1")],
        "evaluations": history.evaluations,
        "best": history.best,
        "executions": sorted(history.executions, key=lambda e: (e.utc, e.trial)),
        "problems": sorted(str(problem) for problem in history.problems),
        "failures": history.search_failures,
        "count": history.record_count,
    }


@contextmanager
def temporary_run(parent: Path) -> Iterator[RunWriter]:
    run = RunWriter(parent / "again")
    yield run
    for path in run.paths.journals():
        path.unlink()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_journals_that_arrive_in_any_order_tell_one_history(
    data: st.DataObject, tmp_path: Path
) -> None:
    with temporary_run(tmp_path) as run:
        files = {name: run.paths.replica_journal(name) for name in ("r0", "r1")}
        files |= {f"search-{worker}": run.paths.search_journal("r0", worker) for worker in (0, 1)}
        files["primary"] = run.paths.primary_journal
        turns = [name for name, events in JOURNALS.items() for _ in events]
        history = RunHistory(run.paths)
        done = dict.fromkeys(JOURNALS, 0)
        for name in data.draw(st.permutations(turns)):
            # Its time depends on its place in its own journal alone.
            run.append(files[name], done[name], JOURNALS[name][done[name]])
            done[name] += 1
            if data.draw(st.booleans()):
                history.refresh()
        history.refresh()
        assert snapshot(history) == snapshot(run.history())
        assert len(history.problems) == 1
        assert history.record_count == len(turns)
        assert history.best is not None
        assert history.best.utc == START + 3  # r1's; r0 reached as much later.


def test_the_best_until_a_time_is_the_best_of_what_was_known_then(run: RunWriter) -> None:
    run.replica(1, trial_started("a"), trial_started("b"))
    run.replica(5, evaluated("a", correct=50))
    run.replica(6, evaluated("b", correct=70))
    run.replica(7, evaluated("a", correct=90, epoch=2))
    history = run.history()
    found = {after: history.best_until(START + after) for after in (4, 5, 6.5, 7, 100)}
    assert {after: e and e.sums["correct"] for after, e in found.items()} == {
        4: None, 5: 50, 6.5: 70, 7: 90, 100: 90
    }  # fmt: skip


def test_of_equals_that_are_read_in_the_wrong_order_the_earliest_is_the_best(
    run: RunWriter,
) -> None:
    run.replica(1, trial_started("a"), trial_started("b"))
    run.replica(9, evaluated("a", correct=90))
    history = run.history()
    run.replica(8, evaluated("a", correct=90, epoch=2))  # Its clock was set back.
    history.refresh()
    assert history.best is not None
    assert history.best == history.best_until(START + 8.5)
    assert (history.best.utc, history.best.epoch) == (START + 8, 2)


def test_trials_that_ended_are_listed_once_in_the_order_of_their_ends(run: RunWriter) -> None:
    run.replica(1, trial_started("a"), trial_started("b"), trial_started("c"))
    run.replica(2, trial_ended("b"))
    history = run.history()
    assert [trial.id for trial in history.ended] == ["b"]
    run.replica(3, trial_ended("a"), trial_ended("b"))
    history.refresh()
    assert [trial.id for trial in history.ended] == ["b", "a"]


def test_the_most_samples_are_credited_as_recorded_and_more_are_no_record(run: RunWriter) -> None:
    most = progress("t1", train=MOST_COUNT)
    more = most.model_copy(update={"train_samples": MOST_COUNT + 1})
    run.replica(1, trial_started("t1"), most, most, more)
    history = run.history()
    assert sum(e.train_samples for e in history.executions) == 2 * MOST_COUNT
    (problem,) = history.problems
    assert "train_samples: should be less than or equal to" in problem.what


def test_reading_leaves_the_garbage_collector_as_it_was(run: RunWriter) -> None:
    run.replica(1, trial_started("t1"))
    assert gc.isenabled()
    history = run.history()
    assert gc.isenabled()
    run.paths.replica_journal("r1").mkdir(parents=True)
    with pytest.raises(JournalError):
        history.refresh()
    assert gc.isenabled()
    gc.disable()
    try:
        run.paths.replica_journal("r1").rmdir()
        history.refresh()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_folder_of_replicas_that_is_none_is_one_clear_message(run: RunWriter) -> None:
    run.paths.replicas.parent.mkdir(parents=True)
    run.paths.replicas.write_text("not a folder")
    with pytest.raises(JournalError, match=r"cannot look for the journals of .*: Not a dir"):
        run.history()


def test_another_state_takes_the_place_of_one_that_a_later_life_fences_off(run: RunWriter) -> None:
    """Whole: neither a reader that still holds the old one nor a failed reading sees half of it."""
    run.replica(1, replica_started(), trial_started("t1"))
    run.replica(30, progress("t1", train=1))
    history = run.history()
    held, lock = history.trials, history.lock
    run.life(Incarnation(0, 1), 20, replica_started())
    run.paths.replica_journal("r1").mkdir(parents=True)
    with pytest.raises(JournalError):
        history.refresh()
    assert history.trials is held
    assert history.rebuilt == 0
    run.paths.replica_journal("r1").rmdir()
    history.refresh()
    assert held["t1"].train_samples == 1
    assert history.trials["t1"].train_samples == 0
    assert (history.rebuilt, history.fenced) == (1, 1)
    assert history.lock is lock


def test_what_is_fenced_off_when_it_is_read_needs_no_other_state(run: RunWriter) -> None:
    run.replica(1, replica_started(), trial_started("t1"))
    run.life(Incarnation(0, 1), 20, replica_started())
    history = run.history()
    run.replica(30, progress("t1", train=1))
    history.refresh()
    run.life(Incarnation(0, 2), 25, replica_started())
    history.refresh()
    assert (history.rebuilt, history.fenced, history.trials["t1"].train_samples) == (0, 1, 0)


def test_the_tenth_life_follows_the_ninth(run: RunWriter) -> None:
    for restart in range(11):
        life = run.paths.replica_journal("r0", Incarnation(0, restart))
        run.append(life, restart, replica_started())
        run.append(life, restart + 0.5, records.ReplicaEnded(reason=f"the end of {restart}"))
    run.life(Incarnation(0, 11), 11, replica_started())
    replica = run.history().replicas["r0"]
    assert list(replica.starts) == [Incarnation(0, restart) for restart in range(12)]
    assert replica.ended is None
    assert replica.last_utc == START + 11


def test_a_trial_that_does_not_count_has_a_graph_all_the_same(run: RunWriter) -> None:
    """Another replica grew from it while its own was not yet known to be replaced."""
    run.replica(1, replica_started())
    run.life(Incarnation(0, 1), 20, replica_started())
    run.replica(21, trial_started("r0-t1", "a graph"))
    history = run.history()
    assert "r0-t1" not in history.trials
    descent = history.descent("r0-t1")
    assert descent is not None
    assert descent.graph == "a graph"
    assert history.descent("r0-t2") is None


def test_a_life_has_one_name() -> None:
    assert Incarnation.parse("0.10") == Incarnation(0, 10)
    for name in ("0.00", "00.1", "0.-1", "0", "0.1.2", "a.b"):
        with pytest.raises(ValueError):
            Incarnation.parse(name)


def test_weights_that_another_replica_found_lost_are_no_checkpoint(run: RunWriter) -> None:
    """Whichever of the two is read first."""
    history = RunHistory(run.paths)
    kept = []
    for replica in ("r0", "r2"):
        run.search(2, records.SearchFailed(reason="damaged", lost_parent="t1"), name=replica)
        history.refresh()
        if replica == "r0":
            run.replica(1, trial_started("t1"), trial_ended("t1"), name="r1")
            run.replica(1, trial_started("t2"), trial_ended("t2"), name="r1")
            history.refresh()
        kept.append([t.id for t in history.trials.values() if t.has_checkpoint])
    assert kept == [["t2"], ["t2"]]
    run.search(3, records.SearchFailed(reason="damaged", lost_parent="t2"), name="r2")
    history.refresh()
    assert [t.id for t in history.trials.values() if t.has_checkpoint] == []
    assert history.search_failures == ["r0: damaged", "r2: damaged", "r2: damaged"]


def test_a_trial_knows_where_its_time_went(run: RunWriter) -> None:
    """Its replica's time is that of all its trials, and of what is no trial's."""
    run.primary(0.0, run_started())
    run.replica(1.0, replica_started(), trial_started("t1"))
    run.replica(
        5.0,
        TimeSpent(trial="t1", seconds={TimePhase.TRAIN: 2.0, TimePhase.DATA: 0.5}),
        TimeSpent(trial="t1", seconds={TimePhase.TRAIN: 1.0}),
        TimeSpent(trial=None, seconds={TimePhase.TRAIN: 8.0}),
        TimeSpent(trial="nobody's", seconds={TimePhase.TRAIN: 16.0}),
    )
    history = run.history()
    assert history.trials["t1"].seconds == {TimePhase.TRAIN: 3.0, TimePhase.DATA: 0.5}
    assert history.replicas["r0"].seconds == {TimePhase.TRAIN: 27.0, TimePhase.DATA: 0.5}


@pytest.mark.parametrize("attempt", [Incarnation(), Incarnation(0, 1), Incarnation(1)])
@pytest.mark.parametrize("name", ["journal.jsonl", "search-1.jsonl"])
def test_a_journal_is_unlisted_until_it_has_been_read(
    run: RunWriter, attempt: Incarnation, name: str
) -> None:
    run.replica(0, replica_started("r0"))
    history = run.history()
    path = run.paths.incarnation("r0", attempt) / name
    path.parent.mkdir(exist_ok=True)
    if path not in history.bytes_read:
        path.write_text("")
        assert history.unlisted(workers=2) == [path]
        assert history.unlisted(workers=1) == [path][: int(name == "journal.jsonl")]
    history.refresh()
    assert history.unlisted(workers=2) == []
