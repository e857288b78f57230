"""When a replica runs twice at once, only its latest life counts, whenever one looks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.run_writer import (
    FIRST,
    SECOND,
    THIRD,
    RunWriter,
    evaluated,
    progress,
    proposed,
    replica_started,
    run_started,
    trial_started,
)

from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.trial import JobPhase, TrialState


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    writer = RunWriter(tmp_path / "run")
    writer.primary(0, run_started())
    return writer


def first_life(run: RunWriter) -> None:
    run.life(FIRST, 1, replica_started())
    run.life(FIRST, 2, trial_started("r0-t1"))
    run.life(FIRST, 10, progress("r0-t1", train=100))


def second_life(run: RunWriter) -> None:
    run.life(SECOND, 20, replica_started())
    run.life(SECOND, 21, trial_started("r0-0.1-t1"))
    run.life(SECOND, 30, progress("r0-0.1-t1", train=7))


def zombie(run: RunWriter) -> None:
    """The first life runs on: its link was cut, and it never knew."""
    run.life(FIRST, 19, progress("r0-t1", train=10))
    run.life(FIRST, 20, progress("r0-t1", train=1000))
    run.life(FIRST, 40, progress("r0-t1", validation=500), evaluated("r0-t1", correct=100))


def assert_only_one_life_counts_at_a_time(history: RunHistory) -> None:
    credited = {trial.id: trial.train_samples for trial in history.trials.values()}
    assert credited == {"r0-t1": 110, "r0-0.1-t1": 7}
    assert sum(e.train_samples for e in history.executions) == 117
    assert history.evaluations == []
    assert history.fenced == 3
    assert history.problems == []
    assert history.replicas["r0"].restarts == 1


@pytest.mark.parametrize("order", list(itertools.permutations([second_life, zombie])))
@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_zombies_records_do_not_count_in_whatever_order_they_are_seen(
    run: RunWriter, order: tuple[Callable[[RunWriter], None], ...], looks: int
) -> None:
    """With NFS, the second life may become visible long after what it fences off."""
    history = RunHistory(run.paths)
    first_life(run)
    for step, part in enumerate(order):
        if looks > step + 1:
            history.refresh()
        part(run)
    history.refresh()
    assert_only_one_life_counts_at_a_time(history)
    history.refresh()
    assert_only_one_life_counts_at_a_time(history)


def test_the_interrupted_trial_has_an_end_and_a_reason(run: RunWriter) -> None:
    first_life(run)
    history = run.history()
    assert history.trials["r0-t1"].state is TrialState.COMPILING
    second_life(run)
    history.refresh()
    trial = history.trials["r0-t1"]
    assert trial.state is TrialState.STOPPED
    assert trial.reason == "its replica was lost and restarted"
    assert history.trials["r0-0.1-t1"].state is TrialState.COMPILING


def test_a_trial_fails_with_the_rank_that_its_replica_lost(run: RunWriter) -> None:
    """Written by rank 0, or by the first of those that are left, in a journal of its own."""
    first_life(run)
    reason = "rank 0 on n1 died or hangs: no answer for 25 s"
    lost = records.RanksLost(ranks=(0,), reason=reason)
    run.append(run.paths.incarnation("r0", FIRST) / "rank-1.jsonl", 12, lost)
    history = run.history()
    second_life(run)
    history.refresh()
    trial = history.trials["r0-t1"]
    assert (trial.state, trial.reason) == (TrialState.FAILED, reason)
    assert trial.ended is None  # So that the next life goes on with it.
    assert history.trials["r0-0.1-t1"].state is TrialState.COMPILING


def test_where_nobody_was_left_the_launcher_says_how_the_replica_died(run: RunWriter) -> None:
    run.life(FIRST, 1, replica_started().model_copy(update={"hosts": ("n1", "n2")}))
    run.life(FIRST, 2, trial_started("r0-t1"))
    for seconds, detail in ((15, "ended with status 137"), (40, "ended with status 139")):
        queued = records.JobState(replica="r0", phase=JobPhase.REQUEUED, detail=detail)
        run.primary(seconds, queued)
    run.life(SECOND, 20, replica_started().model_copy(update={"hosts": ("n1", "n2")}))
    trial = run.history().trials["r0-t1"]
    assert trial.state is TrialState.FAILED
    assert trial.reason == "its replica was lost and restarted: ended with status 137"


def test_of_three_lives_each_counts_until_the_next_one_starts(run: RunWriter) -> None:
    first_life(run)
    second_life(run)
    run.life(THIRD, 50, replica_started())
    run.life(THIRD, 51, trial_started("r0-1.0-t1"))
    run.life(SECOND, 60, progress("r0-0.1-t1", train=5000))
    run.life(FIRST, 61, progress("r0-t1", train=5000))
    run.life(THIRD, 62, progress("r0-1.0-t1", train=3))
    history = run.history()
    assert [t.train_samples for t in history.trials.values()] == [100, 7, 3]
    assert history.fenced == 2


def test_a_life_that_starts_after_its_successor_never_counts(run: RunWriter) -> None:
    second_life(run)
    run.life(FIRST, 35, replica_started())
    run.life(FIRST, 36, trial_started("r0-t1"))
    run.life(FIRST, 37, progress("r0-t1", train=9))
    history = run.history()
    assert list(history.trials) == ["r0-0.1-t1"]
    assert history.fenced == 3
    assert history.problems == []


def test_search_workers_are_fenced_with_their_replica(run: RunWriter) -> None:
    first_life(run)
    run.append(run.paths.search_journal("r0", 0, FIRST), 15, proposed("before"))
    second_life(run)
    run.append(run.paths.search_journal("r0", 0, FIRST), 25, proposed("after"))
    assert [p.id for p in run.history().pending("r0")] == ["before"]


@pytest.mark.parametrize("place", ["0.0-old", "notes", "."])
def test_a_journal_in_no_lifes_folder_does_not_count_which_is_a_problem(
    run: RunWriter, place: str
) -> None:
    first_life(run)
    stray = run.paths.replica("r0") / place / "journal.jsonl"
    run.append(stray, 5, progress("r0-t1", train=1))
    history = run.history()
    assert history.trials["r0-t1"].train_samples == 100
    history.refresh()
    (problem,) = history.problems
    assert (problem.path, problem.line) == (stray, 1)
    assert (
        problem.what
        == "this journal is not in the folder of an attempt of a replica: nothing in it counts"
    )


def test_a_trial_is_interrupted_even_if_its_lifes_first_record_is_damaged(run: RunWriter) -> None:
    first_life(run)
    path = run.paths.replica_journal("r0")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"damaged\n" + b"".join(lines[1:]))
    second_life(run)
    assert run.history().trials["r0-t1"].state is TrialState.STOPPED


def test_other_replicas_are_not_touched(run: RunWriter) -> None:
    first_life(run)
    second_life(run)
    run.replica(100, trial_started("r1-t1"), progress("r1-t1", train=4), name="r1")
    history = run.history()
    assert history.trials["r1-t1"].train_samples == 4
    assert history.fenced == 0
