"""The telemetry that the service answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.telemetry_run import manifest, write_telemetry

from aiperf_hpc.primary.monitor.run_view import RunView
from aiperf_hpc.primary.service.answers.telemetry import TelemetryQuestion
from aiperf_hpc.primary.service.problem import ProblemError


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    run = write_telemetry(tmp_path)
    manifest().save(run.paths)
    view = RunView(run.paths)
    view.refresh()
    return view


def test_all_nodes_as_they_are_and_the_course_of_one(view: RunView) -> None:
    found = TelemetryQuestion("m", 2)(view)
    assert [node.host for node in found.now.nodes] == ["n", "m"]
    assert found.now.energy.joules == 660_000.0
    assert found.now.nodes[0].accelerators[0].celsius == 61.0
    assert [(each.host, len(each.points)) for each in found.series] == [("m", 2)]
    assert [each.host for each in found.absent] == ["n", "m"]


def test_without_a_node_there_is_no_course(view: RunView) -> None:
    assert TelemetryQuestion(None, 2)(view).series == ()
    with pytest.raises(ProblemError, match="no telemetry of a node 'x'"):
        TelemetryQuestion("x", 2)(view)


def test_a_runs_status_has_its_nodes_without_each_accelerator(view: RunView) -> None:
    telemetry = view.status().telemetry
    assert telemetry is not None
    assert [node.watts for node in telemetry.nodes] == [1100.0, 1100.0]
    assert telemetry.nodes[0].accelerators == ()
