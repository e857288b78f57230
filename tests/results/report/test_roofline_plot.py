"""The roofline's drawing: its lines where the arithmetic puts them, its words, its points."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from aiperf_hpc.results.report.plots.figure import Plot
from aiperf_hpc.results.report.plots.roofline import Panel, Point, Roof, roofline_plot

ROOFS = [Roof("fp32", 1e11), Roof("bf16", 2e10)]
POINT = Point("abcdef12", 2.0, 6.0, 1.2e10, "fp32")
LINE = re.compile(r'<path d="M ([\d.]+) ([\d.]+) L ([\d.]+) ([\d.]+) "[^>]*?stroke-width: 1.4')


def drawn(roofs: list[Roof], *panels: Panel) -> Plot:
    plot = roofline_plot("run", roofs, panels, "roofline")
    assert plot is not None
    return plot


def lines(svg: str) -> list[tuple[float, float, float, float]]:
    """The ends of the ceilings, in points."""
    # Matplotlib breaks a path's lines.
    joined = re.sub(r"\s+", " ", svg)
    return [tuple(map(float, found)) for found in LINE.findall(joined)]  # type: ignore[misc]


def words(plot: Plot) -> str:
    return "\n".join(ET.fromstring(str(plot.svg)).itertext())  # noqa: S314 -- drawn here


def test_the_slope_meets_each_peak_where_the_arithmetic_says() -> None:
    """1e11 and 2e10 operations a second over 1e10 bytes a second: at 10 and at 2 a byte.

    On logarithmic axes the slope is a straight line, on which both flat lines begin.
    """
    slope, high, low = lines(str(drawn(ROOFS, Panel("memory", 1e10, [POINT])).svg))
    assert (slope[2], slope[3]) == pytest.approx((high[0], high[1]))
    assert high[1] == pytest.approx(high[3])
    assert low[1] == pytest.approx(low[3])
    assert low[1] > high[1]  # Downwards.
    rise = (slope[3] - slope[1]) / (slope[2] - slope[0])
    assert low[1] - slope[1] == pytest.approx(rise * (low[0] - slope[0]), abs=0.01)
    # A factor of 5 in operations a second for one of 5 in operations a byte.
    per_ratio = (low[1] - high[1]) / math.log(5)
    assert (high[0] - low[0]) / math.log(5) == pytest.approx(-per_ratio / rise, rel=1e-3)


def test_everything_is_named() -> None:
    plot = drawn(
        ROOFS, Panel("memory", 1e10, [POINT]), Panel("network", 1e9, [POINT]),
        Panel("storage", 1e8, [POINT]),
    )  # fmt: skip
    text = words(plot)
    for said in (
        "memory 10.0 GB/s", "network 1.00 GB/s", "storage 100 MB/s", "fp32 100 GOPS",
        "bf16 20.0 GOPS", "operations/B of memory", "operations/B reduced", "operations/B read",
    ):  # fmt: skip
        assert said in text
    assert "12% of its peak" in plot.description
    assert plot.title == "Roofline of run"


def test_peaks_close_together_share_a_line_of_words() -> None:
    plot = drawn([Roof("bf16", 1e11), Roof("fp16", 0.99e11)], Panel("memory", 1e10, [POINT]))
    assert "bf16 100 GOPS, fp16 99.0 GOPS" in words(plot)


def test_each_precision_has_its_mark() -> None:
    both = [POINT, POINT._replace(precision="bf16", most_intensity=2.0)]
    assert "(ring: fp32, square: bf16)" in drawn(ROOFS, Panel("memory", 1e10, both)).caption
    alone = drawn(ROOFS, Panel("memory", 1e10, both[1:])).caption
    assert "(square: bf16)" in alone
    assert "its line ends" not in alone


def test_marks_are_at_their_values() -> None:
    """Three points, each ten times the last in both: equally far apart, on one straight line."""
    points = [Point(str(n), 10.0**n, 10.0**n, 10.0 ** (8 + n), "fp32") for n in range(3)]
    svg = str(drawn(ROOFS, Panel("memory", 1e10, points)).svg)
    marks = re.findall(r'<use [^>]*?\bx="([\d.]+)" y="([\d.]+)" [^>]*fill: var\(--surface\)', svg)
    places = [(float(x), float(y)) for x, y in marks]
    assert len(places) == 3
    (one, two) = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(places)]
    assert one == pytest.approx(two, abs=0.01)
    assert one[0] > 0 > one[1]


def test_without_points_or_peaks_there_is_no_drawing() -> None:
    assert roofline_plot("run", ROOFS, [Panel("memory", 1e10, [])], "roofline") is None
    assert roofline_plot("run", ROOFS, [], "roofline") is None
    assert roofline_plot("run", [], [Panel("memory", 1e10, [POINT])], "roofline") is None
