"""What each kind of node and each number of nodes contributed: exact parts of the whole, by the
records alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.clock import Clock
from tests.support.nodes import node, rank
from tests.support.run_factory import Plan, write_run
from tests.support.run_writer import (
    START,
    RunWriter,
    progress,
    replica_started,
    run_ended,
    run_started,
    trial_started,
)

from aiperf_hpc.cli import main
from aiperf_hpc.ops_counter.score import score_at
from aiperf_hpc.results.report.document import make_report
from aiperf_hpc.results.report.html import render
from aiperf_hpc.results.views.nodes import (
    UNTOLD,
    elasticity_status,
    kinds_of,
    kinds_status,
)
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history.presence import presences
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.system.description import NodeDescription
from aiperf_hpc.system.summary import kind_of
from aiperf_hpc.trial import TimePhase

H100, MI300X = node(0), node(1, accelerators=4, model="AMD Instinct MI300X")
CPUS = node(2, accelerators=0)


def told_run(folder: Path, nodes: Mapping[str, NodeDescription | None]) -> RunPaths:
    """Write a run whose replicas have told of these nodes."""
    paths = write_run(folder, Plan(replicas=len(nodes), trials=5))
    view = RunView.read(paths)
    for name, described in nodes.items():
        if described is not None:
            with JournalWriter(
                paths.replica_journal(name), clock=Clock(view.history.last_utc)
            ) as writer:
                event = records.SystemDescribed(rank=0, description=rank(name, described))
                writer.append(event)
    return paths


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run on two nodes of one kind and one of another."""
    nodes = {"r0": H100, "r1": MI300X, "r2": node(3)}
    return RunView.read(told_run(tmp_path_factory.mktemp("mixed") / "run", nodes))


def test_what_kind_a_node_is() -> None:
    assert kind_of(H100) == "8 × NVIDIA H100"
    assert kind_of(MI300X) == "4 × AMD Instinct MI300X"
    assert kind_of(CPUS) == "2 × Intel(R) Xeon(R) Platinum 8480+"
    untold = CPUS.model_copy(update={"pci_accelerators": {"Huawei": 8}})
    assert kind_of(untold) == "8 × Huawei accelerator"
    assert kind_of(NodeDescription()) == "unknown"


def test_the_kinds_are_parts_of_the_whole(mixed: RunView) -> None:
    history = mixed.history
    for until in (mixed.until, mixed.until - 60.0):
        works = kinds_status(history, mixed.machine.kinds(), 2, until)
        assert {work.kind: work.replicas for work in works} == {
            "8 × NVIDIA H100": 2, "4 × AMD Instinct MI300X": 1,
        }  # fmt: skip
        whole = score_at(history, until)
        assert sum(work.operations for work in works) == whole.operations > 0
        assert sum(work.trials for work in works) == len(history.trials)
        hours = sum(life.end - life.begin for life in presences(history, until)) * 2 / 3600.0
        assert sum(work.node_hours for work in works) == pytest.approx(hours)
        assert [work.operations for work in works] == sorted(
            (work.operations for work in works), reverse=True
        )


def test_an_operation_belongs_to_the_kind_of_its_replica(mixed: RunView) -> None:
    works = kinds_status(mixed.history, mixed.machine.kinds(), 1, mixed.until)
    (own,) = [work for work in works if "MI300X" in work.kind]
    trials = [mixed.history.trials[name] for name in mixed.history.replicas["r1"].trials]
    assert own.trials == len(trials)
    assert own.operations == sum(
        t.train_samples * t.started.train_operations
        + t.validation_samples * t.started.validation_operations
        for t in trials
    )
    seconds = mixed.history.replicas["r1"].seconds
    busy = seconds[TimePhase.TRAIN] + seconds[TimePhase.EVALUATE]
    assert own.busy_fraction == pytest.approx(busy / (own.node_hours * 3600.0))
    assert 0.0 < own.busy_fraction < 1.0


