"""What a page's overview draws, and what its captions say of what is left out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.result_logs import heading, line, training, write_log
from tests.support.training_logs import cifar10_entries, entry
from tests.support.training_logs import training as log_of

from aiperf_hpc.analysis.analysis import Analysis, analyze
from aiperf_hpc.analysis.options import Options, qualities
from aiperf_hpc.analysis.page.plots import MOST_CURVES, ops_over_time, scaling, time_breakdown
from aiperf_hpc.analysis.page.time_to_accuracy import cost, thresholds
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.analysis.sections.cost import cost_to_accuracy
from aiperf_hpc.analysis.sections.scaling_study import (
    ScalingPoint,
    ScalingStudies,
    ScalingStudy,
    Spread,
)
from aiperf_hpc.analysis.sections.thresholds import threshold_sensitivity
from aiperf_hpc.analysis.training_log import Interval, ReadResult, SearchTimeline, TrainingLog
from aiperf_hpc.results.report.plots.figure import Plot


def drawn(folder: Path, run: Sequence[str], before: Sequence[str] = ()) -> Plot:
    """Draw the time of one log's run."""
    write_log(folder / "result_1.txt", heading(), before, run)
    (plot,) = time_breakdown(analyze(read_sources([folder]), Options()))
    return plot


def test_a_bar_is_staging_compute_evaluation_and_extra(tmp_path: Path) -> None:
    """Of 26 s: staging 5, one before the first epoch, two epochs of 10 with evaluations of 1."""
    plot = drawn(tmp_path, training())
    parts = {"staging": 5.0, "compute": 18.0, "evaluation": 2.0, "extra": 1.0}
    said = ", ".join(f"{name} {seconds / 60:.2f} min" for name, seconds in parts.items())
    assert said in plot.description
    assert "No staging" not in plot.caption
    assert "contains the evaluations" not in plot.caption
    text = "".join(ET.fromstring(str(plot.svg)).itertext())  # noqa: S314 -- drawn here
    assert f"{26 / 60:.2f} min" in text
    assert all(name in text for name in parts)


UNSTAGED = [text for text in training() if "staging" not in text]


def test_staging_outside_of_the_run_is_no_part_of_its_time(tmp_path: Path) -> None:
    plot = drawn(tmp_path / "none", UNSTAGED)
    assert "No staging in the logs of Lab box cosmoflow." in plot.caption
    assert "staging" not in plot.description
    assert "extra 0.10 min" in plot.description
    staged = [line(2, "staging_start"), line(8, "staging_stop")]
    plot = drawn(tmp_path / "before", UNSTAGED, staged)
    assert "staging 0.00 min" in plot.description
    assert "No staging" not in plot.caption


def test_entries_without_separate_evaluations_are_named(tmp_path: Path) -> None:
    (plot,) = time_breakdown(analyze(ReadResult(cifar10_entries(tmp_path)), Options()))
    assert "Compute contains the evaluations of CIFAR10/" in plot.caption
    assert "evaluation " not in plot.description


def searches(count: int) -> Analysis:
    course = SearchTimeline(
        window_seconds=1.0, operations=(5, 7), busy_seconds=2.0, replicas=1, throughputs=()
    )
    entries = []
    for number in range(count):
        log = TrainingLog(
            source="run", run=Interval(started=0.0, ended=2.0), succeeded=None, timeline=course,
            operations=12, settings={"hours": 0.001},
        )  # fmt: skip
        entries.append(entry(f"run-{number}", log, format="aiperf", benchmark="automl"))
    return analyze(ReadResult(tuple(entries)), Options())


@pytest.mark.parametrize("count", [MOST_CURVES, MOST_CURVES + 28])
def test_the_caption_states_omitted_curves(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiperf_hpc.analysis.analysis.SECTIONS", ())
    (plot,) = ops_over_time(searches(count))
    said = f"The first 12 of {count} runs; the JSON document has all." in plot.caption
    assert said == (count > MOST_CURVES)
    assert plot.description.count("ends at") == MOST_CURVES


def test_public_entries_of_cifar10(tmp_path: Path) -> None:
    entries = cifar10_entries(tmp_path)
    (over,) = thresholds(threshold_sensitivity(entries, Options()))
    assert "31 of 31 entries reach 89.5" in over.description
    assert "1 of 31 entries reach 95" in over.description
    (costs,) = cost(cost_to_accuracy(entries, Options()))
    assert "20 entries" in costs.description
    assert "0.105 USD" in costs.description
    assert len(over.svg) + len(costs.svg) < 100_000


def test_a_threshold_that_no_entry_reached_has_no_plot() -> None:
    options = Options(thresholds=(qualities("--thresholds", "0.99"),))
    entries = [entry(name, log_of([(1, 0.5)])) for name in "ab"]
    assert list(thresholds(threshold_sensitivity(entries, options))) == []


def test_a_study_without_convergence_has_logarithmic_axes_of_what_is_known() -> None:
    def point(accelerators: int, minutes: float) -> ScalingPoint:
        time, rate = (Spread(mean=v, deviation=None, values=(v,)) for v in (minutes, 100.0))
        return ScalingPoint(
            entry="e", accelerators=accelerators, global_batch_size=None, throughput=rate,
            epochs=None, minutes=time, speedup=1.0, ideal_speedup=1.0, efficiency=1.0,
            time_speedup=None, time_efficiency=None,
        )  # fmt: skip

    study = ScalingStudy(
        device="rank", subject="s", points=(point(1, 60.0), point(8, 9.0)), epochs_by_batch=None,
        component=None, equal_work=(), missing={}, notes=(),
    )  # fmt: skip
    (plot,) = scaling(ScalingStudies(studies=(study,), excluded={}))
    said = set(re.findall(r">([^<>]+)</text>", plot.svg))
    assert {
        "time to solution, min (log scale)", "epochs to converge", "ranks (log scale)",
        "no training run converged",
    } <= said  # fmt: skip
