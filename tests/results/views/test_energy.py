"""The energy of runs in round numbers, and what is missing from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_writer import START, RunWriter, run_started
from tests.support.telemetry import ACCELERATORS, equipment, sample
from tests.support.telemetry_run import SECONDS, started, write_telemetry

from aiperf_hpc.results.views.energy import EnergyStatus, energy_status, host_energies
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
        "the processors of n, m: no tool tells their power",
        "the accelerators of m: no vendor's tool tells of them",
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