def test_status_report_and_page_say_it(mixed: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    status = mixed.status()
    assert sum(kind.fraction for kind in status.kinds) == pytest.approx(1.0)
    assert sum(kind.ops for kind in status.kinds) == pytest.approx(status.score.ops)
    assert main(["status", str(mixed.paths.root)]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "MI300X:" in each]
    assert line.startswith("  1 node of 4 × AMD Instinct MI300X: ")
    assert " of all, " in line
    report = make_report(mixed)
    assert json.loads(report.model_dump_json())["kinds"][0]["nodes"] == report.kinds[0].nodes
    page = render(report, mixed.series.official())
    assert '<h2 id="kinds-title">Node types</h2>' in page
    assert '<th scope="row">4 × AMD Instinct MI300X</th>' in page


def test_of_nodes_of_one_kind_nothing_is_said(tmp_path: Path) -> None:
    view = RunView.read(told_run(tmp_path / "run", {"r0": H100, "r1": node(3), "r2": None}))
    assert view.status().kinds == ()
    assert 'id="kinds"' not in render(make_report(view), view.series.official())


def test_a_replica_that_moved_to_another_kind_is_of_both(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.primary(0, run_started())
    run.replica(2, replica_started("r0"), described(H100))
    run.life(Incarnation(0, 1), 20, replica_started("r0"), described(MI300X))
    run.life(Incarnation(0, 2), 40, replica_started("r0"), described(MI300X))
    run.replica(2, replica_started("r1"), name="r1")
    assert kinds_of(run.history().replicas.values()) == {}  # One kind that is told.
    run.replica(2, replica_started("r2"), described(CPUS), name="r2")
    assert kinds_of(run.history().replicas.values()) == {
        "r0": "8 × NVIDIA H100, then 4 × AMD Instinct MI300X",
        "r1": UNTOLD,
        "r2": "2 × Intel(R) Xeon(R) Platinum 8480+",
    }


def described(what: NodeDescription) -> records.SystemDescribed:
    return records.SystemDescribed(rank=0, description=rank("n", what))


@pytest.mark.parametrize("per_sample", [10, 1])  # Operations of a sample.
def test_each_number_of_nodes_has_its_time_and_its_operations(
    tmp_path: Path, per_sample: int
) -> None:
    """A replica of two nodes for 400 s, a second one for 200 s of them, a third for one."""
    run = RunWriter(tmp_path / "run")
    run.primary(0, run_started())
    run.replica(0, replica_started("r0"), trial_started("t1", train_operations=per_sample))
    run.replica(50, progress("t1", train=50))
    assert elasticity_status(run.history(), 2, 2, START + 50) is None
    run.primary(100, records.NodesRequested(nodes=4, reason="a test"))
    run.replica(
        100, replica_started("r1"), trial_started("t2", train_operations=per_sample), name="r1"
    )
    run.replica(200, progress("t1", train=100))
    run.replica(250, progress("t2", train=200), name="r1")
    run.replica(300, records.ReplicaEnded(reason="SIGTERM"), name="r1")
    run.replica(399.5, progress("t1", train=50))
    run.replica(398, replica_started("r2"), name="r2")
    run.replica(399, records.ReplicaEnded(reason="SIGTERM"), name="r2")
    run.primary(400, run_ended())
    found = elasticity_status(run.history(), 2, 2, START + 400)
    assert found is not None
    assert [(step.elapsed_seconds, step.replicas) for step in found.steps] == [
        (0, 1), (100, 2), (300, 1), (398, 2), (399, 1), (400, 0)
    ]  # fmt: skip
    # 100 samples in 199 s on 2 nodes, 300 in 201 s on 4.
    per_node = [100 * per_sample / 199 / 2, 300 * per_sample / 201 / 4]
    assert [(p.nodes, p.seconds, round(p.ops * p.seconds)) for p in found.points] == [
        (2, 199.0, 100 * per_sample), (4, 201.0, 300 * per_sample)
    ]  # fmt: skip
    assert [p.efficiency for p in found.points] == pytest.approx([1.0, per_node[1] / per_node[0]])
    assert found.points[1].ops == 300 * per_sample / 201
    assert found.node_hours == pytest.approx((400 + 200 + 1) * 2 / 3600)
    assert found.operations_per_node_hour == pytest.approx(400 * per_sample / found.node_hours)
    assert elasticity_status(run.history(), 2, 2, START) is None
