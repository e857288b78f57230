"""Telemetry and energy of nodes in round numbers, what is missing of them, and their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_writer import START, RunWriter, run_started
from tests.support.telemetry import ACCELERATORS, equipment, sample
from tests.support.telemetry_run import SECONDS, manifest, started, write_telemetry

from aiperf_hpc.results.views.telemetry import (
    EnergyStatus,
    TelemetryStatus,
    absences,
    energy_status,
    host_energies,
    telemetry_lines,
    telemetry_series,
    telemetry_status,
)
from aiperf_hpc.run.records import TelemetrySampled, TelemetryStarted
from aiperf_hpc.telemetry.values import Part


def energy_of(run: RunWriter, seconds: float = SECONDS, ops: float = 4.4e15) -> EnergyStatus:
    history, until = run.history(), START + seconds
    return energy_status(history, host_energies(history, until), until, ops)


def test_all_nodes_together(tmp_path: Path) -> None:
    energy = energy_of(write_telemetry(tmp_path))
    # Two nodes of 900 W of accelerators and 200 W of processors, for 300 s.
    assert energy.joules == 2 * (900 + 200) * 300
    assert energy.watts == 2200.0
    assert energy.ops_per_watt == pytest.approx(2e12)
    assert (energy.label, energy.missing) == ("measured", ())
    accelerators = energy.parts[Part.ACCELERATORS]
    assert (accelerators.joules, accelerators.watts, accelerators.nodes) == (540_000, 1800, 2)
    assert accelerators.sources == ("NVML: energy counter",)
    assert energy.parts[Part.MEMORY].label == "absent"


def test_what_may_not_be_read_is_missing_and_the_sum_an_estimate(tmp_path: Path) -> None:
    energy = energy_of(write_telemetry(tmp_path, rapl=False))
    assert energy.joules == 540_000.0
    assert energy.label == "estimated"
    assert energy.parts[Part.ACCELERATORS].label == "measured"
    assert energy.missing == ("the processors of n, m: energy_uj: Permission denied",)


def test_a_node_that_told_nothing_is_missing(tmp_path: Path) -> None:
    run = write_telemetry(tmp_path)
    run.replica(0.0, started("r2", "x"), name="r2")
    energy = energy_of(run)
    assert energy.missing == ("all of x: no telemetry was recorded there",)
    assert energy.label == "estimated"


def test_accelerators_that_no_tool_tells_of_are_missing(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.primary(0.0, run_started())
    own = equipment(meters=ACCELERATORS[:1], **{"NVIDIA 1: power": "Not Supported"})
    run.replica(0.0, started("r0", "n", ("a",)), TelemetryStarted(equipment=own))
    run.replica(30.0, TelemetrySampled(sample=sample((12_000.0,))))
    blind = own.model_copy(update={"accelerators": (), "meters": (), "host": "m"})
    run.replica(0.0, started("r1", "m", ("a",)), TelemetryStarted(equipment=blind), name="r1")
    assert energy_of(run, 30.0).missing == (
        "NVIDIA 1 of n: Not Supported",
        "the processors of n, m: no tool reports their power",
        "the accelerators of m: no vendor's tool reports them",
    )


def test_a_gap_between_lives_is_told_and_the_mean_power_is_of_what_was_metered(
    tmp_path: Path,
) -> None:
    run = RunWriter(tmp_path)
    run.primary(0.0, run_started())
    for begin in (0.0, 200.0):
        run.replica(begin, started("r0", "n"), TelemetryStarted(equipment=equipment()))
        run.replica(begin + 30.0, TelemetrySampled(sample=sample()))
    energy = energy_of(run, 230.0)
    assert (energy.joules, energy.watts) == (66_000.0, 1100.0)
    assert energy.label == "estimated"
    assert energy.missing == (
        "some of the time of the accelerators of n: not all of it was metered",
        "some of the time of the processors of n: not all of it was metered",
    )


def test_without_any_meter_it_is_absent(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.primary(0.0, run_started())
    own = equipment(meters=()).model_copy(update={"accelerators": ()})
    run.replica(0.0, started("r0", "n"), TelemetryStarted(equipment=own))
    run.replica(30.0, TelemetrySampled(sample=sample(())))
    energy = energy_of(run, 30.0)
    assert (energy.label, energy.joules, energy.ops_per_watt) == ("absent", None, None)


def status_of(run: RunWriter, *, briefly: bool = True) -> TelemetryStatus:
    until = START + SECONDS
    return telemetry_status(run.history(), manifest(), until, 4.4e15, briefly=briefly)


def test_a_node_as_it_was_last_sampled(tmp_path: Path) -> None:
    status = status_of(write_telemetry(tmp_path), briefly=False)
    node = status.nodes[0]
    assert (node.host, node.elapsed_seconds, node.seconds) == ("n", 300.0, 30.0)
    assert (node.cpu_percent, node.processes_cpu_percent, node.watts) == (25.0, 200.0, 1100.0)
    assert (node.disk_written_rate, node.network_sent_rate) == (200_000.0, 400_000.0)
    assert (node.accelerator_count, node.accelerator_percent) == (2, 90.0)
    assert [each.name for each in node.accelerators] == ["NVIDIA 0", "NVIDIA 1"]
    assert (node.accelerators[1].watts, node.accelerators[1].mhz) == (500.0, 1980.0)
    assert status.overhead == pytest.approx(0.0005)
    assert status.unavailable_reason == ""


def test_a_line_for_each_node_and_one_for_the_energy(tmp_path: Path) -> None:
    assert list(telemetry_lines(status_of(write_telemetry(tmp_path, rapl=False)))) == [
        "n  CPU 25%, memory 2 GiB, 2 accelerators 90%, 900 W",
        "m  CPU 25%, memory 2 GiB, 2 accelerators 90%, 900 W",
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
    assert point.utilization_percent == (80.0, 100.0)


def test_what_nodes_do_not_tell(tmp_path: Path) -> None:
    history = write_telemetry(tmp_path, ["n"], rapl=False).history()
    (node,) = absences(history)
    assert (node.host, node.absent) == ("n", {"RAPL": "energy_uj: Permission denied"})


@pytest.mark.parametrize(
    ("seconds", "launcher", "why"),
    [
        (30.0, "local", "no replica has recorded any"),
        (
            0.0,
            "local",
            "telemetry.interval_seconds is 0; AIPerf's rules require monitoring",
        ),
        (30.0, "simulated", "the run is simulated: its nodes do not exist"),
    ],
)
def test_why_there_is_none(tmp_path: Path, seconds: float, launcher: str, why: str) -> None:
    run = RunWriter(tmp_path)
    run.primary(0.0, run_started())
    status = telemetry_status(run.history(), manifest(seconds, launcher), START, 0.0)
    assert (status.unavailable_reason, status.overhead, status.nodes) == (why, None, ())
    assert list(telemetry_lines(status)) == []
