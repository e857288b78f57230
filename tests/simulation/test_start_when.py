"""A simulated run whose clock starts once all replicas are ready to train."""

from __future__ import annotations

import pytest
from tests.support.present import present
from tests.support.rules import failures_by_rule
from tests.support.simulation import simulated_run

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalReader

HOURS = 0.1


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run of three replicas, one of which starts every 20 s."""
    return simulated_run(
        tmp_path_factory.mktemp("simulation") / "run",
        "engine.simulation.dispatches_per_second=0.05",
        "rounds.warmup_epochs=[2,2,2]",
        "training.max_epochs=2",
        nodes=3,
        hours=HOURS,
        start_when="all",
    )


def test_the_clock_starts_once_the_last_replica_is_ready(view: RunView) -> None:
    history = view.history
    ready = [
        record.utc
        for name in history.replicas
        for record in JournalReader(view.paths.replica_journal(name)).read()
        if isinstance(record.event, records.ReplicaReady)
    ]
    start, end = history.start_utc, history.end_utc
    assert start is not None
    assert end is not None
    assert len(ready) == 3
    assert max(ready) - min(ready) > 20.0
    assert max(ready) <= start <= min(trial.started_utc for trial in history.trials.values())
    assert end - start >= HOURS * 3600.0
    status = view.status()
    assert present(status.clock).idle_node_seconds > sum(max(ready) - utc for utc in ready)


def test_what_was_before_the_clock_is_not_in_the_time_split(view: RunView) -> None:
    assert view.history.end_utc is not None
    assert view.history.start_utc is not None
    elapsed = view.history.end_utc - view.history.start_utc
    for replica in view.history.replicas.values():
        assert sum(replica.waited.values()) > 0.0
        assert sum(replica.seconds.values()) == pytest.approx(elapsed, abs=4.0)


def test_it_is_verified_and_official_in_no_division(view: RunView) -> None:
    assert failures_by_rule(view.paths) == {}
    broken = [v for v in view.violations() if v.rule == "start when"]
    assert [v.reason for v in broken] == ["all; loading and staging would lie outside the clock"]
