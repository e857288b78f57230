"""The primary's check of the nodes that its replicas report."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import START, Clock
from tests.support.run_writer import MACHINE, replica_started, run_started

from aiperf_hpc.primary.control.preflight import Preflight
from aiperf_hpc.results.views.replica_status import clock_problems
from aiperf_hpc.run.clocks import ClockReading
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import FIRST, Incarnation, RunPaths
from aiperf_hpc.run.records import NodeChecked


class Nodes:
    """A run whose nodes have clocks of their own; the file server's is the true time."""

    def __init__(self, folder: Path, primary_ahead: float | None = 0.0) -> None:
        self.paths = RunPaths(folder)
        clock = Clock(START + (primary_ahead or 0.0))
        with JournalWriter(self.paths.primary_journal, clock=clock) as journal:
            journal.append(run_started().model_copy(update={"clock": reading(primary_ahead)}))
        self.history = RunHistory(self.paths)
        clock.advance(20.0)
        self.preflight = Preflight(self.history, clock)

    def start(
        self, replica: str, ahead: float = 0.0, *, stamped: bool = True, version: str = "2.18.1",
        life: Incarnation = FIRST,
    ) -> None:  # fmt: skip
        """Let a replica start 10 s after the run, by its own clock."""
        machine = MACHINE.model_copy(
            update={"host": f"node-{replica}", "versions": {"tensorflow": version}}
        )
        known = {"machine": machine, "clock": reading(ahead) if stamped else None}
        own = self.paths.replica_journal(replica, life)
        with JournalWriter(own, clock=Clock(START + 10.0 + life.restart + ahead)) as journal:
            journal.append(replica_started(replica).model_copy(update=known))

    def look(self, *replicas: str) -> list[NodeChecked]:
        for replica in replicas:
            self.preflight.expect(replica)
        self.history.refresh()
        return self.preflight.look()


def reading(ahead: float | None) -> ClockReading | None:
    return None if ahead is None else ClockReading(ahead_seconds=ahead, precision_seconds=0.001)


def test_every_node_is_checked_once(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.start("r0")
    assert nodes.look("r0", "r1") == [
        NodeChecked(replica="r0", host="node-r0", clock_ahead_seconds=0.0)
    ]
    assert nodes.look() == []
    nodes.start("r1")
    assert [found.replica for found in nodes.look()] == ["r1"]
    assert nodes.look("r0") == []  # No new life of it.
    nodes.start("r0", life=Incarnation(0, 1))
    assert [found.replica for found in nodes.look()] == ["r0"]
    assert nodes.preflight.refused is None


@pytest.mark.parametrize(
    ("primary", "replica", "said"),
    [
        (0.0, 0.9, None),
        (5.0, 5.2, None),  # Both are off by the same.
        (0.0, 2.5, "2.5 s ahead of the primary's"),
        (0.0, -1.25, "1.2 s behind the primary's"),
        (3.0, 0.0, "3.0 s behind the primary's"),
    ],
)
def test_clocks_of_nodes(tmp_path: Path, primary: float, replica: float, said: str | None) -> None:
    nodes = Nodes(tmp_path, primary)
    nodes.start("r0", replica)
    (found,) = nodes.look("r0")
    assert found.clock_ahead_seconds == pytest.approx(replica - primary)
    if said is None:
        assert found.problems == ()
        return
    assert found.problems[0].startswith(f"the clock of node-r0 (r0) is {said}")
    assert "NTP" in found.problems[0]
    with JournalWriter(nodes.paths.primary_journal) as journal:
        journal.append(found)
    nodes.history.refresh()
    assert clock_problems(nodes.history) == list(found.problems)


@pytest.mark.parametrize(
    ("ahead", "known"),
    [(0.0, None), (3.0, None), (3600.0, 3600.0 - 10.0), (-3600.0, -3600.0 + 10.0)],
)
def test_impossible_file_stamps(tmp_path: Path, ahead: float, known: float | None) -> None:
    """No replica starts before the run does, nor after its start was seen."""
    nodes = Nodes(tmp_path, None)
    nodes.start("r0", ahead, stamped=False)
    assert nodes.look("r0")[0].clock_ahead_seconds == known


def test_nodes_that_differ_are_no_benchmark(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.start("r0")
    nodes.start("r1", version="2.17.0")
    nodes.look("r0", "r1")
    assert nodes.preflight.refused == (
        "the version of tensorflow differs: 2.18.1 on r0; 2.17.0 on r1; install the same on all "
        "nodes"
    )


def test_a_replica_that_is_queued_again_does_not_end_the_run(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    for replica in ("r0", "r1"):
        nodes.start(replica)
    nodes.look("r0", "r1")
    nodes.start("r1", version="2.17.0", life=Incarnation(0, 1))
    assert len(nodes.look("r1")) == 1
    assert nodes.preflight.refused is None
