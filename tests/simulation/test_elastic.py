"""A simulated run whose number of nodes changes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.present import present
from tests.support.rules import failures_by_rule
from tests.support.simulation import simulated_run

from aiperf_hpc.cli import main
from aiperf_hpc.ops_counter.score import score_at
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history.presence import presences, steps
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.requests import ScaleRequest
from aiperf_hpc.simulation.timeline import Timeline

HOURS = 0.35
SHRUNK = records.NodesRequested(nodes=1, reason="a test")


def elastic_run(folder: Path, requests: dict[float, int], nodes_max: int | None = None) -> RunView:
    """Simulate a run of 2 nodes that is requested, at seconds of virtual time, to have others."""
    left = sorted(requests.items())

    def ask(timeline: Timeline) -> None:
        if left and timeline.monotonic() >= left[0][0]:
            _, wanted = left.pop(0)
            ScaleRequest(nodes=wanted, reason="a test").save(RunPaths(folder))

    return simulated_run(folder, show=ask, nodes=2, nodes_max=nodes_max, hours=HOURS)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run that begins with 2, takes 3 at once, then has 4, 1, and 3 again."""
    asked = {300.0: 4, 600.0: 1, 900.0: 3}
    return elastic_run(tmp_path_factory.mktemp("elastic") / "run", asked, nodes_max=3)


def test_an_honest_run_that_grows_and_shrinks_is_verified(view: RunView) -> None:
    assert failures_by_rule(view.paths) == {}


def test_the_number_of_replicas_over_time_follows_from_the_records(view: RunView) -> None:
    history = view.history
    assert [nodes for _, nodes in history.nodes_requested] == [3, 4, 1, 3]
    over_time = steps(presences(history, view.until))
    counts = [step.replicas for step in over_time]
    # A moment apart from each other they join and leave.
    assert all(abs(after - before) <= 2 for before, after in pairwise(counts))
    start = history.start_utc or 0.0
    during = {290.0: 3, 590.0: 4, 890.0: 1, 1190.0: 3}
    for seconds, replicas in during.items():
        assert [s.replicas for s in over_time if s.utc - start <= seconds][-1] == replicas


def test_who_leaves_does_so_in_order_and_returns_as_another_life(view: RunView) -> None:
    replicas = view.history.replicas
    assert {len(r.starts) for r in replicas.values()} == {1, 2}
    assert [str(life) for life in sorted(replicas["r2"].starts)] == ["0.0", "0.1"]
    assert {r.ended for r in replicas.values()} == {"the run's time is over", "SIGTERM"}
    ended = present(view.history.run_ended)
    assert ended.event == records.RunEnded(reason="the run's time is over")


def test_a_shrink_loses_no_record_and_no_credit(view: RunView) -> None:
    """All that the released lives recorded counts, up to their last words."""
    assert view.history.fenced == 0
    assert view.history.problems == []
    released = list(JournalReader(view.paths.replica_journal("r3")).read())
    assert isinstance(released[-1].event, records.ReplicaEnded)
    credited = max(r.utc for r in released if isinstance(r.event, records.Progress))
    seconds = view.manifest.config.journal.progress_interval_seconds
    assert released[-1].utc - credited <= seconds
    (asked,) = [utc for utc, event in view.history.scalings if event == SHRUNK]
    assert released[-1].utc - asked <= seconds
    counted = score_at(view.history, view.until).operations
    trials = view.history.trials.values()
    assert counted == sum(
        t.train_samples * t.started.train_operations
        + t.validation_samples * t.started.validation_operations
        for t in trials
    )


def test_candidates_of_released_replicas_stay_in_the_search(view: RunView) -> None:
    trials = view.history.trials
    left = {t.id for t in trials.values() if t.replica == "r3"}
    grown = [t for t in trials.values() if t.started.parent in left and t.replica != "r3"]
    assert left
    assert grown


def test_a_run_cannot_be_official_if_its_nodes_change(view: RunView) -> None:
    reasons = [each.reason for each in view.status().violations if each.rule == "constant nodes"]
    assert reasons[:2] == [f"{n} nodes were requested during the run" for n in (3, 4)]


def test_what_each_number_of_nodes_did_adds_up_to_the_score(view: RunView) -> None:
    found = present(view.status(view.until).elasticity)
    assert [point.nodes for point in found.points] == [1, 3, 4]
    final = view.final()
    moments = final.operations - sum(point.ops * point.seconds for point in found.points)
    assert 0 <= moments < 0.02 * final.operations
    assert sum(point.seconds for point in found.points) == pytest.approx(
        final.elapsed_seconds, rel=0.02
    )
    hours = sum(p.end - p.begin for p in presences(view.history, view.until)) / 3600.0
    assert found.node_hours == pytest.approx(hours)
    assert found.operations_per_node_hour == final.operations / found.node_hours
    assert found.points[0].efficiency == 1.0
    assert all(0.5 < point.efficiency < 1.5 for point in found.points)


def test_status_and_report_show_it(view: RunView, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(view.paths.root)]) == 0
    said = capsys.readouterr().out
    assert "  nodes 3 requested, 0." in said
    assert "  on 4 nodes for " in said
    page = view.paths.report_html.read_text()
    assert '<h2 id="elasticity-title">Nodes over time</h2>' in page
    stated = json.loads(view.paths.report_json.read_text())["elasticity"]
    assert [each["nodes"] for each in stated["requests"]] == [3, 4, 1, 3]
    assert stated["steps"][-1]["replicas"] == 0


def test_a_run_whose_nodes_stay_has_none_of_it(tmp_path: Path) -> None:
    view = elastic_run(tmp_path / "run", {})
    assert view.status().elasticity is None
    assert "Nodes over time" not in view.paths.report_html.read_text()
