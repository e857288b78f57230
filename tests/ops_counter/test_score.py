from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.networks import sequential
from tests.support.run_factory import Plan, write_run
from tests.support.run_writer import (
    START,
    RunWriter,
    evaluated,
    progress,
    run_ended,
    run_started,
    trial_started,
)

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.graph import Conv2D, Dense, GlobalAveragePool2D, Graph, Input, Softmax
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.score import (
    ScoreStatus,
    end_of,
    score_at,
    score_series,
    score_times,
)
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.records import PrimaryHeartbeat, TrialStarted


def graph(side: int) -> Graph:
    image, pool = Input((side, side, 1)), GlobalAveragePool2D()
    return sequential(
        image=image, conv=Conv2D(2, 3), pool=pool, logits=Dense(3), probabilities=Softmax()
    )


# On 4 x 4 images; convolution, pooling, dense, softmax.
FORWARD = 2 * 9 * 2 * 16 + (2 * 16 + 4 * 2) + 2 * 2 * 3 + 13 * 3
BACKWARD = (2 * 9 * 2 * 16 + 2 * 9 * 2) + (2 * 2 * 2 * 3 + 2 * 3 * 3)
TRAINING = FORWARD + BACKWARD


def started(trial: str, side: int = 4) -> TrialStarted:
    """Record a trial of a graph with the operations that the graph counts."""
    counted = count(graph(side))
    return trial_started(
        trial,
        graph(side).hash,
        train_operations=counted.training,
        validation_operations=counted.forward,
    )


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    run = RunWriter(tmp_path)
    run.primary(0, run_started())
    run.replica(1, started("t1"))
    return run


def at(run: RunWriter, *seconds: float) -> list[ScoreStatus]:
    return score_series(run.history(), [START + s for s in seconds])


def final(run: RunWriter) -> ScoreStatus:
    history = run.history()
    return score_at(history, end_of(history))


def test_ops_is_what_was_executed_over_the_time_since_the_start(run: RunWriter) -> None:
    run.replica(50, progress(train=10, validation=5))
    (point,) = at(run, 100)
    assert point.elapsed_seconds == 100
    assert point.operations == 10 * 1321 + 5 * 667
    assert point.ops == (10 * 1321 + 5 * 667) / 100


def test_samples_executed_after_the_runs_end_are_not_credited(run: RunWriter) -> None:
    run.replica(10, progress(train=1))
    run.primary(20, run_ended())
    run.replica(21, progress(train=100), evaluated(correct=99))
    point = final(run)
    assert (point.elapsed_seconds, point.operations, point.error) == (20, 1321, None)


def test_all_replicas_are_credited_each_by_its_own_graph(run: RunWriter) -> None:
    run.replica(1, started("t2", side=2), name="r1")
    run.replica(10, progress("t1", train=1))
    run.replica(11, progress("t2", train=1), name="r1")
    smaller = (2 * 9 * 2 * 4 + (2 * 4 + 4 * 2) + 12 + 39) + (2 * 9 * 2 * 4 + 36 + 42)
    assert [p.operations for p in at(run, 10, 11)] == [1321, 1321 + smaller]


def test_journals_of_replicas_are_credited_in_order_of_time(run: RunWriter) -> None:
    run.replica(30, progress("t1", train=1), name="r0")
    run.replica(1, started("t2"), name="r1")
    run.replica(10, progress("t2", train=5), name="r1")
    assert [p.operations for p in at(run, 9, 10, 29, 30)] == [0, 5 * 1321, 5 * 1321, 6 * 1321]


def test_the_regulated_score_goes_by_the_best_evaluation_so_far(run: RunWriter) -> None:
    run.replica(10, progress(train=1), evaluated(correct=60))
    run.replica(20, evaluated(correct=80, epoch=2))
    run.replica(30, evaluated(correct=70, epoch=3))
    points = at(run, 5, 10, 20, 30)
    assert [p.error for p in points] == [None, 0.4, 0.2, 0.2]
    assert [p.regulated for p in points] == [
        None,
        pytest.approx(-math.log(0.4) * 1321 / 10, rel=1e-12),
        pytest.approx(-math.log(0.2) * 1321 / 20, rel=1e-12),
        pytest.approx(-math.log(0.2) * 1321 / 30, rel=1e-12),
    ]


@pytest.mark.parametrize(
    ("correct", "samples", "error", "regulated_error"),
    [(50_000, 50_000, 0.0, 1 / 50_000), (0, 100, 1.0, 1.0), (99, 100, 0.01, 0.01)],
)
def test_an_error_of_zero_counts_as_one_sample_of_the_validation_set(
    run: RunWriter, correct: int, samples: int, error: float, regulated_error: float
) -> None:
    run.replica(10, progress(train=1), evaluated(correct=correct, samples=samples))
    (point,) = at(run, 10)
    assert (point.error, point.regulated_error) == (error, regulated_error)
    assert point.regulated == pytest.approx(-math.log(regulated_error) * 1321 / 10, rel=1e-12)
    assert not str(point.regulated).startswith("-")


