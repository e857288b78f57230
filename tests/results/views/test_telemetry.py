"""What nodes do, in values and in lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_writer import START, RunWriter, run_started
from tests.support.telemetry_run import SECONDS, manifest, write_telemetry

from aiperf_hpc.results.views.telemetry import (
    TelemetryStatus,
    absences,
    telemetry_lines,
    telemetry_series,
    telemetry_status,
)


def status_of(run: RunWriter, *, briefly: bool = True) -> TelemetryStatus:
    until = START + SECONDS
    return telemetry_status(run.history(), manifest(), until, 4.4e15, briefly=briefly)


def test_a_node_as_it_was_last_sampled(tmp_path: Path) -> None:
    status = status_of(write_telemetry(tmp_path), briefly=False)
    node = status.nodes[0]
    assert (node.host, node.at_seconds, node.seconds) == ("n", 300.0, 30.0)
    assert (node.cpu_percent, node.processes_cpu_percent, node.watts) == (25.0, 200.0, 1100.0)
    assert (node.disk_written_rate, node.network_sent_rate) == (200_000.0, 400_000.0)
    assert (node.accelerator_count, node.accelerator_percent) == (2, 90.0)
    assert [each.name for each in node.accelerators] == ["NVIDIA 0", "NVIDIA 1"]
    assert (node.accelerators[1].watts, node.accelerators[1].mhz) == (500.0, 1980.0)
    assert status.overhead == pytest.approx(0.0005)
    assert status.why_none == ""


def test_a_line_for_each_node_and_one_for_the_energy(tmp_path: Path) -> None:
    assert list(telemetry_lines(status_of(write_telemetry(tmp_path, rapl=False)))) == [
        "n  CPU 25%, memory 2.0 GiB, 2 accelerators 90%, 900 W",
        "m  CPU 25%, memory 2.0 GiB, 2 accelerators 90%, 900 W",
        "energy 540 kJ, estimated, 2.44 TOPS per watt; without the processors of n, m: "
        "energy_uj: Permission denied",
    ]


def test_the_course_of_a_node(tmp_path: Path) -> None:
    (series,) = telemetry_series(write_telemetry(tmp_path).history(), ["m", "unknown"], 3)
    assert (series.host, series.total, series.accelerators) == ("m", 10, ("NVIDIA 0", "NVIDIA 1"))
    assert [point.to_seconds for point in series.points] == [240.0, 270.0, 300.0]
    point = series.points[0]
    assert (point.from_seconds, point.accelerator_watts, point.celsius) == (210.0, 900.0, 65.0)
    assert point.fabric_sent_rate is None
    assert point.utilisation_percent == (80.0, 100.0)


def test_what_nodes_do_not_tell(tmp_path: Path) -> None:
    history = write_telemetry(tmp_path, ["n"], rapl=False).history()
    (node,) = absences(history)
    assert (node.host, node.absent) == ("n", {"RAPL": "energy_uj: Permission denied"})


@pytest.mark.parametrize(
    ("seconds", "launcher", "why"),
    [
        (30.0, "local", "no replica has recorded any"),
        (0.0, "local", "telemetry.seconds is 0; AIPerf's rules demand that a run is monitored"),
        (30.0, "simulated", "the run is simulated: its nodes are not there"),
    ],
)
def test_why_there_is_none(tmp_path: Path, seconds: float, launcher: str, why: str) -> None:
    run = RunWriter(tmp_path)
    run.primary(0.0, run_started())
    status = telemetry_status(run.history(), manifest(seconds, launcher), START, 0.0)
    assert (status.why_none, status.overhead, status.nodes) == (why, None, ())
    assert list(telemetry_lines(status)) == []
