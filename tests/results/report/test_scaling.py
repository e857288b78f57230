"""Weak scaling: what runs of several sizes say together, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.rules import verify
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.cli import main
from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.report.plots.scaling import scaling_plots
from aiperf_hpc.results.report.scaling import Scaling, ScalingRun, make_scaling, read_scaling
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths


def written(folder: Path, nodes: int, plan: Plan | None = None) -> RunPaths:
    """Write a run with its report."""
    plan = plan or Plan(replicas=nodes, trials=5, run_id=f"run-{nodes}")
    paths = write_run(folder / plan.run_id, plan)
    write_report(RunView(paths))
    return paths


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunPaths]:
    folder = tmp_path_factory.mktemp("scaling")
    return [written(folder, nodes) for nodes in (4, 1, 2)]


def run_of(nodes: int, ops: float, **changed: object) -> ScalingRun:
    values = {
        "run_id": f"n{nodes}",
        "name": f"n{nodes}",
        "final": True,
        "valid": False,
        "nodes_requested": nodes,
        "hours": 1.0,
        "score": {"ops": ops, "elapsed_seconds": 3600.0},
        "time": {"train_evaluate_fraction": 0.9},
        "config": {"engine": {"name": "tensorflow"}, "seed": 0},
    }
    return ScalingRun.model_validate(values | changed)


def test_efficiency_is_a_nodes_ops_over_those_in_the_smallest_run() -> None:
    scaling = make_scaling([run_of(16, 144.0), run_of(2, 20.0), run_of(4, 44.0)])
    assert [p.nodes for p in scaling.points] == [2, 4, 16]
    assert [p.ops_per_node for p in scaling.points] == [10.0, 11.0, 9.0]
    assert [p.efficiency for p in scaling.points] == pytest.approx([1.0, 1.1, 0.9])
    assert not scaling.simulated


def test_a_run_that_is_named_twice_counts_once() -> None:
    assert len(make_scaling([run_of(1, 5.0), run_of(1, 5.0), run_of(4, 20.0)]).points) == 2


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"hours": 2.0}, "hours"),
        ({"config": {"engine": {"name": "simulated"}, "seed": 0}}, r"engine\.name"),
        ({"config": {"engine": {"name": "tensorflow"}}}, "seed"),
    ],
)
def test_runs_that_differ_in_more_than_nodes_are_refused(
    changed: dict[str, object], what: str
) -> None:
    with pytest.raises(UsageError, match=f"n1 and n4 cannot be compared: {what} differs"):
        make_scaling([run_of(4, 4.0, **changed), run_of(1, 1.0)])


def test_nothing_is_compared_with_a_run_without_a_score() -> None:
    with pytest.raises(UsageError, match="n1 has no score"):
        make_scaling([run_of(1, 0.0), run_of(4, 4.0)])


def test_the_report_has_the_section_and_stays_verified(runs: list[RunPaths]) -> None:
    largest, *others = runs
    assert main(["report", str(largest.root), "--scaling", *(str(o.root) for o in others)]) == 0
    document = json.loads(largest.report_json.read_text())["scaling"]
    assert Scaling.model_validate(document) == read_scaling(runs)
    views = {paths.root.name: RunView(paths) for paths in runs}
    for point in document["points"]:
        view = views[point["run_id"]]
        view.refresh()
        assert point["ops"] == view.final().ops
        assert point["ops_per_node"] == view.final().ops / point["nodes"]
    page = largest.report_html.read_text()
    assert 'id="scaling"' in page
    assert page.count("Weak-scaling efficiency") >= 1
    assert "simulated" not in page[page.index('id="scaling"') : page.index('id="time"')]
    passed = {f.rule: f.passed for f in verify(RunView(largest))}
    assert passed["report"]
    assert passed["files"]


def test_without_other_runs_there_is_no_section(runs: list[RunPaths]) -> None:
    page = runs[1].report_html.read_text()
    assert 'id="scaling"' not in page
    assert json.loads(runs[1].report_json.read_text())["scaling"] is None


def test_a_run_without_a_final_report_is_named(runs: list[RunPaths], tmp_path: Path) -> None:
    open_end = Plan(replicas=3, trials=5, run_id="open", ended=False)
    running = written(tmp_path, 3, open_end)
    for paths, message in (
        (running, "open: its report is not final"),
        (RunPaths(tmp_path / "nowhere"), "there is no run .*nowhere"),
    ):
        with pytest.raises(UsageError, match=message):
            write_report(RunView(runs[1]), [paths])
    with pytest.raises(UsageError, match="open has not ended"):
        write_report(RunView(running), [runs[1]])


def test_a_damaged_report_is_named(runs: list[RunPaths], tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.report.mkdir()
    paths.report_json.write_text("{")
    with pytest.raises(UsageError, match=r"report\.json is damaged"):
        write_report(RunView(runs[1]), [paths])


def test_plots_say_what_they_show() -> None:
    scaling = make_scaling([run_of(1, 1e9), run_of(4, 3.6e9), run_of(16, 15.2e9)])
    ops, efficiency = scaling_plots(scaling.points)
    assert "1.00 GOPS on 1, 15.2 GOPS on 16; ideal scaling gives 16.0 GOPS" in ops.description
    assert "lowest 90.00% on 4, 95.00% on 16" in efficiency.description
    for plot in (ops, efficiency):
        assert "<svg" in plot.svg
        assert not [n for n in range(1, 7) if f"#0{n}0{n}0{n}" in plot.svg]  # stand-in colors
    assert scaling_plots(scaling.points[:1]) == []
