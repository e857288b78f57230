"""The telemetry that the service answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.support.telemetry_run import manifest, write_telemetry

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.service.answers.machines import TelemetryQuestion
from aiperf_hpc.service.metrics import exposition
from aiperf_hpc.service.problem import ProblemError
from aiperf_hpc.service.runs import RunList

NO_RUNS = RunList(runs=(), loading=(), unreadable=(), foreign=0)


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    run = write_telemetry(tmp_path)
    manifest().save(run.paths)
    view = RunView(run.paths)
    view.refresh()
    return view


def test_all_nodes_as_they_are_and_the_course_of_one(view: RunView) -> None:
    found = TelemetryQuestion(host="m", points=2)(view)
    assert [node.host for node in found.now.nodes] == ["n", "m"]
    assert found.now.energy.joules == 660_000.0
    assert found.now.nodes[0].accelerators[0].celsius == 61.0
    assert [(each.host, len(each.points)) for each in found.series] == [("m", 2)]
    assert [each.host for each in found.absent] == ["n", "m"]


def test_without_a_node_there_is_no_course(view: RunView) -> None:
    assert TelemetryQuestion(points=2)(view).series == ()
    with pytest.raises(ProblemError, match="no telemetry of a node 'x'"):
        TelemetryQuestion(host="x", points=2)(view)


def test_a_runs_status_has_its_nodes_without_each_accelerator(view: RunView) -> None:
    telemetry = view.status().telemetry
    assert telemetry is not None
    assert [node.watts for node in telemetry.nodes] == [1100.0, 1100.0]
    assert telemetry.nodes[0].accelerators == ()


def test_nodes_and_energy_are_metrics(view: RunView) -> None:
    text = exposition(CollectorRegistry(), NO_RUNS, {"a": view.status()}, None).decode()
    told = {
        (family.name, sample.labels.get("host")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert told["aiperf_node_power_watts", "n"] == told["aiperf_node_power_watts", "m"] == 1100.0
    status = view.status().telemetry
    assert status is not None
    percent = status.nodes[0].accelerator_percent
    assert percent is not None
    assert told["aiperf_node_accelerator_ratio", "n"] == percent / 100.0
    assert told["aiperf_run_energy_joules", None] == 660_000.0