def test_a_run_that_has_not_started_has_no_score(tmp_path: Path) -> None:
    history = RunWriter(tmp_path).history()
    assert score_times(history, 0.1) == []
    point = score_at(history, START)
    assert (point.elapsed_seconds, point.operations, point.ops, point.regulated) == (
        0,
        0,
        0.0,
        None,
    )


def test_at_the_very_start_the_score_is_zero(run: RunWriter) -> None:
    assert (at(run, 0)[0].ops, at(run, -5)[0].elapsed_seconds) == (0.0, 0.0)


def test_a_run_that_goes_on_is_scored_until_its_last_record(run: RunWriter) -> None:
    run.replica(10, progress(train=1))
    run.primary(40, PrimaryHeartbeat())
    assert end_of(run.history()) == START + 40
    assert final(run).elapsed_seconds == 40


def times(seconds: float, interval_hours: float = 0.1) -> list[float]:
    with TemporaryDirectory() as folder:
        run = RunWriter(Path(folder))
        run.primary(0, run_started())
        run.primary(seconds, run_ended())
        return [time - START for time in score_times(run.history(), interval_hours)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (30, [30]),
        (360, [360]),
        (361, [360, 361]),
        (359.5, [359.5]),
        (1000, [360, 720, 1000]),
        (3600, [360 * n for n in range(1, 11)]),
        (0, [0]),
    ],
)
def test_the_score_is_stated_at_every_tenth_of_an_hour_and_at_the_end(
    seconds: float, expected: list[float]
) -> None:
    assert times(seconds) == pytest.approx(expected, abs=1e-9)


def test_a_time_that_would_make_more_points_than_any_run_has_is_refused() -> None:
    assert len(times(3600.0 * 100_000, 1.0)) == 100_000
    with pytest.raises(RunDirectoryError, match=r"cover 100001 hours, for each 1 of which"):
        times(3600.0 * 100_001, 1.0)


@settings(max_examples=40)
@given(steps=st.integers(0, 60) | st.floats(0.001, 60), interval=st.floats(0.01, 24.0))
def test_the_last_time_is_exactly_the_end_and_none_comes_twice(
    steps: float, interval: float
) -> None:
    seconds = steps * interval * 3600.0
    found = times(seconds, interval)
    assert found[-1] == (START + seconds) - START
    assert all(a < b for a, b in zip(found, found[1:], strict=False))
    assert max(b - a for a, b in zip([0.0, *found], found, strict=False)) <= interval * 3600 + 2e-3
    assert found[:-1] == pytest.approx(
        [interval * 3600 * (n + 1) for n in range(len(found) - 1)], abs=1e-6
    )


@settings(max_examples=30)
@given(
    executed=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(0, 9))),
    evaluations=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=8),
    asked=st.lists(st.integers(-1, 32), min_size=1).map(sorted),
)
def test_the_score_at_any_time_is_the_sum_of_what_was_recorded_until_then(
    executed: list[tuple[int, int, int]],
    evaluations: list[tuple[int, int]],
    asked: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = RunWriter(tmp_path_factory.mktemp("run"))
    run.primary(0, run_started())
    run.replica(0, started("t1"))
    for seconds, train, validation in executed:
        run.replica(seconds, progress(train=train, validation=validation))
    for epoch, (seconds, correct) in enumerate(evaluations, 1):
        run.replica(seconds, evaluated(correct=correct, samples=5, epoch=epoch))
    history = run.history()
    points = score_series(history, [START + s for s in asked])
    for point, until in zip(points, asked, strict=True):
        done = [(t, v) for s, t, v in executed if s <= until]
        assert point.operations == sum(t * TRAINING + v * FORWARD for t, v in done)
        reached = [correct for s, correct in evaluations if s <= until]
        assert point.error == (None if not reached else (5 - max(reached)) / 5)
        assert score_at(history, START + until) == point


def test_a_graph_is_read_and_counted_once(tmp_path: Path) -> None:
    view = RunView(write_run(tmp_path / "run", Plan(replicas=1, trials=1)))
    view.graphs.save(graph(4))
    first = view.counts(graph(4).hash)
    view.paths.graph(graph(4).hash).unlink()
    assert view.counts(graph(4).hash) is first
    assert (first.forward, first.backward, first.training) == (FORWARD, BACKWARD, TRAINING)
    assert sum(kind.forward for kind in first.by_kind.values()) == FORWARD
