"""The drawings of the report: what stands on their axes, read from the SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pytest
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.primary.allreduce import Curve, Measurement
from aiperf_hpc.primary.allreduce_plot import write_allreduce_plot
from aiperf_hpc.results.report.plots.bars import Bar, breakdown_plot
from aiperf_hpc.results.report.plots.figure import quality_color
from aiperf_hpc.results.report.plots.over_time import score_plots
from aiperf_hpc.results.report.plots.scaling import scaling_plots
from aiperf_hpc.results.report.plots.search import prediction_plot
from aiperf_hpc.results.report.scaling import ScalingPoint
from aiperf_hpc.results.report.search_replay import CandidateOutcome
from aiperf_hpc.results.views.run_view import RunView

POINTS_A_LETTER = 5.0
"""The width of a letter of the drawings' 9-point type, in points, at least."""
PREFIXES = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
            "P": 1e15, "E": 1e18, "Z": 1e21, "Y": 1e24}  # fmt: skip


class Tick(NamedTuple):
    """A number on an axis, and where its line meets the axis, in points."""

    text: str
    place: float

    @property
    def value(self) -> float:
        number, _, prefix = self.text.replace("\N{MINUS SIGN}", "-").replace(",", "").partition(" ")
        return float(number) * PREFIXES[prefix]


def ticks(svg: str, axis: str) -> list[list[Tick]]:
    """Return the numbers on each horizontal (``x``) or vertical axis of a drawing."""
    panels = re.split(r'<g id="[^"]*-axes_\d+">', svg)[1:]
    assert panels
    # Matplotlib draws none outside the axis.
    tick = re.compile(rf'<g id="[^"]*-{axis}tick_\d+">(.*?)</text>', re.DOTALL)
    return [[_tick(group, axis) for group in tick.findall(panel)] for panel in panels]


def _tick(group: str, axis: str) -> Tick:
    mark = re.findall(r'<use [^>]*?\bx="([^"]*)" y="([^"]*)"', group)[-1]
    text = re.sub(r"<[^>]*>", "", group[group.rindex("<text") :]).strip()
    return Tick(text, float(mark[axis == "y"]))


def require_numbers(svg: str, *, x: int = 2, y: int = 3) -> None:
    """Check that all axes have so many different numbers, in order, which do not touch."""
    for axis, least in (("x", x), ("y", y)):
        for shown in ticks(svg, axis):
            assert len(shown) >= least, (axis, shown)
            values = [tick.value for tick in shown]
            assert sorted(set(values)) == values, (axis, shown)
            for one, other in zip(shown, shown[1:], strict=False):
                if axis == "y":
                    assert one.place - other.place >= 9.0, (axis, shown)
                else:
                    letters = (len(one.text) + len(other.text)) / 2.0
                    assert other.place - one.place >= letters * POINTS_A_LETTER, (axis, shown)


def score(
    seconds: float, ops: float, error: float | None = 0.5, regulated: float | None = 1.0
) -> ScoreStatus:
    return ScoreStatus(
        elapsed_seconds=seconds,
        operations=int(ops * seconds) if ops < 1e15 else 1,
        ops=ops,
        error=error,
        regulated_error=error,
        regulated=regulated,
    )


def scaled(values: Iterable[tuple[int, float]]) -> list[ScalingPoint]:
    runs = list(values)
    unit = runs[0][1] / runs[0][0]
    return [
        ScalingPoint(
            run_id=f"n{nodes}-{ops}",
            name=f"n{nodes}",
            nodes=nodes,
            valid=True,
            elapsed_seconds=3600.0,
            ops=ops,
            ops_per_node=ops / nodes,
            efficiency=ops / nodes / unit,
            train_evaluate_fraction=0.9,
        )
        for nodes, ops in runs
    ]


@pytest.mark.parametrize(
    "runs",
    [
        [(1000, 1.0e15), (1001, 1.001e15)],  # Within one decade.
        [(1, 9.9e2), (2, 1.01e3)],  # About a power of ten.
        [(2**n, 3.3e11 * 2**n) for n in range(13)],
        [(1, 1e-7), (10_000_000, 5e23)],
        [(1, 5e9), (4, 0.0)],  # One of the runs executed nothing.
    ],
)
def test_scaling_has_numbers_on_its_axes(runs: list[tuple[int, float]]) -> None:
    points = scaled(runs)
    ops, efficiency = scaling_plots(points)
    require_numbers(ops.svg)
    require_numbers(efficiency.svg)
    (nodes,) = ticks(ops.svg, "x")
    assert {tick.value for tick in nodes} <= {point.nodes for point in points}
    assert nodes[-1].value == points[-1].nodes
    without = sum(point.ops == 0.0 for point in points)
    assert (f"{without} of {len(points)} runs have no score" in ops.caption) is (without > 0)


def test_numbers_stand_where_they_belong() -> None:
    """On the logarithmic axis: the place of each is linear in its logarithm."""
    (ops, _) = scaling_plots(scaled([(2, 2.1e9), (4, 4.0e9)]))
    (shown,) = ticks(ops.svg, "y")
    first, second, *_, last = shown
    part = (second.place - first.place) / (last.place - first.place)
    ratio = [tick.value / first.value for tick in (second, last)]
    assert ratio[1] ** part == pytest.approx(ratio[0], rel=1e-3)
    assert first.value >= 1e9
    assert last.value <= 1e10


