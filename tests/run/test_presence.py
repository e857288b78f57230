"""How many replicas a run had over time, by its records alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_writer import START, RunWriter, replica_started, run_ended, run_started

from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.history.presence import presences, requested_nodes, steps
from aiperf_hpc.run.paths import Incarnation
from aiperf_hpc.trial import JobPhase, TimePhase

BEAT = records.Heartbeat(phase=TimePhase.TRAIN, cpu_percent=1.0, memory_bytes=1)
ENDED = records.ReplicaEnded(reason="SIGTERM")


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    writer = RunWriter(tmp_path / "run")
    writer.primary(0, run_started())
    writer.replica(2, replica_started("r0"), name="r0")
    return writer


def over_time(history: RunHistory, until: float) -> list[tuple[float, int]]:
    found = steps(presences(history, START + until))
    return [(utc - START, replicas) for utc, replicas in found]


def test_a_replica_that_is_at_work_is_there_until_now(run: RunWriter) -> None:
    assert over_time(run.history(), 50) == [(2, 1), (50, 0)]


def test_a_replica_that_joins_and_leaves_is_there_meanwhile(run: RunWriter) -> None:
    run.primary(10, records.NodesRequested(nodes=2, reason="aiperf scale"))
    run.replica(12, replica_started("r1"), name="r1")
    run.primary(30, records.NodesRequested(nodes=1, reason="aiperf scale"))
    run.primary(30, records.ReplicaReleased(replica="r1"))
    run.replica(31, ENDED, name="r1")
    run.primary(60, run_ended())
    history = run.history()
    assert over_time(history, 60) == [(2, 1), (12, 2), (31, 1), (60, 0)]
    assert history.nodes_requested == [(START + 10, 2), (START + 30, 1)]
    assert requested_nodes(history, 1) == 1
    assert history.replicas["r1"].released_utc == START + 30


def test_what_was_refused_was_not_to_be_had(run: RunWriter) -> None:
    run.primary(10, records.NodesRequested(nodes=4, reason="aiperf scale"))
    run.primary(11, records.NodesRefused(nodes=4, current_nodes=1, reason="no such nodes"))
    assert requested_nodes(run.history(), 1) == 1


def test_a_replica_that_died_is_there_until_its_last_sign_of_life(run: RunWriter) -> None:
    run.replica(20, BEAT, name="r0")
    state = records.JobState(replica="r0", phase=JobPhase.REQUEUED, node=None, detail="NODE_FAIL")
    run.primary(26, state)
    assert over_time(run.history(), 50) == [(2, 1), (20, 0)]
    run.append(run.paths.replica_journal("r0", Incarnation(0, 1)), 40, replica_started("r0"))
    assert over_time(run.history(), 50) == [(2, 1), (20, 0), (40, 1), (50, 0)]


def test_a_life_that_was_replaced_is_there_until_the_next_begins(run: RunWriter) -> None:
    run.append(run.paths.replica_journal("r0", Incarnation(0, 1)), 20, replica_started("r0"))
    run.replica(30, BEAT, name="r0")  # It does not know that it was replaced.
    found = presences(run.history(), START + 50)
    assert [(p.begin - START, p.end - START) for p in found] == [(20, 50)]


def test_time_before_the_clock_starts_is_none_of_the_runs(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.replica(2, replica_started("r0"), name="r0")
    assert over_time(run.history(), 10) == []
