"""Simulated runs on a busy cluster, which grants nodes one by one and preempts them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
from tests.support.present import present
from tests.support.rules import failures_by_rule
from tests.support.simulation import Queue, QueuedLauncher, simulated_run

from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history.presence import presences
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import Identity
from aiperf_hpc.simulation.cluster import SimulatedHost
from aiperf_hpc.trial import JobPhase

NODES = 8


def run(folder: Path, queue: Queue, *, nodes: int = NODES) -> RunView:
    """Simulate a run that has eight nodes at last."""
    most = NODES if nodes < NODES else None
    launcher = partial(QueuedLauncher, queue)
    return simulated_run(folder, launcher=launcher, nodes=nodes, nodes_max=most, hours=0.1)


def begins(view: RunView) -> list[float]:
    """Return when each replica began, seconds since the run was submitted."""
    submitted = view.history.run_starts[0][0]
    return sorted(min(r.starts.values()) - submitted for r in view.history.replicas.values())


def test_nodes_are_given_as_they_become_free_or_together() -> None:
    waits = Queue(60.0, seed=3).waits(100)
    assert waits == sorted(waits)
    assert 40.0 < sum(waits) / 100 < 80.0
    assert set(Queue(60.0, gang=True, seed=3).waits(100)) == {waits[-1]}
    assert Queue(60.0).left_alone(0, 0) == math.inf
    alone = [Queue(preemptions_per_hour=2.0).left_alone(n, life) for n in (0, 1) for life in (0, 1)]
    assert len(set(alone)) == 4


def test_the_clock_starts_with_the_first_node_and_all_begin_together_in_a_gang(
    tmp_path: Path,
) -> None:
    one_by_one = run(tmp_path / "array", Queue(30.0))
    first, *_, last = begins(one_by_one)
    start, submitted = one_by_one.history.start_utc, one_by_one.history.run_starts[0][0]
    assert present(start) - submitted == pytest.approx(first, abs=2.0)
    assert last - first > 20.0
    assert failures_by_rule(one_by_one.paths) == {}
    gang = run(tmp_path / "gang", Queue(30.0, gang=True))
    assert begins(gang)[0] == pytest.approx(begins(gang)[-1], abs=2.0)
    assert begins(gang)[0] >= last - 2.0
    assert gang.final().ops > one_by_one.final().ops


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run of 2 to 8 nodes, each of which is taken away every six minutes, for half a minute."""
    queue = Queue(20.0, preemptions_per_hour=10.0, away_seconds=30.0)
    return run(tmp_path_factory.mktemp("queue") / "run", queue, nodes=2)


def test_preempted_nodes_leave_in_order_and_return(taken: RunView) -> None:
    replicas = taken.history.replicas.values()
    again = [r for r in replicas if len(r.starts) > 1]
    assert again
    assert all(len(r.requeued) >= len(r.starts) - 1 for r in again)
    for replica in again:
        first = taken.paths.replica_journal(replica.id)
        *_, last = JournalReader(first).read()
        assert last.event == records.ReplicaEnded(reason="SIGTERM")
    assert failures_by_rule(taken.paths) == {}


def test_what_preempted_lives_did_counts_but_for_what_was_not_yet_recorded(taken: RunView) -> None:
    assert taken.history.fenced == 0
    assert taken.history.problems == []
    lives = presences(taken.history, taken.until)
    there = sum(life.end - life.begin for life in lives)
    phases = [r.seconds for r in taken.history.replicas.values()]
    told = sum(sum(seconds.values()) for seconds in phases)
    # All the time of all lives is told of, also that of those that had to leave.
    assert told == pytest.approx(there, rel=0.02)


class SeveringLauncher(QueuedLauncher):
    """Starts replicas again whose nodes it no longer sees: the old copies go on."""

    def _preempt(self, name: str, host: SimulatedHost) -> None:
        if self._hosts[name] is host:
            again = ReplicaState(JobPhase.REQUEUED, detail="NODE_FAIL")
            self._wait(name, self._queue.away_seconds, again)

    def _live(self, who: Identity, host: SimulatedHost) -> int:
        status = super()._live(who, host)
        if self._hosts[who.replica] is not host:
            self._cluster.timeline.sleep(math.inf)  # The scheduler does not see its end.
        return status


@pytest.mark.parametrize("seed", [1, 4])
def test_old_copies_that_go_on_are_fenced_and_contradict_nothing(tmp_path: Path, seed: int) -> None:
    queue = Queue(10.0, preemptions_per_hour=20.0, away_seconds=15.0, seed=seed)
    launcher = partial(SeveringLauncher, queue)
    view = simulated_run(tmp_path / "run", launcher=launcher, nodes=4, hours=0.07)
    assert any(len(replica.starts) > 1 for replica in view.history.replicas.values())
    assert view.history.fenced > 0
    assert failures_by_rule(view.paths) == {}