@pytest.mark.parametrize(
    ("seconds", "most", "unit", "parts"),
    [
        (0.004, 1e-9, "seconds", (1.0,)),
        (3600.0, 3.3e9, "minutes", (0.2, 0.6, 1.0)),
        (8.64e7, 4e30, "hours", (0.2, 0.6, 1.0)),
    ],
)
def test_scores_have_numbers_on_their_axes(
    seconds: float, most: float, unit: str, parts: tuple[float, ...]
) -> None:
    series = [score(seconds * part, most * part, 0.0, most) for part in parts]
    plots = score_plots(series, series)
    assert len(plots) == 3
    for plot in plots:
        require_numbers(plot.svg)
        assert f"{unit} since the start" in plot.svg


def test_a_run_without_operations_has_no_plot_of_them() -> None:
    series = [score(90.0, 0.0, 0.5, 0.0)]
    assert [plot.title for plot in score_plots(series, series)] == [
        "Validation error of the best trial"
    ]
    assert score_plots([], []) == []


def labels(svg: str) -> set[str]:
    """Return the texts of a drawing that are no numbers."""
    found = (text.strip() for text in re.findall(r">([^<>]+)</text>", svg))
    return {text for text in found if not text[:1].isdigit()}


def test_logarithmic_axes_say_so(tmp_path: Path) -> None:
    ops, efficiency = scaling_plots(scaled([(1, 3e8), (4, 1.1e9), (16, 4.6e9)]))
    assert {"nodes (log scale)", "OPS (log scale)"} <= labels(ops.svg)
    assert {"nodes (log scale)", "%"} <= labels(efficiency.svg)
    points = [measured(4, 1.1e-5, 3e5), measured(1024, 1.9e-5, 6e7)]
    write_allreduce_plot([Curve("mpi", points)], tmp_path / "plot.svg")
    assert {
        "tensor, B (log scale)", "time, s (log scale)", "bus bandwidth, B/s (log scale)"
    } <= labels((tmp_path / "plot.svg").read_text("utf-8"))  # fmt: skip


def candidate(
    mean: float, deviation: float, reached: float, predicted: float | None
) -> CandidateOutcome:
    return CandidateOutcome(
        elapsed_seconds=1.0, replica="r0", proposal="p", parent="t", morphisms_text="", mean=mean,
        deviation=deviation, acquisition=None, parent_accuracy=None, graphs=None, pending=None,
        repeated=False, seconds=0.1, trials=1, reached=reached, predicted=predicted,
        objective=reached if predicted is None else predicted, state="trained",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "mean", "step", "deviation"),
    [(1, 0.0, 0.0, 0.0), (400, 0.5, 1e-3, 0.3), (400, 0.7, 1e-7, 0.0)],
)
def test_predictions_have_numbers_on_their_axes(
    number: int, mean: float, step: float, deviation: float
) -> None:
    expected = [
        candidate(mean, deviation, mean + step * i, mean if i % 2 else None) for i in range(number)
    ]
    plot = prediction_plot(expected)
    assert plot is not None
    require_numbers(plot.svg)


def test_no_deviation_is_cut_off() -> None:
    plot = prediction_plot([candidate(0.8, 0.1, 0.81, None), candidate(0.9, 0.3, 0.82, 0.86)])
    assert plot is not None
    (shown,) = ticks(plot.svg, "y")
    values = [tick.value for tick in shown]
    assert min(values) <= 65.0  # 60 to 100, and no accuracy is above.
    assert max(values) == 100.0


def measured(size: int, seconds: float, bandwidth: float) -> Measurement:
    return Measurement(
        memory="host", dtype="float32", elements=size // 4, bytes=size, seconds=seconds,
        fastest_seconds=seconds, slowest_seconds=seconds, algorithm_bandwidth=bandwidth,
        bus_bandwidth=bandwidth,
    )  # fmt: skip


@pytest.mark.parametrize(
    "points",
    [
        [measured(4, 1.1e-5, 0.0), measured(8, 1.2e-5, 0.0)],  # One rank has no bus.
        [measured(4, 1.1e-5, 3e5), measured(1024, 1.9e-5, 6e7), measured(2**27, 0.04, 3e9)],
    ],
)
def test_all_reduces_have_numbers_on_their_axes(points: list[Measurement], tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    write_allreduce_plot([Curve("mpi", points), Curve("gloo", points)], path)
    svg = path.read_text("utf-8")
    assert len(ticks(svg, "y")) == 2
    require_numbers(svg)


def test_bars_say_their_shares_and_what_a_step_takes() -> None:
    """6 of 8 ms are computation; 0.2 of 8 is too little to write into its part."""
    bars = [Bar("two ranks", {"compute": 6e-3, "negotiate": 1.8e-3, "queue": 0.2e-3})]
    plot = breakdown_plot("Communication", bars, "communication")
    words = re.findall(r">([^<>]+)</text>", plot.svg)
    assert {"two ranks", "75%", "22%", "8 ms", "compute", "negotiate", "queue"} <= set(words)
    assert "2%" not in words
    assert plot.description == "two ranks: compute 75.0%, negotiate 22.5%, queue 2.5%"


def test_a_drawing_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="'idle' has no time"):
        breakdown_plot("Communication", [Bar("idle", {"compute": 0.0})], "communication")


def test_the_users_own_settings_change_no_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = RunView.read(write_run(tmp_path, Plan(replicas=1)))
    expected = score_plots(view.series.official(), view.series.official())
    monkeypatch.setitem(mpl.rcParams, "font.size", 31.0)
    monkeypatch.setitem(mpl.rcParams, "axes.grid", True)
    assert score_plots(view.series.official(), view.series.official()) == expected
    assert mpl.rcParams["font.size"] == 31.0


def test_the_color_scale_ends_where_it_should() -> None:
    assert quality_color(-1.0) == quality_color(0.0)
    assert quality_color(2.0) == quality_color(1.0)
    assert quality_color(0.0) != quality_color(0.5) != quality_color(1.0)
