"""What the report states of nodes, in round numbers, and how its page shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.run_factory import Plan, write_run
from tests.support.run_writer import START
from tests.support.telemetry_run import SECONDS, manifest, write_telemetry

from aiperf_hpc.results.report.document import make_report
from aiperf_hpc.results.report.html import render
from aiperf_hpc.results.report.plots.over_time import telemetry_plots
from aiperf_hpc.results.report.telemetry import (
    INTERVALS,
    Absence,
    Spread,
    TelemetryReport,
    telemetry_report,
)
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.peaks import Device, MeasuredRate, Peaks, Sweep


def viewed(root: Path, *, rapl: bool = True) -> RunView:
    run = write_telemetry(root, rapl=rapl)
    manifest().save(run.paths)
    return RunView.read(run.paths)


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> TelemetryReport:
    view = viewed(tmp_path_factory.mktemp("run"), rapl=False)
    return telemetry_report(view, START + SECONDS, view.final().ops)


def test_each_node_over_the_run(telemetry: TelemetryReport) -> None:
    first, second = telemetry.nodes
    assert (first.host, second.host, first.sampled_seconds) == ("n", "m", 300.0)
    assert (first.cpu_percent, first.accelerator_percent, first.watts) == (25.0, 90.0, 900.0)
    assert (first.joules, first.max_celsius) == (270_000.0, 65.0)
    # 9 and 12 MB by the networks and 3 and 6 MB by the disks, ten times.
    assert (first.network_bytes, first.disk_bytes) == (210e6, 90e6)


def test_the_course_is_that_of_all_nodes(telemetry: TelemetryReport) -> None:
    timeline = telemetry.timeline
    assert len(timeline) == INTERVALS
    assert (timeline[0].from_seconds, timeline[-1].to_seconds) == (0.0, 300.0)
    middle = timeline[INTERVALS // 2]
    assert middle.cpu_percent == Spread(mean=25.0, min=25.0, max=25.0)
    assert middle.power_watts == pytest.approx(1800.0)
    assert middle.network_rate == pytest.approx(2 * 700_000.0)
    assert middle.disk_rate == pytest.approx(2 * 300_000.0)


def test_what_is_absent_is_stated_once_for_equal_nodes(telemetry: TelemetryReport) -> None:
    assert telemetry.absent == (
        Absence(name="RAPL", reason="energy_uj: Permission denied", hosts=("n", "m")),
    )
    assert telemetry.overhead == pytest.approx(0.0005)


def test_the_share_of_the_peak_is_of_all_ranks_parts(tmp_path: Path) -> None:
    view = viewed(tmp_path)
    without = telemetry_report(view, START, view.final().ops).peak_unavailable_reason
    assert without.startswith("run `aiperf peaks --out RUN`")
    reading = MeasuredRate(size="1", amount=1, median=9e9, best=1e10, worst=8e9, repetitions=3)
    peaks = Peaks(
        utc=1.0,
        seconds=1.0,
        quick=True,
        host="n",
        cpu="c",
        cores=4,
        memory_bytes=1,
        versions={},
        devices=(Device(engine="tensorflow", name="cpu", model="c", threads=4),),
        sweeps=(
            Sweep(
                engine="tensorflow",
                device="cpu",
                kernel="matrix product",
                precision="bf16",
                readings=(reading,),
            ),
        ),
    )
    view.paths.peaks.write_text(peaks.model_dump_json())
    ops = 300e9 / view.final().elapsed_seconds
    peak = telemetry_report(view, START + SECONDS, ops).peak
    assert peak is not None
    # Two replicas of one core each, of the four that did 10 GOPS together.
    assert (peak.peak_ops, peak.ranks) == (5e9, 2)
    assert peak.fraction == pytest.approx(0.2)


def test_plots_of_what_was_told(telemetry: TelemetryReport) -> None:
    plots = {plot.title: plot for plot in telemetry_plots(telemetry)}
    assert list(plots) == ["Processors", "Accelerators", "Power", "Networks", "Disks"]
    assert plots["Power"].description == (
        "Power over the time of the run, a line chart: lowest 1.80 kW, 1.80 kW on average, "
        "highest 1.80 kW."
    )
    untold = [interval.model_copy(update={"power_watts": None}) for interval in telemetry.timeline]
    without = telemetry.model_copy(update={"timeline": tuple(untold)})
    assert "Power" not in {plot.title for plot in telemetry_plots(without)}
    assert telemetry_plots(None) == []


def test_what_was_nothing_all_the_time_has_no_plot(telemetry: TelemetryReport) -> None:
    """An axis from 0 to 1 B/s would suggest a scale that nothing had."""
    idle = [interval.model_copy(update={"disk_rate": 0.0}) for interval in telemetry.timeline]
    without = telemetry.model_copy(update={"timeline": tuple(idle)})
    assert "Disks" not in {plot.title for plot in telemetry_plots(without)}


def test_the_page_shows_energy_with_its_label_and_what_is_missing(
    tmp_path: Path, telemetry: TelemetryReport
) -> None:
    view = RunView.read(write_run(tmp_path, Plan(replicas=1, trials=1)))
    document = make_report(view)
    assert "There is no telemetry: no replica has recorded any." in render(document, [])
    page = render(document.model_copy(update={"telemetry": telemetry}), [])
    assert "540 kJ (estimated), 1.80 kW on average" in page
    assert "the processors of n, m: energy_uj: Permission denied" in page
    assert "not measured: run `aiperf peaks --out RUN`" in page
    for number in range(1, 6):
        assert f'id="telemetry-{number}"' in page
