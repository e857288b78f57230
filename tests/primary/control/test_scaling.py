"""Changes of the number of nodes of a running benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.run_factory import configuration
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import run_ended, run_started
from tests.support.scripted_launcher import DONE, RUNNING, ScriptedLauncher

from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.control.context import PrimaryContext, Timing
from aiperf_hpc.primary.control.elasticity import Elasticity, request_nodes
from aiperf_hpc.primary.launchers.base import ReplicaState
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.run.requests import ScaleRequest
from aiperf_hpc.run.search_digest import DigestWriter
from aiperf_hpc.trial import JobPhase

LATER = 3000.0
"""Seconds until the run ends: enough for whoever joins."""


class Run:
    """A run of two nodes whose replicas are at work."""

    def __init__(self, folder: Path, nodes_max: int | None = None) -> None:
        self.paths = RunPaths(folder)
        self.manifest = run_manifest(
            configuration(), launcher="slurm", nodes=2, nodes_max=nodes_max
        )
        self.manifest.save(self.paths)
        self.clock = Clock(1e9)
        self.launcher = ScriptedLauncher({"r0": RUNNING, "r1": RUNNING})
        self.journal = JournalWriter(self.paths.primary_journal, clock=self.clock)
        self.digest = JournalWriter(self.paths.digest, clock=self.clock)
        self.said: list[str] = []
        self.scaling = self.anew()

    def anew(self) -> Elasticity:
        """Return the scaling of a primary that takes the run in hand now."""
        history = RunHistory.read(self.paths)
        context = PrimaryContext(
            manifest=self.manifest, journal=self.journal, history=history, clock=self.clock,
            digest=DigestWriter(history, self.digest),
        )  # fmt: skip
        return Elasticity(context, self.launcher, Timing(grace=60.0), self.said.append)

    def look(self, left: float = LATER) -> list[AnyEvent]:
        """Let the scaling look; return what it recorded."""
        before = len(self.events)
        self.scaling.update(self.launcher.states(), left)
        return self.events[before:]

    def ask(self, nodes: int) -> list[AnyEvent]:
        ScaleRequest(nodes=nodes, reason="a test").save(self.paths)
        found = self.look()
        assert not self.paths.scale_request.exists()
        return found

    @property
    def events(self) -> list[AnyEvent]:
        return [record.event for record in JournalReader(self.paths.primary_journal).read()]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Yield a run whose replicas go on: scaling neither stops nor kills all of them."""
    run = Run(tmp_path)
    yield run
    assert not {"stop", "kill", "close"}.intersection(run.launcher.calls)


def test_more_nodes_are_asked_for_and_then_begin(run: Run) -> None:
    assert run.ask(4) == [
        records.NodesRequested(nodes=4, reason="a test"),
        records.ReplicaLaunched(replica="r2", job="18_r2"),
        records.ReplicaLaunched(replica="r3", job="18_r3"),
    ]
    assert run.launcher.calls == [("add", ("r2", "r3"))]
    assert run.scaling.joined("r2")
    assert not run.scaling.joined("r1")


def test_of_fewer_nodes_the_highest_replicas_leave_and_are_ended_if_they_do_not(run: Run) -> None:
    asked = records.NodesRequested(nodes=1, reason="a test")
    assert run.ask(1) == [asked, records.ReplicaReleased(replica="r1")]
    assert run.scaling.released == {"r1"}
    run.clock.now += 59.0
    assert run.look() == []
    run.clock.now += 2.0
    run.look()
    assert run.launcher.calls == [("release", ("r1",)), ("end", ("r1",))]


def test_one_that_is_asked_for_again_begins_when_it_has_left(run: Run) -> None:
    run.ask(1)
    assert run.ask(2) == [records.NodesRequested(nodes=2, reason="a test")]
    run.launcher.left = [{"r0": RUNNING, "r1": DONE}]
    assert run.look() == [records.ReplicaLaunched(replica="r1", job="18_r1")]
    assert run.scaling.released == set()


def test_nothing_is_recorded_where_all_are_there(run: Run) -> None:
    assert run.ask(2) == []
    assert run.launcher.calls == []


def test_what_cannot_be_had_is_refused_in_a_line_and_changes_nothing(run: Run) -> None:
    reason = "--nodes 9: partition 'bench' has 8 nodes"
    assert run.ask(9) == [records.NodesRefused(nodes=9, current_nodes=2, reason=reason)]
    run.launcher.refusal = "SLURM refused the job: no"
    asked, refused = run.ask(3)
    assert asked == records.NodesRequested(nodes=3, reason="a test")
    assert refused == records.NodesRefused(
        nodes=3, current_nodes=2, reason="r2: SLURM refused the job: no"
    )
    assert run.said[-1] == "r2: SLURM refused the job: no; --nodes stays 2"


def test_a_request_that_is_none_is_removed(run: Run) -> None:
    run.paths.scale_request.write_text("more")
    (event,) = run.look()
    assert isinstance(event, records.FileProblem)
    assert not run.paths.scale_request.exists()


def test_a_run_of_a_range_asks_for_the_most_once(tmp_path: Path) -> None:
    run = Run(tmp_path, nodes_max=3)
    run.scaling.begin()
    assert run.launcher.calls == [("add", ("r2",))]
    assert run.events[0] == records.NodesRequested(nodes=3, reason="--nodes 2-3")
    run.scaling = run.anew()  # Of a primary that goes on with the run: it launched all three.
    run.scaling.begin()
    assert len(run.launcher.calls) == 1


def test_a_node_that_was_preempted_for_good_is_asked_for_again(tmp_path: Path) -> None:
    run = Run(tmp_path, nodes_max=3)
    run.scaling.begin()
    taken = ReplicaState(JobPhase.LOST, "n3", "PREEMPTED")
    died = ReplicaState(JobPhase.LOST, "n2", "NODE_FAIL")  # SLURM queues it again itself.
    run.launcher.left = [{"r0": RUNNING, "r1": died, "r2": taken}]
    assert run.look() == [records.ReplicaLaunched(replica="r2", job="18_r2")]


def test_who_still_waits_at_the_runs_end_is_taken_out_of_the_queue(tmp_path: Path) -> None:
    run = Run(tmp_path, nodes_max=3)
    run.scaling.begin()
    assert run.look(left=59.0) == [records.ReplicaReleased(replica="r2")]
    assert run.look(left=58.0) == []


def test_a_run_that_does_not_last_is_not_scaled(run: Run) -> None:
    view = RunView.read(run.paths)
    with pytest.raises(UsageError, match="never started"):
        request_nodes(view, 3, "a test")
    run.journal.append_all([run_started(), run_ended()])
    view.refresh()
    with pytest.raises(UsageError, match="has ended; its nodes cannot change"):
        request_nodes(view, 3, "a test")
    assert not run.paths.scale_request.exists()
